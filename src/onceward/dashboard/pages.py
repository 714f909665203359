"""The pages that show. Each asks the read side of the inbox and renders a template with what it gets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from urllib.parse import urlencode

from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from onceward.admin.concerns import Standing
from onceward.admin.decisions import ACTIONS, possible
from onceward.admin.guarantees import MEANINGS
from onceward.admin.history import RANGES
from onceward.admin.messages import SEARCHED, STATUSES, Mismatch, WorkerRow
from onceward.dashboard import asked, charts
from onceward.dashboard.view import View
from onceward.dashboard.watch import Watch
from onceward.errors import ConfigurationError, OncewardError
from onceward.registry import OUTBOX
from onceward.steps.revise import EDITABLE
from onceward.stores.migrate import masked
from onceward.stores.protocol import EVERYTHING, LACKS

CASES = 50


async def overview(view: View) -> Response:
    """How it is, what needs an operator, and what happened."""
    standing, reach = await view.standing(), asked.reach(view.request)
    stats = standing.stats
    groups = await view.admin.adead_groups(limit=5) if stats.dead or stats.outbox_dead else []
    periods = await run_in_threadpool(view.watch.history, reach)
    return await view.page(
        "overview.html",
        title="Overview",
        standing=standing,
        stats=stats,
        groups=groups,
        drawn=charts.drawn([one for one in periods if one.consumer != OUTBOX], reach, due=stats.due),
        by_type=charts.by_type(periods, reach),
        reaches=list(RANGES),
        outside=await view.admin.aeffects_outside(),
        where=_where(view),
        lacks=sorted(LACKS[one] for one in EVERYTHING - view.inbox.store.capabilities),
    )


async def inboxes(view: View) -> Response:
    """How each inbox is; the first page where there are several."""
    found = [
        (name, await run_in_threadpool(_asked, watch), watch.inbox.context) for name, watch in view.watches.items()
    ]
    return await view.page("inboxes.html", title="Inboxes", found=found)


def _asked(watch: Watch) -> Standing | str:
    """How an inbox is, or why that is not known: one that is away hides no other."""
    try:
        return watch.standing(fresh=True)
    except OncewardError as error:
        return str(error).partition("\n")[0]


async def types(view: View) -> Response:
    """What happened to the messages of each type; with plots of the one that is chosen."""
    reach, chosen, consumer = (
        asked.reach(view.request),
        asked.text(view.request, "type"),
        asked.text(view.request, "consumer"),
    )
    periods = await run_in_threadpool(view.watch.history, reach)
    of_type = [one for one in periods if one.type == chosen and consumer in (None, one.consumer)]
    return await view.page(
        "types.html",
        title=chosen or "Types",
        chosen=chosen,
        consumer=consumer,
        reach=reach,
        drawn=charts.drawn(of_type, reach) if chosen else None,
        by_type=charts.by_type(periods, reach),
        reaches=list(RANGES),
        query=urlencode({name: value for name, value in (("type", chosen), ("consumer", consumer)) if value}),
    )


def _where(view: View) -> str:
    """Which database, without the folders of this machine."""
    url = masked(view.inbox.url)
    return f"SQLite, {url.rpartition('/')[2] or 'in memory'}" if url.startswith("sqlite") else url


async def messages(view: View) -> Response:
    """A list with filters, page by page."""
    chosen, before = asked.filters(view.request), asked.before(view.request)
    if chosen["key"] is not None and not view.may_read:
        raise asked.refuse("looking for a key needs the role reader", 403)
    rows = await view.admin.amessages(**chosen, before=before, limit=asked.PAGE)
    kept = [(name, value) for name, value in view.request.query_params.items() if name != "before" and value]
    older = urlencode([*kept, ("before", str(rows[-1].seq))]) if len(rows) == asked.PAGE else ""
    return await view.page(
        "messages.html",
        title="Outgoing messages" if chosen["outgoing"] else "Messages",
        rows=rows,
        chosen={name: view.request.query_params.get(name, "") for name in asked.NAMES},
        query=urlencode(kept),
        older=older,
        newest=urlencode(kept) if before else "",
        statuses=STATUSES,
        verbs=possible(chosen["status"]) if chosen["status"] else list(ACTIONS),
        spans=list(asked.SPANS),
    )


async def search(view: View) -> Response:
    """By number, by id; for those who may read them by key, error and payload, too."""
    sought = asked.text(view.request, "q")
    if sought is None:
        return RedirectResponse(f"{view.root}/messages", status_code=303)
    is_number = sought.isascii() and sought.isdigit() and len(sought) < len(str(asked.LARGEST))
    if is_number and await view.admin.amessage(int(sought)):
        return RedirectResponse(f"{view.root}/messages/{int(sought)}", status_code=303)
    found = await view.admin.afind_anywhere(sought)
    if len(found) == 1:
        return RedirectResponse(f"{view.root}/messages/{found[0]}", status_code=303)
    where: dict[int, str] = {}
    if not found and view.may_read:
        if await view.admin.amessages(key=sought, limit=1) or await view.admin.amessages(
            key=sought, limit=1, outgoing=True
        ):
            return RedirectResponse(f"{view.root}/messages?{urlencode({'key': sought})}", status_code=303)
        where = {hit.seq: hit.place for hit in await view.admin.asearch(sought)}
    details = [detail for seq in found or where if (detail := await view.admin.amessage(seq))]
    return await view.page(
        "found.html",
        title="Messages with this id" if found or not view.may_read else "Messages with this text",
        sought=sought,
        details=details,
        where=where,
        by_id=bool(found) or not view.may_read,
        newest=SEARCHED,
    )


async def message(view: View, *, revealed: bool = False) -> Response:
    """One message in detail; its payload stays masked until it is asked for."""
    seq = asked.number(view.request.path_params["seq"], "the message")
    told = await view.admin.aexplain(seq)
    if told is None:
        raise asked.refuse(f"there is no message with number {seq}", 404)
    detail = told.message
    can_try = detail.type is not None and view.inbox.context.registry.of_type(detail.consumer, detail.type) is not None
    return await view.page(
        "message.html",
        title=f"Message {seq}",
        told=told,
        detail=detail,
        revealed=revealed,
        can_try=can_try,
        verbs=possible(detail.status),
        can_edit=detail.status in EDITABLE and detail.body is not None,
    )


async def dead(view: View) -> Response:
    """Dead messages by how they failed."""
    groups, stats = await view.admin.adead_groups(), await view.admin.astats()
    return await view.page("dead.html", title="Dead letters", groups=groups, stats=stats)


async def quarantine(view: View) -> Response:
    """Ids that came again with other bytes."""
    return await view.page("quarantine.html", title="Quarantine", cases=await view.admin.aquarantine(limit=CASES))


async def case(view: View, *, revealed: bool = False) -> Response:
    """One mismatch, with the fields that differ; their values stay masked until they are asked for."""
    found = await open_case(view)
    return await view.page("case.html", title=f"Mismatch {found.case}", case=found, revealed=revealed)


async def open_case(view: View) -> Mismatch:
    """The mismatch that a path names."""
    number = asked.number(view.request.path_params["case"], "the mismatch")
    cases = await view.admin.aquarantine(limit=10_000)
    found = next((one for one in cases if one.case == number), None)
    if found is None:
        raise asked.refuse(f"mismatch {number} is not open; perhaps it has been decided", 404)
    return found


async def keys(view: View) -> Response:
    """Keys that a dead message holds."""
    return await view.page("keys.html", title="Blocked keys", blocked=await view.admin.ablocked_keys())


async def effects(view: View) -> Response:
    """External calls of unknown outcome."""
    return await view.page("effects.html", title="Open calls", effects=await view.admin.aeffects())


async def handlers(view: View) -> Response:
    """What runs for which type, by which rules, and what is guaranteed."""
    found, workers = await view.admin.ahandlers(), await view.admin.aworkers()
    return await view.page(
        "handlers.html", title="Handlers", handlers=found, processes=_processes(workers), meanings=MEANINGS
    )


def _processes(workers: Sequence[WorkerRow]) -> Counter[tuple[str, str]]:
    """How many processes that are alive handle what."""
    found: Counter[tuple[str, str]] = Counter()
    for worker in workers:
        lines = worker.handles.splitlines() if worker.lease_seconds > 0 else []
        found.update({(parts[0], parts[1]) for line in lines if len(parts := line.split("\t")) > 1})
    return found


async def pauses(view: View) -> Response:
    """What operators have stopped."""
    found = await view.admin.apauses(ended=True)
    now = [one for one in found if one.ended_at is None]
    return await view.page(
        "pauses.html",
        title="Pauses",
        now=now,
        before=[one for one in found if one.ended_at][::-1],
        kind=asked.text(view.request, "kind") or "type",
        name=asked.text(view.request, "name") or "",
    )


async def workers(view: View) -> Response:
    """Who runs, and what."""
    workers, running = await view.admin.aworkers(), await view.admin.arunning()
    return await view.page(
        "workers.html", title="Workers", workers=workers, running=running, run=view.inbox.context.hint("run")
    )


async def polls(view: View) -> Response:
    """The APIs that are asked for messages."""
    return await view.page("polls.html", title="Polls", polls=await view.admin.apolls())


async def outbox(view: View) -> Response:
    """What goes out."""
    before = asked.before(view.request)
    rows = await view.admin.amessages(outgoing=True, before=before, limit=asked.PAGE)
    older = rows[-1].seq if len(rows) == asked.PAGE else None
    return await view.page("outbox.html", title="Outbox", rows=rows, stats=await view.admin.astats(), older=older)


async def sources(view: View) -> Response:
    """Who sends."""
    kept, copies = view.inbox.settings.dedupe_retention, await run_in_threadpool(view.watch.by_source)
    found = await view.admin.asources()
    return await view.page("sources.html", title="Sources", sources=found, kept=kept, copies=copies)


async def storage(view: View) -> Response:
    """How much is kept, and for how long."""
    storage = await view.admin.astorage()
    return await view.page("storage.html", title="Storage", storage=storage, settings=view.inbox.settings)


async def metrics(view: View) -> Response:
    """The numbers, for Prometheus."""
    try:
        from onceward.observability.prometheus import exposition  # noqa: PLC0415 - its package is an extra
    except ConfigurationError as error:
        raise asked.refuse(str(error), 404) from None
    text = await run_in_threadpool(exposition, view.inbox)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


async def audit(view: View) -> Response:
    """What operators did."""
    before = asked.before(view.request)
    lines = await view.admin.aaudit(before=before, limit=asked.PAGE)
    older = lines[-1].id if len(lines) == asked.PAGE else None
    return await view.page("audit.html", title="Audit", lines=lines, older=older)
