"""Tests that state what must hold and does not hold everywhere yet; not part of `make test`. See README.md."""
