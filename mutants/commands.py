"""The commands: exit codes that scripts rely on."""

from __future__ import annotations

from mutants.mutant import Mutant

COMMANDS: tuple[Mutant, ...] = (
    Mutant(
        name="a stop while the program is imported is a failure",
        file="cli/processes.py",
        old="_on_signals(lambda: sys.exit(0)",
        new="_on_signals(lambda: sys.exit(1)",
        test="tests/cli/test_run.py::test_a_stop_while_the_program_is_imported_is_an_ordinary_end",
        store="sqlite",
    ),
    Mutant(
        name="a database that is away is a wrong usage",
        file="cli/failure.py",
        old="UNAVAILABLE = 3",
        new="UNAVAILABLE = 2",
        test="tests/cli/test_cli.py::test_a_database_that_is_away_is_exit_code_3",
    ),
)
