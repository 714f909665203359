"""What a person changes: seen before, with a reason, and told afterwards.

Invariant: what is changed is what was shown. The preview carries the numbers of the messages themselves, and the guards
of the inbox decide for each whether it is still so; whoever comes second changes nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_args

from onceward.dashboard import asked, pages
from onceward.dashboard.view import View
from onceward.errors import ConfigurationError
from onceward.steps.operate import Resolution

if TYPE_CHECKING:
    from starlette.responses import Response

AT_ONCE = 1000
"""A preview is about so many messages at most; what is beyond them comes next time."""
MEANINGS = {
    "redrive": "They run again, with a new budget; their history stays.",
    "release": "Their keys go on without them; they stay dead.",
    "discard": "They never run, and later copies of them are duplicates. This cannot be undone.",
}
PAST = {"redrive": "redriven", "release": "released", "discard": "discarded"}
RESOLUTIONS: tuple[Resolution, ...] = get_args(Resolution)
LONGEST_REASON = 500

Fields = Mapping[str, list[str]]


def preview(view: View) -> Response:
    """What would be changed: by number, or the dead that match."""
    verb = _verb(view.request.query_params.get("verb", ""))
    seqs = [asked.number(value, "seq") for value in view.request.query_params.getlist("seq")[:AT_ONCE]]
    if seqs:
        rows = [story for seq in seqs if (story := view.admin.message(seq))]
        kinds = Counter((story.type or "", story.source, story.consumer) for story in rows)
        chosen = [story.seq for story in rows]
        more = False
    else:
        filters = asked.filters(view.request) | {"status": "dead"}
        found = view.admin.messages(**filters, limit=AT_ONCE + 1)
        more = len(found) > AT_ONCE
        chosen = [row.seq for row in found[:AT_ONCE]]
        kinds = Counter((row.type, row.source, row.consumer) for row in found[:AT_ONCE])
    return view.page(
        "preview.html",
        title=f"{verb.capitalize()} {len(chosen)}",
        verb=verb,
        meaning=MEANINGS[verb],
        seqs=sorted(chosen),
        kinds=kinds.most_common(20),
        more=more,
        most=AT_ONCE,
    )


def act(view: View, fields: Fields) -> Response:
    """Do what was previewed."""
    verb, reason = _verb(_one(fields, "verb")), _reason(fields)
    seqs = [asked.number(value, "seq") for value in _one(fields, "seqs").split(",") if value]
    if len(seqs) > AT_ONCE:
        raise asked.refuse(f"at most {AT_ONCE} messages at once")
    who: dict[str, Any] = {"reason": reason, "actor": _actor(view)}
    if verb == "redrive":
        who["out_of_order"] = bool(_one(fields, "out_of_order"))
    admin = view.admin
    change = {"redrive": admin.redrive, "release": admin.unblock, "discard": admin.discard}[verb]
    changed, left = [], []
    for seq in seqs:
        try:
            if change(seq, **who):
                changed.append(seq)
            else:
                story = admin.message(seq)
                left.append((seq, f"it is {story.status}" if story else "there is no such message"))
        except ConfigurationError as refused:
            left.append((seq, str(refused)))
    return view.page("acted.html", title=PAST[verb].capitalize(), past=PAST[verb], changed=changed, left=left)


def resolve(view: View, fields: Fields) -> Response:
    """Decide about a case of quarantine."""
    case, wanted = asked.number(_one(fields, "case"), "case"), _one(fields, "resolution")
    resolution = next((one for one in RESOLUTIONS if one == wanted), None)
    if resolution is None:
        raise asked.refuse(f"a case is decided as one of {', '.join(RESOLUTIONS)}")
    seq = view.admin.resolve(case, resolution, reason=_reason(fields), actor=_actor(view))
    left = [] if seq else [(case, "the case is not open any more")]
    return view.page("acted.html", title="Decided", past="decided", changed=[seq] if seq else [], left=left)


def settle(view: View, fields: Fields) -> Response:
    """Say what became of an external call."""
    seq, name = asked.number(_one(fields, "seq"), "seq"), _one(fields, "name")
    happened = {"happened": True, "did-not-happen": False}.get(_one(fields, "outcome"))
    if happened is None:
        raise asked.refuse("say whether the call happened")
    try:
        result = json.loads(_one(fields, "result") or "null")
    except ValueError:
        raise asked.refuse("the result is not JSON") from None
    who = {"reason": _reason(fields), "actor": _actor(view)}
    try:
        settled = view.admin.settle_effect(seq, name, happened=happened, result=result, **who)
    except LookupError as error:
        raise asked.refuse(str(error.args[0]), 404) from None
    left = [] if settled else [(seq, "its outcome is known already, or the message runs right now")]
    return view.page("acted.html", title="Settled", past="settled", changed=[seq] if settled else [], left=left)


def try_message(view: View, fields: Fields) -> Response:
    """Run the handler of a message, show what it does, undo it."""
    seq = asked.number(_one(fields, "seq"), "seq")
    view.admin.note_reading(seq, actor=_actor(view), reason="a trial of its handler, in the dashboard")
    try:
        trial = view.admin.dry_run(seq)
    except LookupError as error:
        raise asked.refuse(str(error.args[0]), 404) from None
    return view.page("trial.html", title=f"Trial of message {seq}", trial=trial)


def payload(view: View, _: Fields) -> Response:
    """Show a message with its payload; the audit says who saw it, before anybody does."""
    seq = asked.number(view.request.path_params["seq"], "the message")
    view.admin.note_reading(seq, actor=_actor(view), reason="payload, in the dashboard")
    return pages.message(view, revealed=True)


def case_payload(view: View, _: Fields) -> Response:
    """The same for both bodies of a case."""
    found = pages.open_case(view)
    view.admin.note_reading(found.seq, actor=_actor(view), reason=f"both bodies of case {found.case}, in the dashboard")
    return pages.case(view, revealed=True)


def _verb(word: str) -> str:
    if word not in MEANINGS:
        raise asked.refuse(f"there is no action {word!r:.40}")
    return word


def _one(fields: Fields, name: str) -> str:
    return fields.get(name, [""])[0].strip()


def _reason(fields: Fields) -> str:
    reason = _one(fields, "reason")
    if not reason or len(reason) > LONGEST_REASON:
        raise asked.refuse(f"say why, in at most {LONGEST_REASON} characters: it is kept in the audit")
    return reason


def _actor(view: View) -> str:
    assert view.person is not None  # noqa: S101 - an action has a person
    return view.person.name
