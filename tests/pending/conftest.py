"""The same shops as in tests/contract."""

from tests.contract.conftest import *  # noqa: F403 - the fixtures
