"""Errors of the clients as onceward's own, by what the reader can do about them."""

from __future__ import annotations

from collections.abc import Mapping

from onceward.errors import RightsMissing, SchemaMissing, StoreError, StoreUnavailable
from onceward.stores.dynamodb.unit import Cancelled

_AGAIN = {"TransactionConflictException", "TransactionInProgressException"}
_BUSY = {
    "ProvisionedThroughputExceededException",
    "ThrottlingException",
    "RequestLimitExceeded",
    "InternalServerError",
    "InternalFailure",
    "ServiceUnavailable",
    "LimitExceededException",
}
_RIGHTS = {"AccessDeniedException", "UnrecognizedClientException", "InvalidSignatureException", "ExpiredTokenException"}


def translated(error: Exception) -> Exception:  # noqa: PLR0911 - one for each kind
    """An error of a client as one of onceward's own."""
    response = getattr(error, "response", None)
    if not isinstance(response, Mapping):
        if type(error).__module__.startswith(("botocore", "aiobotocore", "aiohttp", "urllib3")) or isinstance(
            error, OSError
        ):
            return StoreUnavailable(f"DynamoDB cannot be reached: {error}")
        return error
    code = response.get("Error", {}).get("Code", "")
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400)
    if code == "TransactionCanceledException":
        reasons = response.get("CancellationReasons", ())
        problems = [one for one in reasons if one.get("Code") == "ValidationError"]
        return StoreError(f"DynamoDB refuses a write: {problems[0].get('Message')}") if problems else Cancelled(reasons)
    if code == "ConditionalCheckFailedException":
        return Cancelled([{"Code": "ConditionalCheckFailed", "Item": response.get("Item")}])
    if code in _AGAIN:
        return Cancelled()
    if code == "ResourceNotFoundException":
        return SchemaMissing(f"a table is not there: {error}. Run `onceward migrate`, or make your own tables first")
    if code in _RIGHTS:
        return RightsMissing(f"this program may not do that in DynamoDB: {error}")
    if code in _BUSY or status >= 500:  # noqa: PLR2004 - the server's fault
        return StoreUnavailable(f"DynamoDB could not do it now: {error}")
    return StoreError(f"DynamoDB refuses it: {error}")
