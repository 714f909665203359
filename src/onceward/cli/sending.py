"""`onceward send`: deliver a test message, once or several times, into the inbox or to a URL, signed where asked.

Invariant: a secret is taken from the program or the environment, never from the command line, and is never printed.
"""

from __future__ import annotations

import http.client
import io
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import click

from onceward.cli.failure import NOT_SO, WRONG_USAGE, Failure
from onceward.cli.output import print_json
from onceward.cli.target import Target, as_json, on_target
from onceward.cli.text import examples, say
from onceward.domain.ids import time_ordered_id
from onceward.inbox import Inbox
from onceward.webhooks import GitHub, Shopify, Slack, StandardWebhooks, Stripe
from onceward.webhooks.verifier import Sample, Signed, Signing

SECRET = "ONCEWARD_SEND_SECRET"  # noqa: S105 - the name of the variable
KINDS: Mapping[str, type[Stripe | GitHub | StandardWebhooks | Slack | Shopify]] = {
    "stripe": Stripe,
    "github": GitHub,
    "standard": StandardWebhooks,
    "slack": Slack,
    "shopify": Shopify,
}
SECONDS = 30.0
FIRST_NO_SUCCESS = 300


@dataclass(frozen=True, slots=True)
class Answered:
    """What became of one delivery."""

    delivery: int
    status: str
    ok: bool
    seq: int | None = None

    @property
    def line(self) -> str:
        """As it is printed."""
        return f"delivery {self.delivery}: {self.status}" + ("" if self.seq is None else f", message #{self.seq}")


@click.command(
    short_help="Deliver a test message, once or several times, signed as a provider signs.",
    epilog=examples(
        "onceward send shop:inbox order.paid --data '{\"order_id\": 7}' --copies 2",
        "onceward send shop:inbox checkout.session.completed --as stripe",
        "onceward send shop:inbox push --as github --to http://127.0.0.1:8080/hooks/github",
    ),
)
@on_target(rest="TYPE")
@click.option("--data", default="{}", metavar="JSON", help="The data of the message.  [default: {}]")
@click.option("--id", "message_id", metavar="ID", help="The producer's message id.  [default: a new one]")
@click.option("--source", default="test", show_default=True, metavar="NAME", help="The source, without --as.")
@click.option(
    "--copies", type=click.IntRange(1, 1000), default=1, show_default=True, help="How many times to deliver it."
)
@click.option("--as", "kind", type=click.Choice(list(KINDS)), help="Sign it as this provider signs.")
@click.option("--to", metavar="URL", help="POST it there, instead of delivering it to the inbox directly.")
@as_json
def send(  # noqa: PLR0913 - each is an option
    target: Target,
    words: list[str],
    *,
    data: str,
    message_id: str | None,
    source: str,
    copies: int,
    kind: str | None,
    to: str | None,
    as_json: bool,
) -> None:
    """Deliver a test message of a TYPE; every copy has the same id.

    With --as it is signed with the secret of the program's own webhook endpoint, and delivered to that. With --to it is
    POSTed, and the secret may come from the environment instead (ONCEWARD_SEND_SECRET); without --as it is an
    unsigned CloudEvent. Exit code 1 when a delivery was refused.
    """
    if len(words) != 1:
        raise Failure("give one TYPE, for example: onceward send shop:inbox order.paid", WRONG_USAGE)
    try:
        value = json.loads(data)
    except ValueError as error:
        raise Failure(
            f"--data is not JSON: {error}. Write for example: --data '{{\"order_id\": 7}}'", WRONG_USAGE
        ) from None
    sample = Sample(message_id or f"test_{time_ordered_id()}", words[0], value)
    if not as_json:
        say(f"{sample.type} {sample.id}")
    answers = []
    for one in _deliver(target, sample, source=source, copies=copies, kind=kind, to=to):
        answers.append(one)
        if not as_json:
            say(one.line)
    if as_json:
        print_json({"id": sample.id, "deliveries": answers})
    elif stored := next((one.seq for one in answers if one.seq), None):
        say(f"Next: onceward explain {target.words} {stored}")
    if not all(one.ok for one in answers):
        raise SystemExit(NOT_SO)


