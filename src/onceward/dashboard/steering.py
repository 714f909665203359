"""What a person stops, lets go on, corrects or retires: seen before, with a reason, and told afterwards."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from onceward.admin.decisions import Paused
from onceward.dashboard import asked
from onceward.dashboard.actions import Fields, actor_of, one_of, reason_of
from onceward.dashboard.view import View
from onceward.domain import payload
from onceward.errors import InvalidMessage

if TYPE_CHECKING:
    from starlette.responses import Response

KINDS = ("type", "consumer", "source", "destination", "everything")


async def pause(view: View, fields: Fields) -> Response:
    """Stop something until it is let go on."""
    what, said = _what(fields), {"reason": reason_of(fields), "actor": actor_of(view)}
    done = await view.admin.apause(**said, **what)
    return await _told(view, "paused" if done else "left alone", what, "" if done else "It is paused already")


async def resume(view: View, fields: Fields) -> Response:
    """Let it go on."""
    what, said = _what(fields), {"reason": reason_of(fields), "actor": actor_of(view)}
    done = await view.admin.aresume(**said, **what)
    return await _told(view, "resumed" if done else "left alone", what, "" if done else "It is not paused")


def _what(fields: Fields) -> Paused:
    """What a form names."""
    kind, name = one_of(fields, "kind"), one_of(fields, "name")
    if kind not in KINDS:
        raise asked.refuse(f"what is paused is one of {', '.join(KINDS)}")
    if kind == "everything":
        if name:
            raise asked.refuse("everything has no name: leave it empty, or choose what the name is of")
        return {"everything": True}
    if not name or len(name) > asked.LONGEST_TEXT:
        raise asked.refuse(f"name the {kind}, in at most {asked.LONGEST_TEXT} characters")
    return {kind: name}  # type: ignore[misc] # one of its keys


async def _told(view: View, past: str, what: Paused, why: str) -> Response:
    view.watch.forget()
    ((kind, name),) = what.items()
    subject = kind if name is True else f"{kind} {name}"
    return await view.page("told.html", title=past.capitalize(), past=past, subject=subject, why=why, back="pauses")


async def edit(view: View, fields: Fields) -> Response:
    """Show the body of a message, then what a corrected one changes, then put it in its place."""
    seq, step = asked.number(view.request.path_params["seq"], "the message"), one_of(fields, "step")
    detail = await view.admin.amessage(seq)
    if detail is None or detail.body is None:
        raise asked.refuse(f"there is no message with number {seq}, or its body is gone", 404)
    if step == "begin":
        await view.admin.arecord_reading(seq, actor=actor_of(view), reason="payload, to edit it in the dashboard")
        return await _editing(view, seq, _text(seq, detail.body), None)
    text = fields.get("body", [""])[0]
    body = _body(text)
    if step == "apply":
        said: dict[str, Any] = {"reason": reason_of(fields), "actor": actor_of(view)}
        done = await view.admin.aedit(seq, body=body, out_of_order=bool(one_of(fields, "out_of_order")), **said)
        view.watch.forget()
        why = "" if done else "It is neither dead nor retrying any more"
        past = "edited" if done else "left alone"
        return await view.page(
            "told.html", title=past.capitalize(), past=past, subject=f"message {seq}", why=why, back=f"messages/{seq}"
        )
    return await _editing(view, seq, text, await view.admin.arevision(seq, body=body))


def _text(seq: int, body: bytes) -> str:
    """A body as it can be typed: JSON laid out, other text as it is."""
    try:
        text = json.dumps(payload.decode(body), indent=2, ensure_ascii=False)
    except InvalidMessage:
        text = body.decode(errors="replace")
        if text.encode() != body:
            raise asked.refuse(f"its body is not text: onceward edit MODULE:ATTR {seq} takes a file", 409) from None
    if len(text.encode()) > asked.LARGEST_FORM // 2:
        raise asked.refuse(f"its body is too long for a form: onceward edit MODULE:ATTR {seq} takes a file", 409)
    return text


def _body(text: str) -> bytes:
    """What was typed, as bytes: JSON as this program writes it, anything else with line ends as they usually are."""
    try:
        return payload.encode(payload.decode(text.encode()))
    except InvalidMessage:
        return text.replace("\r\n", "\n").encode()


async def _editing(view: View, seq: int, text: str, revision: Any) -> Response:
    return await view.page("edit.html", title=f"Edit message {seq}", seq=seq, text=text, revision=revision)


async def unsubscription(view: View) -> Response:
    """What a consumer is subscribed to, before it is retired."""
    consumer, kind = asked.text(view.request, "consumer") or "", asked.text(view.request, "type")
    subscribed = await view.admin.asubscriptions(consumer, kind) if consumer else []
    found = [one for one in subscribed if not one.retired]
    return await view.page("unsubscribe.html", title="Unsubscribe", consumer=consumer, type=kind, found=found)


async def unsubscribe(view: View, fields: Fields) -> Response:
    """Retire a consumer, or its subscription to a type."""
    consumer, kind = one_of(fields, "consumer"), one_of(fields, "type") or None
    said = {"reason": reason_of(fields), "actor": actor_of(view)}
    number = await view.admin.aunsubscribe(consumer, kind, discard=bool(one_of(fields, "discard")), **said)
    view.watch.forget()
    subject, why = f"{consumer}{f' from {kind}' if kind else ''}", f"{number} of its messages were discarded"
    return await view.page(
        "told.html",
        title="Unsubscribed",
        past="unsubscribed",
        subject=subject,
        why=why if number else "",
        back="handlers",
    )
