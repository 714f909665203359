"""The dashboard: roles, forged requests, sessions."""

from __future__ import annotations

from mutants.mutant import Mutant

DASHBOARD: tuple[Mutant, ...] = ()
