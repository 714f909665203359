"""`python -m faults.page`: write docs/faults.md from faults/report.json; no figure on it is typed by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults import lineup, plan, report
from faults.effect import HANDLER_SECONDS
from faults.fleet import RESTART_SECONDS
from faults.lineup import Contender
from faults.nemesis import BEYOND
from faults.report import count

PAGE = Path(__file__).parents[1] / "docs" / "faults.md"
_REPOSITORY = "https://"

_INTRODUCTION = """\
# The same faults

What becomes of payments when workers are killed, the database restarts, and copies come: onceward, and what people use instead, through the same messages and the same
faults, drawn from one seed.

```console
$ make faults                                  # everything, and this page
$ make faults QUICK=1                          # a small run, which writes nothing
$ make faults CONTENDER=celery MESSAGES=600    # a part of it, which writes nothing
```

This page is made from [faults/report.json](../faults/report.json), and a test compares the two.
"""

_COLUMNS = """\
- *lost*: a payment that was never booked, and that the tool does not show as unfinished. *stuck*: never booked, and the tool still shows it as queued or running. A run ends when everything
  is booked and the tool shows what failed, when nothing more was booked for {patience:g} s ({patient}, which bring messages back later), or after {longest} s.
- *doubled*: a payment with more than one row; *sent once*: the doubles of payments of which no copy was sent, which the faults made alone. *wrong balances*: accounts whose balance is not the sum of their payments.
- *out of order*: payments that were booked behind a later one of their account.
- *poison visible*: of the messages whose handler always raises, those that the tool itself shows as failed or in a dead-letter queue in the end.
- *killer contained*: nothing was left waiting although a message that kills its process was among the others; then how often that one was tried, and where it is in the end. *Failed*: the tool shows it
  as failed. *Gone*: the tool shows it nowhere. *Still tried*: it was killing workers when the run was ended.
- *seconds*: from the first delivery to the last payment that was booked. The faults are part of it, and so is the length of the leases: it is no measure of speed ([benchmarks](benchmarks.md) are).
- (np): *not promised* by that tool in that mode. Doubles of a tool that asks for idempotent handlers are no defect of it; they are what its user has to prevent.
"""

_WHAT_HAPPENS = """\
## What happens

- Each handler changes one balance and inserts one row, in one transaction. The table has **no unique key**: what runs twice has two rows. A handler takes {handler:.0f} ms besides.
- {workers} worker processes, started again {restart} s after they end. A killed worker is killed with all its child processes. RabbitMQ and Redis are not harmed; they run with default durability, Redis with `appendfsync always`.
- {kills} times a worker is killed with SIGKILL, {restarts} times the database server is stopped at once (PostgreSQL: immediate shutdown; MariaDB: SIGKILL; SQLite has none) and started again, {suspensions} times a worker is suspended for
  {beyond:g} times the lease; a lease is {lease:g} s unless the table of modes says otherwise. Messages are released to the sender part by part, a fault in the middle of each part.
- {raises} handlers raise once after they have written, {poisons} messages raise always, 1 kills its process after it has written. These last {troubles} have accounts of their own: behind a message that cannot be booked, the next ones of its account wait in
  onceward until a person decides.
- {share:.0f} % of the payments are delivered twice, half of them in the same moment from two threads, the others a little later. A sender that gets no answer sends again.
- The judge reads the two tables and counts how often handlers began; what a tool shows of itself only tells *stuck* from *lost*, and whether poison is visible.
"""

_NOT_SHOWN = """\
## What this does not show

