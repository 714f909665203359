"""`python -m bench.peers ADAPTER fill|drain PLACE COUNT SETTINGS`."""

from __future__ import annotations

import importlib
import json
import logging
import sys

logging.disable(logging.ERROR)
name, move, place, count, settings = sys.argv[1:]
adapter = importlib.import_module(f"bench.peers.{name}")
if move == "fill":
    adapter.fill(place, int(count), json.loads(settings))
else:
    adapter.drain(place, json.loads(settings))
