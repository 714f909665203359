"""What an operator changes: seen before, with a reason, and shown afterwards.

Invariant: what is changed is what was shown: the preview carries the numbers of the messages themselves
(`admin/decisions.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, get_args

from onceward.admin.decisions import ACTIONS, ActionName, selected_by
from onceward.dashboard import asked, pages, shown
from onceward.dashboard.view import View
from onceward.stores.moves.operations import Resolution

if TYPE_CHECKING:
    from starlette.responses import Response

AT_ONCE = 1000
"""A preview is about so many messages at most; what is beyond them comes next time."""
RESOLUTIONS: tuple[Resolution, ...] = get_args(Resolution)
LONGEST_REASON = 500

Fields = Mapping[str, list[str]]


async def preview(view: View) -> Response:
    """What would be changed: by number, or all of a status that match; the status an action is for, if none is said."""
    verb = _verb(view.request.query_params.get("verb", ""))
    seqs = [asked.number(value, "seq") for value in view.request.query_params.getlist("seq")[:AT_ONCE]]
    filters = asked.filters(view.request)
    status = filters.pop("status") or selected_by(verb)
    if status not in ACTIONS[verb].selects:
        raise asked.refuse(f"{verb} is for messages that are {', '.join(ACTIONS[verb].selects)}, not {status}")
    if seqs:
        found = await view.admin.aselect(*seqs)
    else:
        found = await view.admin.aselect(limit=AT_ONCE, status=status, **filters)
    return await view.page(
        "preview.html",
        title=f"{shown.verb(verb)} {len(found.seqs)}",
        verb=verb,
        selected=status,
        meaning=ACTIONS[verb].meaning,
        seqs=found.seqs,
        kinds=found.kinds.most_common(20),
        more=found.more,
        most=AT_ONCE,
    )


async def act(view: View, fields: Fields) -> Response:
    """Do what was previewed."""
    verb, reason = _verb(one_of(fields, "verb")), reason_of(fields)
    seqs = [asked.number(value, "seq") for value in one_of(fields, "seqs").split(",") if value]
    if len(seqs) > AT_ONCE:
        raise asked.refuse(f"at most {AT_ONCE} messages at once")
    out_of_order = bool(one_of(fields, "out_of_order"))
    done = await view.admin.aapply(verb, seqs, reason=reason, actor=actor_of(view), out_of_order=out_of_order)
    past = ACTIONS[verb].past
    left = list(done.left.items())
    return await _acted(view, past, done.changed, left, back="dead")


async def resolve(view: View, fields: Fields) -> Response:
    """Decide about mismatches: each in a commit of its own."""
    cases = [asked.number(value, "the mismatch") for value in _some(fields, "case")]
    wanted, reason = one_of(fields, "resolution"), reason_of(fields)
    resolution = next((one for one in RESOLUTIONS if one == wanted), None)
    if resolution is None:
        raise asked.refuse(f"a mismatch is decided as one of {', '.join(RESOLUTIONS)}")
    changed: list[int] = []
    left: list[tuple[int, str]] = []
    for case in cases:
        seq = await view.admin.aresolve(case, resolution, reason=reason, actor=actor_of(view))
        if seq is None:
            left.append((0, f"mismatch {case} is not open any more"))
        else:
            changed.append(seq)
    return await _acted(view, "decided", changed, left, back="quarantine")


async def settle(view: View, fields: Fields) -> Response:
    """Record what became of external calls: each in a commit of its own."""
    calls = [one.partition(":")[::2] for one in _some(fields, "call")]
    happened = {"happened": True, "did-not-happen": False}.get(one_of(fields, "outcome"))
    if happened is None:
        raise asked.refuse("choose whether the call happened")
    try:
        result = json.loads(one_of(fields, "result") or "null")
    except ValueError:
        raise asked.refuse("the result is not JSON") from None
    said = {"happened": happened, "result": result, "reason": reason_of(fields), "actor": actor_of(view)}
    changed: list[int] = []
    left: list[tuple[int, str]] = []
    for number, name in calls:
        seq = asked.number(number, "call")
        try:
            settled = await view.admin.asettle_effect(seq, name, **said)
        except LookupError as error:
            raise asked.refuse(str(error.args[0]), 404) from None
        if settled:
            changed.append(seq)
        else:
            left.append((seq, "its outcome is known already, or the message runs right now"))
    return await _acted(view, "recorded", changed, left, back="effects")


async def dry_run(view: View, fields: Fields) -> Response:
    """Run the handler of a message, show what it does, undo it."""
    seq = asked.number(one_of(fields, "seq"), "seq")
    await view.admin.arecord_reading(seq, actor=actor_of(view), reason="a dry run of its handler, in the dashboard")
    try:
        report = await view.admin.adry_run(seq)
    except LookupError as error:
        raise asked.refuse(str(error.args[0]), 404) from None
    return await view.page("dry_run.html", title=f"Dry run of message {seq}", report=report)


async def payload(view: View, _: Fields) -> Response:
    """Show a message with its payload; the audit records who saw it, before the payload is shown."""
    seq = asked.number(view.request.path_params["seq"], "the message")
    await view.admin.arecord_reading(seq, actor=actor_of(view), reason="payload, in the dashboard")
    return await pages.message(view, revealed=True)


async def case_payload(view: View, _: Fields) -> Response:
    """The same for both bodies of a mismatch."""
    found = await pages.open_case(view)
    await view.admin.arecord_reading(
        found.seq, actor=actor_of(view), reason=f"both bodies of mismatch {found.case}, in the dashboard"
    )
    return await pages.case(view, revealed=True)


async def _acted(view: View, past: str, changed: list[int], left: list[tuple[int, str]], *, back: str) -> Response:
    """What was changed, and what was left alone and why; the numbers beside the pages are asked for anew."""
    view.watch.forget()
    return await view.page("acted.html", title=past.capitalize(), past=past, changed=changed, left=left, back=back)


def _verb(word: str) -> ActionName:
    verb = next((name for name in ACTIONS if name == word), None)
    if verb is None:
        raise asked.refuse(f"there is no action {word!r:.40}")
    return verb


def one_of(fields: Fields, name: str) -> str:
    """A field of a form."""
    return fields.get(name, [""])[0].strip()


def _some(fields: Fields, name: str) -> list[str]:
    """What was chosen: at least one, each once."""
    chosen = list(dict.fromkeys(value.strip() for value in fields.get(name, ())))
    if not chosen or len(chosen) > AT_ONCE:
        raise asked.refuse(f"choose at least one, and at most {AT_ONCE} at once")
    return chosen


def reason_of(fields: Fields) -> str:
    """Why, which every change needs."""
    reason = one_of(fields, "reason")
    if not reason or len(reason) > LONGEST_REASON:
        raise asked.refuse(f"give a reason of at most {LONGEST_REASON} characters: it is kept in the audit")
    return reason


def actor_of(view: View) -> str:
    """Who acts."""
    assert view.person is not None  # noqa: S101 - an action has a person
    return view.person.name