def _deliver(  # noqa: PLR0913 - what `send` was given
    target: Target, sample: Sample, *, source: str, copies: int, kind: str | None, to: str | None
) -> Iterator[Answered]:
    secret, now = os.environ.get(SECRET), time.time()  # copies are equal byte by byte: a body may have its time
    if to is not None and (kind is None or secret):
        signing = KINDS[kind](secret) if kind and secret else None
        for number in range(1, copies + 1):
            yield _post(number, to, _made(signing, sample, source, now))
        return
    with target.open() as inbox:
        for number in range(1, copies + 1):
            if kind is None:
                receipt = inbox.receive(source=source, id=sample.id, type=sample.type, data=sample.data)
                yield Answered(number, receipt.status, receipt.status != "mismatch", receipt.seq)
            else:
                path, verifier, answer = _endpoint(inbox, kind)
                signed = _made(verifier, sample, source, now)
                yield _post(number, to, signed) if to else _call(number, answer, path, signed)


def _endpoint(inbox: Inbox, kind: str) -> tuple[str, Signing, Callable[..., Any]]:
    """The program's webhook endpoint for a provider."""
    for served in inbox.ingress.served:
        for path, verifier in served.hooks.endpoints.items():
            if isinstance(verifier, KINDS[kind]):
                return path, verifier, served.wsgi.answer
    name = KINDS[kind].__name__
    raise Failure(
        f'the program has no webhook endpoint for {kind}. Add inbox.webhooks({{"/hooks/{kind}": {name}(secret)}}), or '
        f"add --to URL and set the secret in {SECRET}",
        WRONG_USAGE,
    )


def _made(signing: Signing | None, sample: Sample, source: str, now: float) -> Signed:
    if signing is not None:
        return signing.sign(sample, now)
    event = {"ce-specversion": "1.0", "ce-id": sample.id, "ce-type": sample.type, "ce-source": source}
    return Signed(event, json.dumps(sample.data).encode())


def _call(number: int, answer: Callable[..., Any], path: str, signed: Signed) -> Answered:
    """Give it to the endpoint as a server would."""
    environ = {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in signed.headers.items()}
    environ |= {"REQUEST_METHOD": "POST", "CONTENT_TYPE": "application/json", "CONTENT_LENGTH": str(len(signed.body))}
    found = answer(environ, path, io.BytesIO(signed.body).read)
    return _answered(number, int(found.status), found.status.phrase, found.body)


def _post(number: int, url: str, signed: Signed) -> Answered:
    parts = urlsplit(url)
    connections = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}
    if parts.scheme not in connections or not parts.hostname:
        raise Failure(f"--to {url} is not an http:// or https:// URL", WRONG_USAGE)
    connection = connections[parts.scheme](parts.hostname, parts.port, timeout=SECONDS)
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("POST", path, signed.body, {"content-type": "application/json", **signed.headers})
        response = connection.getresponse()
        return _answered(number, response.status, response.reason, response.read())
    except OSError as error:
        raise Failure(
            f"{url} cannot be reached: {error}. Start what serves it, for example: onceward run shop:inbox --http 8080",
            NOT_SO,
        ) from None
    finally:
        connection.close()


def _answered(number: int, status: int, reason: str, body: bytes) -> Answered:
    try:
        read = json.loads(body)
    except ValueError:
        read = None
    found = read if isinstance(read, dict) else {}
    more = found.get("status") or found.get("error") or body.decode(errors="replace")[:200]
    seq = found.get("seq")
    return Answered(
        number,
        f"{status} {reason}" + (f", {more}" if more else ""),
        status < FIRST_NO_SUCCESS,
        seq if isinstance(seq, int) else None,
    )
