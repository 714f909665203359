"""What operators do to messages: select, see, apply. Python, the command line and the dashboard all decide here.

Invariant: what is changed is what was selected. A selection is numbers of messages, and the guard of each move decides
whether a message is still what it was; of two operators the second changes nothing. Each change is one commit, with its
line in the audit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypedDict, get_args

from onceward.admin import messages as reports
from onceward.domain import checks
from onceward.domain.pauses import PauseKind
from onceward.errors import ConfigurationError, SchemaMissing, SchemaOutdated
from onceward.flow import Flow
from onceward.runtime.runner import perform
from onceward.steps import operate
from onceward.steps.context import Context
from onceward.stores.protocol import Store

ActionName = Literal["redrive", "unblock", "discard", "cancel", "hasten", "retry-now", "interrupt"]
Kind = tuple[str, str, str]
"""Type, source and consumer."""
PAGE = 500
FILTERS = ("type", "key", "source", "since", "until", "fingerprint", "outgoing")
"""What selects messages, as `messages` takes it."""


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that an operator can do to messages."""

    step: Callable[..., Flow[bool]]
    past: str
    meaning: str
    selects: tuple[str, ...] = ("dead",)
    """The statuses of the messages that it is for, and that filters may select; without a word, the first."""
    unless: str = ""
    """Why one of these statuses may be left alone all the same."""


ACTIONS: Mapping[ActionName, Action] = {
    "redrive": Action(operate.redrive, "redriven", "They run again, with a new budget; their history stays."),
    "unblock": Action(operate.unblock, "unblocked", "Their keys go on without them; they stay dead."),
    "discard": Action(
        operate.discard,
        "discarded",
        "They never run, and later copies of them are duplicates. This cannot be undone.",
        ("dead", "retrying", "scheduled", "waiting", "unhandled", "due"),
        unless="an earlier number of its key is not finished; discard that one first",
    ),
    "cancel": Action(
        operate.cancel,
        "cancelled",
        "Those that are still scheduled never run, and later copies of them are duplicates. This cannot be undone.",
        ("scheduled",),
    ),
    "hasten": Action(
        operate.hasten, "made due", "Those that are scheduled, or wait for another try, run now.", ("scheduled",)
    ),
    "retry-now": Action(
        operate.hasten, "made due", "Those that wait for another try run now; their attempts stay.", ("retrying",)
    ),
    "interrupt": Action(
        operate.interrupt,
        "interrupted",
        "Those that run are taken from their workers: nothing of them is committed, and they are dead.",
        ("running",),
    ),
}
NAMES: tuple[ActionName, ...] = get_args(ActionName)
SELECTED = tuple(dict.fromkeys(status for action in ACTIONS.values() for status in action.selects))
"""Messages of which status are selected by filters."""


def selected_by(action: ActionName) -> str:
    """The status of the messages that filters select for an action, where no other is asked for."""
    return ACTIONS[action].selects[0]


@dataclass(frozen=True, slots=True)
class Selection:
    """Messages that something may be done to."""

    seqs: tuple[int, ...]
    kinds: Counter[Kind]
    """How many there are of each type, source and consumer."""
    more: bool = False
    """There are more than were asked for; these are the newest."""


@dataclass(slots=True)
class Applied:
    """What became of a selection."""

    changed: list[int] = field(default_factory=list)
    left: dict[int, str] = field(default_factory=dict)
    """What was left alone, and why;"""
    refused: list[int] = field(default_factory=list)
    """and which of these because the action would do harm, not because they were dealt with already."""


class Paused(TypedDict, total=False):
    """What is paused, or goes on: one of these."""

    type: str
    consumer: str
    source: str
    destination: str
    everything: bool


def paused(where: str, what: Paused) -> tuple[PauseKind, str]:
    """What an operator has named, as kind and name."""
    checks.no_others(where, what, Paused.__annotations__)
    if len(what) != 1:
        raise ConfigurationError(f"{where}: name one of type=, consumer=, source=, destination=, or everything=True")
    ((kind, name),) = what.items()
    if kind != "everything":
        return kind, checks.text(where, kind, name)  # type: ignore[return-value] # one of its keys
    if name is not True:
        checks.refuse(where, "everything", name, "True; name type=, consumer=, source= or destination= for less")
    return "everything", ""


