"""Who there is in a history, what may go wrong, and what every other history is about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

SERVICE = "svc"
OTHER = "other"
BILLING = "billing"
"""Another service on the same tables."""
THIRD = "third"
OUT, ELSEWHERE, HANGING = "out", "elsewhere", "hanging"
"""Destinations of outgoing messages; one of them takes for ever while there are faults."""


@dataclass(slots=True)
class Faults:
    """How often things go wrong, per request or per step; zero where this history has none of the kind."""

    cut_before: float = 0.0
    cut_after: float = 0.0
    conflict: float = 0.0
    commit_lost: float = 0.0
    crash: float = 0.0
    stop_resume: float = 0.0
    shutdown: float = 0.0
    cancel: float = 0.0
    clock_jump: float = 0.0
    away: float = 0.0
    effect_lost: float = 0.0
    """The connection is lost between an external call and its record."""
    publish_crash: float = 0.0
    """The process dies between a publication and its finish."""
    operators: float = 0.0
    sink_away: float = 0.15
    """A destination refuses a message."""
    failover: float = 0.0
    """A standby that lags becomes the database."""


@dataclass(frozen=True, slots=True)
class Theme:
    """What every other history is about, so that rare states are reached in a short run too."""

    kinds: tuple[str, ...] = ()
    """Only these kinds of messages are drawn from; empty: all."""
    faults: Mapping[str, float] = field(default_factory=dict)
    """Rates of faults that are set instead of drawn."""
    trouble: bool = False
    """Messages fail and kill more often."""
    twins: float = 0.1
    """How many ids come with other bytes too."""
    inline: float = 0.3
    """How many messages are handled where they are received, if that can be."""
    copies: int = 0
    """So many more copies of each message."""
    deploying: bool = False
    """Programs that handle something new start all the time."""
    destinations: tuple[str, ...] = (OUT,)
    """Where outgoing messages go."""
    services: tuple[str, ...] = (SERVICE,)
    """So many services share the tables; with several of them clients send requests, and programs messages."""
    spool: bool = False
    """What cannot be stored waits in a file, and is drained from there."""
    joins: bool = False
    """Messages come inside transactions of programs' own, too."""
    delays: float = 0.0
    """How many messages come with a time."""
    forgetful: bool = False
    """What is finished is soon forgotten, and its copies come all the time."""


PLAIN = Theme()
BUSY = 0.2
"""Operators who do something all the time."""
DEPLOYING = Theme(("latest", "handed", "growing"), {"shutdown": 0.01, "crash": 0.0, "operators": 0.0}, deploying=True)
VERSIONS = Theme(
    ("versioned", "revised"),
    {"shutdown": 0.004, "crash": 0.0, "stop_resume": 0.0, "clock_jump": 0.0},
    inline=0.0,
    deploying=True,
)
JOINING = Theme(
    ("latest", "growing"),
    {"shutdown": 0.01, "crash": 0.0, "away": 0.0, "operators": 0.0, "clock_jump": 0.0},
    deploying=True,
    joins=True,
)
FAILOVER = Theme(
    ("plain", "growing", "latest", "teller"),
    {"failover": 0.003, "shutdown": 0.01, "crash": 0.003, "operators": 0.0, "clock_jump": 0.0},
    deploying=True,
)
SERVICES = Theme(
    ("late", "shared", "plain"), {"operators": 0.0}, services=(SERVICE, BILLING), destinations=(OUT, ELSEWHERE)
)
HANGING_SINK = Theme(
    ("sender", "teller"),
    dict.fromkeys((field.name for field in fields(Faults)), 0.0),
    destinations=(OUT, ELSEWHERE, HANGING),
)
SPOOLING = Theme(
    ("keyed", "plain", "shared"),
    {"away": 0.6, "cut_before": 0.04, "crash": 0.004},
    copies=1,
    inline=0.0,
    spool=True,
)
SCHEDULED = Theme(
    ("keyed", "single", "shared", "plain"), {"clock_jump": 0.0, "operators": 0.02}, trouble=True, twins=0.0, delays=0.5
)
THEMES = (
    Theme(("caller", "payer"), {"effect_lost": 0.4, "operators": 0.04}),
    Theme(("moving", "tally"), {"operators": BUSY}, trouble=True),
    Theme(("counted", "tally"), {"operators": BUSY, "stop_resume": 0.006}),
    Theme(("plain", "keyed", "single"), {"stop_resume": 0.03, "crash": 0.0, "away": 0.0}, trouble=True),
    Theme(("late", "later"), {"shutdown": 0.01, "crash": 0.0, "operators": 0.02}, twins=0.6),
    Theme(("sender", "teller"), {"publish_crash": 0.3, "operators": BUSY}),
    Theme(("flaky", "batch"), {"operators": 0.02}, trouble=True),
    Theme(("keyed", "single", "plain"), {"cut_after": 0.02}, trouble=True, inline=0.9, copies=3),
    Theme(("plain", "keyed", "flaky"), {"crash": 0.0, "away": 0.0}, trouble=True, inline=0.0),
    Theme(("keyed", "single", "moving"), {"conflict": 0.02, "operators": BUSY}, trouble=True),
    Theme(
        ("plain", "keyed", "shared", "batch"),
        {"clock_jump": 0.0, "operators": 0.04},
        copies=4,
        twins=0.3,
        forgetful=True,
    ),
    SERVICES,
    HANGING_SINK,
    SPOOLING,
    DEPLOYING,
    VERSIONS,
    JOINING,
    FAILOVER,
    SCHEDULED,
)
