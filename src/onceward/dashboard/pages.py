"""The pages that show. Each asks the read side of the inbox and hands what it gets to a template."""

from __future__ import annotations

from urllib.parse import urlencode

from starlette.responses import JSONResponse, RedirectResponse, Response

from onceward.admin.messages import STATUSES, Mismatch
from onceward.dashboard import asked
from onceward.dashboard.view import View
from onceward.errors import ConfigurationError
from onceward.stores.migrate import masked

CASES = 50


def overview(view: View) -> Response:
    """Numbers, plots, and what needs a person."""
    stats = view.admin.stats()
    groups = view.admin.dead_groups(limit=5) if stats.dead or stats.outbox_dead else []
    return view.page("overview.html", title="Overview", stats=stats, groups=groups, where=_where(view))


def _where(view: View) -> str:
    """Which database, without the folders of this machine."""
    url = masked(view.inbox.url)
    return f"SQLite, {url.rpartition('/')[2] or 'in memory'}" if url.startswith("sqlite") else url


def live(view: View) -> Response:
    """What the plots draw."""
    return JSONResponse(view.samples.asked())


def messages(view: View) -> Response:
    """A list with filters, page by page."""
    chosen, before = asked.filters(view.request), asked.before(view.request)
    if chosen["key"] is not None and not view.may_read:
        raise asked.refuse("looking for a key needs the role reader", 403)
    rows = view.admin.messages(**chosen, before=before, limit=asked.PAGE)
    kept = [(name, value) for name, value in view.request.query_params.items() if name != "before" and value]
    older = urlencode([*kept, ("before", str(rows[-1].seq))]) if len(rows) == asked.PAGE else ""
    return view.page(
        "messages.html",
        title="Outgoing messages" if chosen["outgoing"] else "Messages",
        rows=rows,
        chosen={name: view.request.query_params.get(name, "") for name in asked.NAMES},
        query=urlencode(kept),
        older=older,
        newest=urlencode(kept) if before else "",
        statuses=STATUSES,
        spans=list(asked.SPANS),
    )


def search(view: View) -> Response:
    """By number, by id, else by key."""
    sought = asked.text(view.request, "q")
    if sought is None:
        return RedirectResponse(f"{view.root}/messages", status_code=303)
    is_number = sought.isascii() and sought.isdigit() and len(sought) < len(str(asked.LARGEST))
    if is_number and view.admin.message(int(sought)):
        return RedirectResponse(f"{view.root}/messages/{int(sought)}", status_code=303)
    found = view.admin.find_anywhere(sought)
    if len(found) == 1:
        return RedirectResponse(f"{view.root}/messages/{found[0]}", status_code=303)
    if not found and view.may_read:
        return RedirectResponse(f"{view.root}/messages?{urlencode({'key': sought})}", status_code=303)
    stories = [story for seq in found if (story := view.admin.message(seq))]
    return view.page("found.html", title="Messages with this id", sought=sought, stories=stories)


def message(view: View, *, revealed: bool = False) -> Response:
    """One message's story; its payload stays masked until it is asked for."""
    seq = asked.number(view.request.path_params["seq"], "the message")
    told = view.admin.explain(seq)
    if told is None:
        raise asked.refuse(f"there is no message with number {seq}", 404)
    story = told.story
    can_try = story.type is not None and view.inbox.context.registry.of_type(story.consumer, story.type) is not None
    return view.page("message.html", title=f"Message {seq}", told=told, story=story, revealed=revealed, can_try=can_try)


def dead(view: View) -> Response:
    """Dead messages by how they failed."""
    return view.page("dead.html", title="Dead letters", groups=view.admin.dead_groups(), stats=view.admin.stats())


def quarantine(view: View) -> Response:
    """Ids that came again with other bytes."""
    return view.page("quarantine.html", title="Quarantine", cases=view.admin.quarantine(limit=CASES))


def case(view: View, *, revealed: bool = False) -> Response:
    """One case, with the fields that differ; their values stay masked until they are asked for."""
    found = open_case(view)
    return view.page("case.html", title=f"Case {found.case}", case=found, revealed=revealed)


def open_case(view: View) -> Mismatch:
    """The case that a path names."""
    number = asked.number(view.request.path_params["case"], "the case")
    found: Mismatch | None = next((one for one in view.admin.quarantine(limit=10_000) if one.case == number), None)
    if found is None:
        raise asked.refuse(f"case {number} is not open; perhaps somebody has decided it", 404)
    return found


def keys(view: View) -> Response:
    """Keys that a dead message holds."""
    return view.page("keys.html", title="Blocked keys", blocked=view.admin.blocked_keys())


def effects(view: View) -> Response:
    """External calls whose outcome nobody knows."""
    return view.page("effects.html", title="Open calls", effects=view.admin.effects())


def workers(view: View) -> Response:
    """Who runs, and what."""
    return view.page("workers.html", title="Workers", workers=view.admin.workers(), running=view.admin.running())


def outbox(view: View) -> Response:
    """What goes out."""
    before = asked.before(view.request)
    rows = view.admin.messages(outgoing=True, before=before, limit=asked.PAGE)
    older = rows[-1].seq if len(rows) == asked.PAGE else None
    return view.page("outbox.html", title="Outbox", rows=rows, stats=view.admin.stats(), older=older)


def sources(view: View) -> Response:
    """Who sends."""
    kept = view.inbox.settings.dedupe_retention
    return view.page("sources.html", title="Sources", sources=view.admin.sources(), kept=kept)


def storage(view: View) -> Response:
    """How much is kept, and for how long."""
    return view.page("storage.html", title="Storage", storage=view.admin.storage(), settings=view.inbox.settings)


def metrics(view: View) -> Response:
    """The numbers, for Prometheus."""
    try:
        from onceward.observability.prometheus import exposition  # noqa: PLC0415 - its package is an extra
    except ConfigurationError as error:
        raise asked.refuse(str(error), 404) from None
    return Response(exposition(view.inbox), media_type="text/plain; version=0.0.4; charset=utf-8")


def audit(view: View) -> Response:
    """What people did."""
    before = asked.before(view.request)
    lines = view.admin.audit(before=before, limit=asked.PAGE)
    older = lines[-1].id if len(lines) == asked.PAGE else None
    return view.page("audit.html", title="Audit", lines=lines, older=older)
