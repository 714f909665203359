"""Any bytes are taken in and kept as they came; the unreadable ends dead with a reason (R09, R15; HZ-11, HZ-66)."""

from __future__ import annotations

import hashlib

from tests.contract.harness import Shop


def test_a_body_is_never_stored_when_it_succeeds_inline(shop: Shop) -> None:
    """R03: with `keep_body=False`, an inline message that succeeds at once leaves only its hash."""
    shop.handle(keep_body=False)
    assert shop.process("m1", body=b'"secret"').finished
    assert shop.sql(f"SELECT count(*) FROM {shop.prefix}body WHERE body IS NOT NULL") == [(0,)]
    assert (shop.detail("m1").body, shop.detail("m1").hash) == (None, hashlib.sha256(b'"secret"').hexdigest())
