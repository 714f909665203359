"""The webhooks: signatures, answers, certificates."""

from __future__ import annotations

from mutants.mutant import Mutant

WEBHOOKS: tuple[Mutant, ...] = (
    Mutant(
        name="any signature is taken",
        file="webhooks/keyring.py",
        old="hmac.compare_digest(expected, signature) for",
        new="bool(signature) for",
        test="tests/webhooks/test_verifiers.py::test_a_changed_body_another_secret_or_no_signature_is_refused[github]",
    ),
)
