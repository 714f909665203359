"""Fetches the servers before the tests start: `python -m tests.servers`."""

from __future__ import annotations

import sys

from tests.servers import install

try:
    sys.stdout.write(f"servers: {install.postgresql_bin()}, {install.pgbouncer_program()}\n")
except install.ServerMissing as missing:
    sys.exit(str(missing))
