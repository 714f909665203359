"""How mutants fared: the lines that are printed and the figures of `docs/proof.md`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from proof import report


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one mutant fared, and on which store, if any; `text` is what caught it, or why nothing did."""

    name: str
    store: str
    caught: bool
    text: str


def tell(verdicts: Iterable[Verdict], *, enough: int, file: str = "") -> int:
    """Print each verdict as it comes and the count at the end; write the figures; return the exit code."""
    began, told = time.monotonic(), []
    for verdict in verdicts:
        told.append(verdict)
        store = f" [{verdict.store}]" if verdict.store else ""
        print(f"{'caught' if verdict.caught else 'MISSED':8} {verdict.name}{store}: {verdict.text}", flush=True)
    caught, seconds = sum(verdict.caught for verdict in told), round(time.monotonic() - began, 1)
    print(f"{seconds} s")
    if file:
        figures = {"run": "mutants", "total": len(told), "caught": caught, "seconds": seconds}
        report.write(file, {**figures, "mutants": [asdict(one) for one in told]}, {one.store for one in told})
    stores = ", ".join(
        f"{sum(one.store == store for one in told)} {store or 'without a store'}"
        for store in sorted({one.store for one in told}, key=lambda name: (not name, name))
    )
    print(f"mutants: {caught} of {len(told)} caught ({stores})")
    return 0 if caught == len(told) >= enough else 1
