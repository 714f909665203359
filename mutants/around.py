"""Middleware, dependencies and workers for some of the types: what surrounds a handler neither saves nor leaks."""

from __future__ import annotations

from mutants.mutant import Mutant

_MIDDLEWARE = "tests/contract/test_middleware.py"
_DEPENDENCIES = "tests/contract/test_dependencies.py"
_SELECTION = "tests/contract/test_selection.py"

AROUND = (
    Mutant(
        name="an error that middleware swallows is a success",
        file="domain/middleware.py",
        old="                stack.enter_context(one.around(message, tx))  # type: ignore[arg-type] # none of them is async\n"
        "            return call(message, tx)\n        except BaseException as error:\n            counts = error\n"
        "            raise\n    counts.add_note(SWALLOWED)\n    raise counts",
        new="                stack.enter_context(one.around(message, tx))  # type: ignore[arg-type] # none of them is async\n"
        "            return call(message, tx)\n        except BaseException as error:\n            counts = error\n"
        "            raise",
        test=f"{_MIDDLEWARE}::test_an_error_that_it_swallows_counts_all_the_same[sqlite-def-True]",
        store="sqlite",
    ),
    Mutant(
        name="messages with middleware around their transactions share one",
        file="steps/lane.py",
        old="        if (mine.outside or other.outside) and not mine.batch:\n"
        "            return False  # what surrounds an attempt surrounds its transaction\n",
        new="",
        test=f"{_MIDDLEWARE}::test_each_message_has_its_own_context[sqlite-def]",
        store="sqlite",
    ),
    Mutant(
        name="middleware outside of the transaction is left before the commit",
        file="steps/attempt.py",
        old="    try:\n        attempted = yield from _attempt(lane, messages, held, claim_next=claim_next)\n    except GeneratorExit",
        new="    yield Around(partial(surrounding.leave, None))\n    try:\n        attempted = yield from _attempt(lane, messages, "
        "held, claim_next=claim_next)\n    except GeneratorExit",
        test=f"{_MIDDLEWARE}::test_it_is_around_the_transaction_and_inside_around_the_call[sqlite-def]",
        store="sqlite",
    ),
    Mutant(
        name="the handler runs though middleware has refused the attempt",
        file="steps/attempt.py",
        old="    if isinstance(entered.error, Exception):  # the attempt has failed before it began",
        new="    if isinstance(entered.error, str):  # the attempt has failed before it began",
        test=f"{_MIDDLEWARE}::test_what_it_raises_before_fails_the_attempt[sqlite-def-False]",
        store="sqlite",
    ),
    Mutant(
        name="what a factory has made stays open",
        file="domain/dependencies.py",
        old="        if isinstance(made, AbstractContextManager):\n            return made\n",
        new="        if isinstance(made, AbstractContextManager):\n            return nullcontext(made.__enter__())\n",
        test=f"{_DEPENDENCIES}::test_each_attempt_has_its_own_which_is_closed_after_it[sqlite-def]",
        store="sqlite",
    ),
    Mutant(
        name="what the program provides as a value is closed for it",
        file="domain/dependencies.py",
        old="        return nullcontext(self._value)",
        new="        return self._value if hasattr(self._value, '__enter__') else nullcontext(self._value)",
        test=f"{_DEPENDENCIES}::test_a_value_is_the_program_s_and_never_closed[sqlite-def]",
        store="sqlite",
    ),
    Mutant(
        name="a worker takes types that it was told to leave out",
        file="domain/selection.py",
        old="return (not self.only or message_type in self.only) and message_type not in self.exclude",
        new="return not self.only or message_type in self.only",
        test=f"{_SELECTION}::test_a_worker_runs_the_types_that_it_is_told[sqlite-def-part1]",
        store="sqlite",
    ),
    Mutant(
        name="a worker says that it handles what it leaves out",
        file="registry.py",
        old="            if not handler.external and not selection.takes(handler.type):\n                continue\n",
        new="",
        test=f"{_SELECTION}::test_what_is_not_run_is_not_said_to_be_handled[sqlite-def]",
        store="sqlite",
    ),
)
