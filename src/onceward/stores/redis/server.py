"""What a server is, and how well it keeps what it has acknowledged: asked for the doctor and the guarantees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import redis

from onceward.domain.text import count
from onceward.errors import ConfigurationError

Finding = tuple[str, str, str]
OLDEST = 7
TABLES = ("ledger", "ids", "bodies", "ends", "queue", "open", "results", "copies")


def check(client: redis.Redis) -> None:
    """Refuse a server that cannot be a store."""
    info: Mapping[str, Any] = client.info("server")
    version = str(info.get("valkey_version") or info["redis_version"])
    if int(version.partition(".")[0]) < OLDEST:
        raise ConfigurationError(f"Redis {version} has no functions: a store needs Redis 7 or Valkey")
    if info.get("redis_mode") == "cluster":
        raise ConfigurationError(
            "a Redis cluster cannot be a store yet: effects, ledger and queue are one transaction, and a cluster has "
            "transactions within a hash slot alone. Use one server (with replicas, if you like)"
        )


def findings(client: redis.Redis, prefix: str) -> Iterator[Finding]:
    """What the server has to say: an error is a reason why the guarantee is weaker."""
    yield from _durability(client)
    yield from _eviction(client)
    yield from _replication(client)
    yield from _memory(client, prefix)


def _config(client: redis.Redis, name: str) -> str | None:
    try:
        found: Mapping[Any, Any] = client.config_get(name)
    except redis.ResponseError:  # many that are rented do not tell
        return None
    return found.get(name)


def _durability(client: redis.Redis) -> Iterator[Finding]:
    sync = _config(client, "appendfsync")
    advice = "set appendonly yes and appendfsync always, or declare at-least-once"
    if not client.info("persistence").get("aof_enabled"):
        yield (
            "error",
            "Redis keeps no append-only file: a crash loses what was acknowledged since the last dump",
            advice,
        )
    elif sync is None:
        yield "error", "Redis does not show its appendfsync: a crash may lose the last second", advice
    elif sync != "always":
        yield "error", f"appendfsync is {sync}: a crash may lose what was acknowledged in the last second", advice
    else:
        yield "ok", "what Redis acknowledges is on its disk (appendfsync always)", ""


def _eviction(client: redis.Redis) -> Iterator[Finding]:
    policy = client.info("memory").get("maxmemory_policy")
    if policy == "noeviction":
        yield "ok", "Redis removes nothing by itself (noeviction)", ""
    else:
        what = f"maxmemory-policy is {policy}: Redis may remove what an inbox must remember"
        yield "error", what, "set maxmemory-policy noeviction"


def _replication(client: redis.Redis) -> Iterator[Finding]:
    info = client.info("replication")
    if info["role"] != "master":
        yield "error", "this Redis is a replica, which accepts no writes", "name the primary in the address"
    elif replicas := info.get("connected_slaves"):
        what = (
            f"Redis has {count(replicas, 'replica')}, and what is acknowledged is copied later: a failover may lose "
            "what was acknowledged"
        )
        yield "error", what, "keep failover by hand, or declare at-least-once"


def _memory(client: redis.Redis, prefix: str) -> Iterator[Finding]:
    kept = int(client.hlen(f"{prefix}ledger"))
    if not kept:
        return
    used = sum(int(client.memory_usage(f"{prefix}{name}", samples=50) or 0) for name in TABLES)
    what = f"{count(kept, 'message')} kept, about {used // kept:,} bytes of memory each ({used / 1e6:,.1f} MB)"
    yield "ok", what, ""
