"""`python -m bench.scenarios NAME URL SCALE`: one scenario in an empty database; prints its figures as JSON."""

from __future__ import annotations

import asyncio
import json
import sys

import psycopg

from bench.scale import SCALES, Crowd
from bench.scenarios import backlogs, bursts, isolated, lanes, neighbours
from bench.scenarios.handlers import TABLES, inbox_at
from bench.scenarios.sender import Found

SCENARIOS = {
    "lanes": lanes.measure,
    "failing": backlogs.failing,
    "held": backlogs.held,
    "isolated": isolated.measure,
    "bursts": bursts.measure,
    "neighbours": neighbours.measure,
}


def played(name: str, url: str, crowd: Crowd) -> Found:
    """Make the tables, and run a scenario on them."""
    with inbox_at(url) as inbox, psycopg.connect(url) as connection:
        inbox.migrate()
        connection.execute(TABLES)
    found = Found()
    asyncio.run(SCENARIOS[name](url, crowd, found))
    return found


if __name__ == "__main__":
    scenario, place, scale = sys.argv[1:]
    result = played(scenario, place, SCALES[scale].crowd)
    print(json.dumps({"values": result.values, "notes": result.notes}))
