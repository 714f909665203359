"""Mutants of the code that tests must catch; those that the simulation must catch are in `simulation/variants.py`."""

from mutants.commands import COMMANDS
from mutants.dashboard import DASHBOARD
from mutants.postgres import POSTGRES
from mutants.sinks import SINKS
from mutants.sources import SOURCES
from mutants.sqlite import SQLITE
from mutants.upkeep import UPKEEP
from mutants.webhooks import WEBHOOKS

ALL = (*WEBHOOKS, *DASHBOARD, *UPKEEP, *COMMANDS, *POSTGRES, *SQLITE, *SOURCES, *SINKS)