- The loss of power, of a disk, of a broker: [proof](proof.md) and [brokers](brokers.md) have what was tried of that with onceward.
- The luck of one run: kills meet a handler at work, or not. A zero of a tool that promises less is the luck of this seed; another seed may show more. What a promise of onceward rests on is [tested statement by statement](proof.md).
- Work that is not a transaction in the same database, such as a call over the network: there every tool is at least once, onceward too ([guarantees](guarantees.md#what-it-does-not-promise)).
"""


def page(found: dict[str, Any]) -> str:
    """The whole page."""
    parts = [_INTRODUCTION, _run(found), _table(found), _columns(), _absent(found), _better(found)]
    parts += [_what_happens(found["scale"]), _modes(found), _NOT_SHOWN]
    return "\n".join(part for part in parts if part)


def line(result: dict[str, Any]) -> str:
    """One result for the terminal."""
    if "error" in result:
        return f"{result['contender']}: {result['error'].splitlines()[0]}"
    counts = ", ".join(f"{name} {count(result, name)}" for name in report.COUNTS)
    verdict = result["verdict"]
    visible = f"poison visible {verdict['poisons_visible']} of {verdict['poisons']}"
    return f"{result['contender']}: {counts}, {visible}, killer {_killer(verdict)}, {result['seconds']:.0f} s"


def _run(found: dict[str, Any]) -> str:
    scale = found["scale"]
    played = [result for result in found["results"] if "error" not in result]
    loads = [result["load"] for result in played]
    deliveries = max((result["deliveries"] for result in played), default=0)
    side = "one after the other" if found["at_once"] == 1 else f"{found['at_once']} at a time"
    return (
        f"**The run of this page**: {scale['messages']:,} payments in {deliveries:,} deliveries, seed {found['seed']}, {found['began'][:10]}, "
        f"commit {found['commit'][:10] or 'unknown'}, {found['cores']} cores, contenders {side}, load of the machine {min(loads, default=0):g} to {max(loads, default=0):g}, "
        f"Python {found['python']}, {_versions(played)}.\n"
    )


def _versions(played: list[dict[str, Any]]) -> str:
    seen: dict[str, str] = {}
    for result in played:
        seen |= {name: version for name, version in result["versions"].items() if name[0].isupper()}
    return ", ".join(f"{name} {version}" for name, version in sorted(seen.items()))


def _table(found: dict[str, Any]) -> str:
    head = (
        "",
        "lost",
        "doubled",
        "wrong balances",
        "stuck",
        "out of order",
        "poison visible",
        "killer contained",
        "killer",
        "seconds",
    )
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    once = _sent_once(found)
    lines += [f"| {' | '.join(_cells(result, once))} |" for result in found["results"] if "error" not in result]
    return "\n".join(lines) + "\n"


def _columns() -> str:
    patience = lineup.PATIENCE_SECONDS
    longer = [one for one in lineup.ALL if one.patience_seconds > patience]
    patient = ", ".join(f"{one.name} {one.patience_seconds:g} s" for one in longer)
    return _COLUMNS.format(patience=patience, patient=patient, longest=lineup.LONGEST_SECONDS)


def _sent_once(found: dict[str, Any]) -> set[str]:
    """The payments of which the plan has no copy."""
    planned = plan.make(found["seed"], plan.Scale(**found["scale"]))
    again = {delivery.payment.id for delivery in planned.deliveries if delivery.how != "alone"}
    return {payment.id for payment in planned.payments} - again


def _cells(result: dict[str, Any], sent_once: set[str]) -> list[str]:
    contender, verdict = _contender(result), result["verdict"]
    doubled, by_faults = count(result, "doubled"), len(sent_once.intersection(verdict["doubled"]))
    once = "" if "once" in contender.promises else " (np)"
    order = "" if "order" in contender.promises else " (np)"
    name = f"**{contender.name}**" if contender.ours else contender.name
    return [
        name,
        f"{count(result, 'lost')}{'' if contender.at_least_once else ' (np)'}",
        f"{doubled}{f', {by_faults} of them sent once' if doubled else ''}{once}",
        f"{count(result, 'wrong')}",
        str(count(result, "stuck")),
        f"{count(result, 'disordered')}{order}",
        f"{verdict['poisons_visible']} of {verdict['poisons']}",
        "yes" if verdict["contained"] else "no",
        _killer(verdict),
        f"{result['seconds']:.0f}",
    ]


def _killer(verdict: dict[str, Any]) -> str:
    tries = verdict["killer_attempts"]
    ends = {"failed": "failed", "held": "still held", "nowhere": "gone"}[verdict["killer_shown"]]
    if not verdict["killer_ended"]:
        ends = "still tried"
    return f"{tries} {'attempt' if tries == 1 else 'attempts'}, {ends}"


def _contender(result: dict[str, Any]) -> Contender:
    return next(contender for contender in lineup.ALL if contender.name == result["contender"])


def _absent(found: dict[str, Any]) -> str:
    """Who could not take part."""
    lines = [
        f"- {result['contender']}: {result['error'].splitlines()[0]}"
        for result in found["results"]
        if "error" in result
    ]
    return "\n".join(["## Not in the table", "", *lines, ""]) if lines else ""


def _better(found: dict[str, Any]) -> str:
    """Where a contender does better than every variant of onceward, or than the worst of them."""
    played = [result for result in found["results"] if "error" not in result]
    ours = [result for result in played if _contender(result).ours]
    others = [result for result in played if not _contender(result).ours]
    if not ours or not others:
        return ""
    lines = []
    for title, value in _BETTER.items():
        least = min(value(result) for result in ours)
        ahead = [
            f"{result['contender']} ({value(result):g})"
            for result in others
            if value(result) < least and _is_right(result)
        ]
        if ahead:
            lines.append(f"- {title}: {', '.join(ahead)}; the best of onceward {least:g}.")
    shown = lines or ["In no column."]
    return "\n".join(
        ["## Where another is better", "", "Among those that lost nothing and left nothing stuck:", "", *shown, ""]
    )


_BETTER: dict[str, Callable[[dict[str, Any]], float]] = {
    "fewer findings of one kind": lambda result: max(count(result, name) for name in report.COUNTS),
    "poison messages that were not visible": lambda result: (
        result["verdict"]["poisons"] - result["verdict"]["poisons_visible"]
    ),
    "attempts of the killer": lambda result: result["verdict"]["killer_attempts"],
    "seconds": lambda result: result["seconds"],
}


def _is_right(result: dict[str, Any]) -> bool:
    return not count(result, "lost") and not count(result, "stuck")


def _what_happens(scale: dict[str, Any]) -> str:
    return _WHAT_HAPPENS.format(
        **{name: scale[name] for name in ("kills", "restarts", "suspensions", "raises", "poisons")},
        troubles=scale["poisons"] + 1,
        handler=HANDLER_SECONDS * 1000,
        workers=plan.WORKERS,
        restart=RESTART_SECONDS,
        beyond=BEYOND,
        lease=lineup.LEASE_SECONDS,
        share=plan.TWICE * 100,
    )


def _modes(found: dict[str, Any]) -> str:
    lines = ["## The modes", "", "| | mode and settings | lease | documented in |", "|---|---|---|---|"]
    for contender in lineup.ALL:
        sources = ", ".join(_source(source) for source in contender.sources)
        lines.append(
            f"| {contender.name}{_version(contender, found)} | {contender.mode} | {contender.lease_seconds:g} s | {sources} |"
        )
    return "\n".join([*lines, ""])


def _version(contender: Contender, found: dict[str, Any]) -> str:
    result: dict[str, Any] = next((one for one in found["results"] if one["contender"] == contender.name), {})
    versions = [result.get("versions", {}).get(package) for package in contender.packages[:1]]
    return "".join(f" {version}" for version in versions if version)


def _source(source: str) -> str:
    if source.startswith(_REPOSITORY):
        return f"[{source.removeprefix(_REPOSITORY).split('/')[0]}]({source})"
    return f"[{Path(source).name}]({source.removeprefix('docs/') if source.startswith('docs/') else '../' + source})"


if __name__ == "__main__":
    PAGE.write_text(page(report.read()), encoding="utf-8")
