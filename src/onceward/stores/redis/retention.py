"""Retention: what is old goes, beside live traffic; personal data can be erased."""

from __future__ import annotations

from collections.abc import Sequence

from onceward.flow import Flow
from onceward.stores.moves.operations import Order
from onceward.stores.moves.retention import Archivable, PruneBatch, PrunedBatch, StoredBody, StoredCase
from onceward.stores.redis.catalog import latest
from onceward.stores.redis.requests import Ask, asked, both, constant, done, whole


class Retention:
    """What keeps the tables small, and what erases."""

    def take_turn(self, task: str, every: float) -> Flow[bool]:
        return bool((yield from done("take_turn", {"task": task, "every": every})))

    def give_turn(self, task: str) -> Flow[None]:
        yield from done("give_turn", {"task": task})

    def latest_sources(self) -> Flow[dict[str, float]]:
        return latest((yield from asked("latest_sources")))

    def rotate_partition(self, seconds: float) -> Flow[None]:
        """There are none: bodies go one by one."""
        del seconds
        yield from ()

    def old_partitions(self, keep: float) -> Flow[list[int]]:
        """As `rotate_partition`."""
        del keep
        return (yield from constant([]))

    def drop_partition(self, partition: int, lock_wait: float, *, archive_first: bool) -> Flow[bool]:
        """As `rotate_partition`."""
        del partition, lock_wait, archive_first
        return (yield from constant(value=False))

    def prune_batch(self, batch: PruneBatch) -> Flow[PrunedBatch]:
        found = yield from done("prune_batch", batch._asdict())
        return PrunedBatch(found.get("after"), found["removed"])

    def forget_effects(self, keep: float) -> Flow[None]:
        yield from done("forget_effects", {"keep": keep})

    def bodies_after(self, seq: int, limit: int) -> Flow[list[StoredBody]]:
        found, bodies = yield from both(Ask("bodies_after", {"seq": seq, "limit": limit}, reads=True))
        return [
            StoredBody(
                one["seq"],
                one["type"],
                one["source"],
                one.get("key"),
                one.get("headers"),
                bytes(body) if one["has_body"] else None,
                one["status"],
            )
            for one, body in zip(found or (), bodies, strict=True)
        ]

    def cases_after(self, case: int, limit: int) -> Flow[list[StoredCase]]:
        found, bodies = yield from both(Ask("cases_after", {"case": case, "limit": limit}, reads=True))
        return [
            StoredCase(
                one["case"],
                one["seq"],
                one["type"],
                one["source"],
                one.get("key"),
                one.get("headers"),
                bytes(body),
                one["status"],
            )
            for one, body in zip(found or (), bodies, strict=True)
        ]

    def same_id(self, source: str, from_id: bytes, below_id: bytes) -> Flow[list[int]]:
        del below_id  # destinations are looked for one by one
        return list((yield from asked("same_id", {"source": source}, [from_id])) or ())

    def erase(self, order: Order) -> Flow[list[str] | None]:
        found = yield from done("erase", order._asdict())
        return None if found is None else list(found["blobs"] or ())

    def archivable(self, after: int, keep: float, limit: int) -> Flow[list[Archivable]]:
        given = {"after": after, "keep": keep, "limit": limit}
        found, parts = yield from both(Ask("archivable", given, reads=True))
        return [
            Archivable(
                seq=one["seq"],
                source=one["source"],
                consumer=one["consumer"],
                id=one["id"],
                type=one["type"],
                version=one["version"],
                key=one["key"],
                key_from=one["key_from"],
                position=whole(one["position"]),
                headers=one["headers"],
                body=bytes(parts[2 * at]) if one["has_body"] else None,
                sha256=bytes(parts[2 * at + 1]).hex(),
                destination=one["destination"],
                cause=one["cause"],
                received_at=int(one["received_at"]),
                result=one.get("result"),
            )
            for at, one in enumerate(found or ())
        ]

    def drop_bodies(self, seqs: Sequence[int]) -> Flow[int]:
        return int((yield from done("drop_bodies", {"seqs": list(seqs)})))
