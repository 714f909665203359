"""`python -m bench.peers ADAPTER fill|drain PLACE COUNT`."""

from __future__ import annotations

import importlib
import logging
import sys

logging.disable(logging.ERROR)
adapter, move, place, count = sys.argv[1:]
getattr(importlib.import_module(f"bench.peers.{adapter}"), move)(place, int(count))
