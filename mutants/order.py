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
    Mutant(
        name="a key that was passed over is forgotten when its pause ends before the lane rests",
        file="steps/lot.py",
        old='        return min((self._keys[key][0] - now for key in self._passed), default=float("inf"))\n',
        new="        left = [self._keys[key][0] - now for key in self._passed]\n"
        '        return min((seconds for seconds in left if seconds > 0), default=float("inf"))\n',
        test="tests/unit/test_steps_claim.py::TestClaim::"
        "test_keys_that_were_passed_over_are_looked_at_however_slow_the_machine_is",
    ),
)
