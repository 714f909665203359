"""`make bench-60m`: claims and dedupe beside sixty million finished rows; prints what it found."""

from __future__ import annotations

import sys

from bench.figures import Figures
from bench.ground import SETTINGS, Ground
from bench.growth import finished
from tests.servers.postgres import PostgresServer

SIZES = (0, 60_000_000)


def main(sizes: tuple[int, ...] = SIZES) -> Figures:
    """Time-ordered ids first, then random ones."""
    figures = Figures()
    with PostgresServer(durable=True, settings=SETTINGS) as server:
        ground = Ground(server)
        for kind in ("ordered", "random"):
            finished(ground, kind, sizes, figures)
            for statement in ("claim", "receive"):
                names = [f"growth: {statement}, {kind} ids, {size} finished (ms)" for size in sizes]
                print(f"{statement}, {kind} ids: {figures.ratio(names[-1], names[0])} of the empty tables", flush=True)
    for name in figures.repetitions:
        print(f"{name:<60} {figures.median(name):>10.2f}")
    return figures


if __name__ == "__main__":
    main()
    sys.exit(0)
