"""Order within a key, where a group is undone and runs again."""

from __future__ import annotations

from mutants.mutant import Mutant

ORDER = (
    Mutant(
        name="what is to run alone runs before one that has failed since",
        file="steps/group.py",
        old="            (self.given_back if self._is_behind(message) else self.alone).append(message)\n",
        new="            self.alone.append(message)\n",
        test="tests/contract/test_store_suite.py::TestStores::"
        "test_what_is_to_run_alone_waits_for_one_before_it_that_runs_again_and_fails[postgres-def]",
        store="postgres",
    ),
)
