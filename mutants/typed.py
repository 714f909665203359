"""Typed messages: what does not fit is dead at once, in words without values, that are the same for the same mistake."""

from __future__ import annotations

from mutants.mutant import Mutant

_MODELS = "tests/typed/test_models.py"
_CONTRACT = "tests/contract/test_typed.py"

TYPED = (
    Mutant(
        name="an error quotes the data that does not fit",
        file="models/pydantic.py",
        old="""kind in _KNOWN and {*error.get("ctx", ())} <= _OF_THE_MODEL""",
        new="kind",
        test=f"{_MODELS}::test_no_value_is_told[refused-pydantic]",
    ),
    Mutant(
        name="data that does not fit is tried again",
        file="errors.py",
        old="class DataInvalid(InvalidMessage):",
        new="class DataInvalid(OncewardError):",
        test=f"{_CONTRACT}::test_what_does_not_fit_is_dead_at_once_without_its_values[sqlite-def-dataclass]",
        store="sqlite",
    ),
    Mutant(
        name="each message with the same mistake has a fingerprint of its own",
        file="models/model.py",
        old="tuple(dict.fromkeys(problems))",
        new="tuple(problems)",
        test=f"{_CONTRACT}::test_the_same_mistake_has_one_fingerprint[sqlite-def]",
        store="sqlite",
    ),
    Mutant(
        name="a set is written in another order by each process",
        file="models/encoding.py",
        old="    return sorted(values, key=",
        new="    return list(values) or sorted(values, key=",
        test=f"{_MODELS}::test_models_are_the_same_bytes_in_every_process",
    ),
    Mutant(
        name="a schema in an AsyncAPI document refers to nothing",
        file="admin/asyncapi.py",
        old='            made[keyword] = f"{root}{value[1:]}"',
        new="            made[keyword] = value",
        test="tests/typed/test_asyncapi.py::test_every_reference_leads_somewhere",
    ),
    Mutant(
        name="an AsyncAPI document leaves out versions that upcasters bring up",
        file="admin/asyncapi.py",
        old="version not in own:",
        new="not own:",
        test="tests/typed/test_asyncapi.py::test_it_says_what_the_handlers_take",
    ),
)
