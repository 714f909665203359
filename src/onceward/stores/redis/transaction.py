"""The `tx` of a handler: it records commands, which Redis gets together with "done".

Invariant: nothing that is recorded is visible before the move that finishes the message. Reads go past it, to what is
committed; where a write depends on a read, `watch` says so, and where the key has changed by the end, nothing is
applied and the message runs again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from onceward.errors import ContractViolation, StoreConflict
from onceward.stores.dry_run import Statement
from onceward.stores.recording import Recorder

Value: TypeAlias = bytes | str | float
WRITES = frozenset(
    [
        *("SET", "SETEX", "PSETEX", "SETNX", "MSET", "GETDEL", "APPEND", "SETRANGE", "SETBIT", "PFADD"),
        *("INCR", "DECR", "INCRBY", "DECRBY", "INCRBYFLOAT", "DEL", "UNLINK"),
        *("EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT", "PERSIST"),
        *("HSET", "HSETNX", "HDEL", "HINCRBY", "HINCRBYFLOAT", "SADD", "SREM", "SPOP"),
        *("ZADD", "ZINCRBY", "ZREM", "ZREMRANGEBYSCORE", "ZREMRANGEBYRANK", "GEOADD"),
        *("LPUSH", "RPUSH", "LPUSHX", "RPUSHX", "LREM", "LTRIM", "LPOP", "RPOP", "XADD", "XDEL", "XTRIM"),
    ]
)
"""What may be recorded: commands of which the library knows before what their keys must be (lua/4-finish.lua)."""
READS = frozenset(
    [
        *("GET", "MGET", "GETRANGE", "STRLEN", "EXISTS", "TYPE", "TTL", "PTTL", "GETBIT", "BITCOUNT", "PFCOUNT"),
        *("HGET", "HMGET", "HGETALL", "HEXISTS", "HKEYS", "HVALS", "HLEN", "SMEMBERS", "SISMEMBER", "SCARD"),
        *("ZSCORE", "ZMSCORE", "ZRANGE", "ZRANK", "ZCARD", "ZCOUNT", "LRANGE", "LINDEX", "LLEN"),
        *("XRANGE", "XREVRANGE", "XLEN"),
    ]
)


MOST_WORDS = 7000
"""After the verb of one command. Lua fails at about 8000, in the middle of what was recorded, and cannot go back."""


class Command(NamedTuple):
    """A command that was recorded, in the words that the server gets."""

    words: tuple[bytes | str, ...]

    def __str__(self) -> str:
        return " ".join(word if isinstance(word, str) else repr(word) for word in self.words)


class Recorded(Recorder):
    """What both kinds of handlers write with: a write is kept, and never awaited."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[int, list[int]]] = []
        """From which command on the handlers of which messages have recorded."""
        self.watched = False
        self.kept: Any = None
        """The message that is received with the effects, and who holds its key."""

    def command(self, verb: str, *words: Value) -> None:
        """Record a command, as `tx.command("HINCRBY", "stock", "apples", -1)`."""
        verb = verb.upper()
        if verb not in WRITES:
            known = "a read is tx.read(...)" if verb in READS else f"there are {', '.join(sorted(WRITES))}"
            raise ContractViolation(f"tx cannot record {verb}; {known}")
        if not words:
            raise ContractViolation(f"tx cannot record {verb} without a key")
        if len(words) > MOST_WORDS:
            raise ContractViolation(
                f"tx cannot record {verb} {words[0]!r} with {len(words)} words: the server's Lua takes at most "
                f"{MOST_WORDS} of one command. Record it as several commands"
            )
        self.record(Command((verb, *(_word(word) for word in words))))

    # The usual ones by name, as redis-py has them

    def set(self, key: str, value: Value) -> None:
        """Write a text."""
        self.command("SET", key, value)

    def delete(self, *keys: str) -> None:
        """Remove keys."""
        self.command("DEL", *keys)

    def incrby(self, key: str, amount: int = 1) -> None:
        """Add to a number."""
        self.command("INCRBY", key, amount)

    def hset(self, key: str, mapping: Mapping[str, Value]) -> None:
        """Write fields of a hash."""
        self.command("HSET", key, *(word for pair in mapping.items() for word in pair))

    def hdel(self, key: str, *fields: str) -> None:
        """Remove fields of a hash."""
        self.command("HDEL", key, *fields)

    def hincrby(self, key: str, field: str, amount: int = 1) -> None:
        """Add to a number in a hash."""
        self.command("HINCRBY", key, field, amount)

    def sadd(self, key: str, *members: Value) -> None:
        """Add to a set."""
        self.command("SADD", key, *members)

    def srem(self, key: str, *members: Value) -> None:
        """Remove from a set."""
        self.command("SREM", key, *members)

    def zadd(self, key: str, mapping: Mapping[str, float]) -> None:
        """Add to a sorted set."""
        self.command("ZADD", key, *(word for member, score in mapping.items() for word in (score, member)))

    def rpush(self, key: str, *values: Value) -> None:
        """Append to a list."""
        self.command("RPUSH", key, *values)

    def xadd(self, key: str, fields: Mapping[str, Value]) -> None:
        """Append an entry to a stream."""
        self.command("XADD", key, "*", *(word for pair in fields.items() for word in pair))

    def statements_shown(self) -> list[Statement]:
        return [Statement(str(write), "") for write in self.writes]

    def began(self, seqs: list[int]) -> None:
        """The handler of these messages is called."""
        self.calls.append((len(self.writes), seqs))

    def watches(self) -> None:
        """From now on the message depends on what it reads, which is not what its neighbours have recorded."""
        self.check()
        if self.calls and self.calls[-1][0]:
            raise StoreConflict("the message watches a key, and so it runs again, without others in its transaction")
        self.watched = True

    def of_message(self, place: int) -> list[int]:
        """Whose command it is."""
        return next((seqs for begin, seqs in reversed(self.calls) if begin <= place), [])

    def _reads(self, verb: str) -> str:
        self.check()
        verb = verb.upper()
        if verb not in READS:
            raise ContractViolation(f"tx cannot read with {verb}; there are {', '.join(sorted(READS))}")
        return verb


class RedisTransaction(Recorded):
    """For `def` handlers: reads answer at once."""

    def __init__(self, ask: Callable[..., Any]) -> None:
        super().__init__()
        self._ask = ask

    def read(self, verb: str, *words: Value) -> Any:
        """What is committed, as `tx.read("HGETALL", "order:7")`; nothing of what is recorded here."""
        return self._ask(self._reads(verb), *words)

    def watch(self, *keys: str) -> None:
        """Where one of these keys has changed at the end, nothing is applied, and the message runs again."""
        self.watches()
        self._ask("WATCH", *keys)


class AsyncRedisTransaction(Recorded):
    """For `async def` handlers: reads are awaited."""

    def __init__(self, ask: Callable[..., Awaitable[Any]]) -> None:
        super().__init__()
        self._ask = ask

    async def read(self, verb: str, *words: Value) -> Any:
        """As that of `RedisTransaction`, awaited."""
        return await self._ask(self._reads(verb), *words)

    async def watch(self, *keys: str) -> None:
        """As that of `RedisTransaction`, awaited."""
        self.watches()
        await self._ask("WATCH", *keys)


def _word(value: Value) -> bytes | str:
    if isinstance(value, bool) or not isinstance(value, bytes | str | int | float):
        raise ContractViolation(f"a word of a command is bytes, text or a number, and not {value!r}")
    return value if isinstance(value, bytes | str) else repr(value)