def numbered(context: Context, store: Store, seqs: Iterable[int]) -> Selection:
    """Messages by their numbers. A number that no message has stays in the selection: applying it says so."""
    seqs = tuple(dict.fromkeys(seqs))
    found = (perform(store, partial(reports.detail, context, seq)) for seq in seqs)
    return Selection(seqs, Counter((one.type or "", one.source, one.consumer) for one in found if one))


def matching(context: Context, store: Store, filters: Mapping[str, Any], limit: int | None) -> Selection:
    """The messages that match."""
    seqs: list[int] = []
    kinds: Counter[Kind] = Counter()
    for row in _matching(context, store, filters):
        if len(seqs) == limit:
            return Selection(tuple(sorted(seqs)), kinds, more=True)
        seqs.append(row.seq)
        kinds[row.type, row.source, row.consumer] += 1
    return Selection(tuple(sorted(seqs)), kinds)


def _matching(context: Context, store: Store, filters: Mapping[str, Any]) -> Iterator[reports.Row]:
    before: int | None = None
    step = partial(reports.messages, context, limit=PAGE, **filters)
    while page := perform(store, partial(step, before=before)):
        yield from page
        before = page[-1].seq


def apply(
    context: Context, store: Store, action: Action, step: Callable[[int], Flow[bool]], seqs: Iterable[int]
) -> Applied:
    """Change one message after the other; an error of the database ends it, and what was changed until then stays."""
    applied = Applied()
    for seq in seqs:
        try:
            if perform(store, partial(step, seq)):
                applied.changed.append(seq)
            else:
                detail = perform(store, partial(reports.detail, context, seq))
                applied.left[seq] = _why(action, detail.status) if detail else "there is no such message"
        except (SchemaMissing, SchemaOutdated):
            raise  # that is not one message's matter
        except ConfigurationError as refused:
            applied.left[seq] = str(refused)
            applied.refused.append(seq)
    store.notify()
    return applied


def _why(action: Action, status: str) -> str:
    """Why a message was left alone."""
    if status == "running":
        return "it is running; onceward interrupt takes it from its worker"
    return f"it is {status}, and {action.unless}" if action.unless and status in action.selects else f"it is {status}"


def possible(status: str) -> list[ActionName]:
    """What may be done to a message of a status."""
    return [name for name, action in ACTIONS.items() if status in action.selects]


def check_status(where: str, action: ActionName, status: str | None) -> str:
    """The status of the messages that filters select for an action: as asked for, or the usual one."""
    return selected_by(action) if status is None else checks.one_of(where, "status", status, ACTIONS[action].selects)


def check_select(
    seqs: Sequence[int], message_id: str | None, limit: int | None, status: str, filters: Mapping[str, Any]
) -> dict[str, Any]:
    """Check what `select` was given; returns by what messages are selected, where they are not named."""
    where, named = "select()", {} if message_id is None else {"id": message_id}
    check_choice(where, seqs, {**filters, **named}, (*FILTERS, "id", "limit"))
    checks.one_of(where, "status", status, SELECTED)
    if limit is not None:
        checks.whole(where, "limit", limit)
    if message_id is not None and filters.keys() != {"source"}:
        raise ConfigurationError(f"{where}: id= goes with source=, and with nothing else")
    return {**filters, "status": status}


def check_choice(where: str, seqs: Sequence[int], filters: Mapping[str, Any], allowed: Collection[str]) -> None:
    """Check how messages are chosen: by number, or by filters."""
    checks.no_others(where, filters, allowed)
    for seq in seqs:
        checks.whole(where, "seq", seq, least=0)
    if seqs and filters:
        both = f"{', '.join(map(str, seqs))} and {', '.join(f'{name}=' for name in filters)}"
        raise ConfigurationError(f"{where}: name messages or filters, not both: {both}")
    check_filters(where, filters)


def check_filters(where: str, filters: Mapping[str, Any]) -> None:
    """Check the values of filters."""
    for name, given in filters.items():
        if given is None:
            continue
        if name in ("since", "until"):
            checks.moment(where, name, given)
        elif name == "before":
            checks.whole(where, name, given, least=0)
        elif name == "outgoing":
            checks.flag(where, name, given)
        else:
            checks.text(where, name, given, empty=True)
