"""Blobs that no row refers to any more are removed, each once; what fails is left to the collector."""

from __future__ import annotations

from typing import Any

from onceward.blobs.bodies import LargeBodies
from onceward.errors import BlobsUnavailable
from onceward.steps.blob import remove_unreferred
from onceward.steps.context import Context
from tests.unit.builders import context
from tests.unit.script import Lost, Script


class Blobs:
    """A blob store that writes down what is deleted, until it fails."""

    def __init__(self, most: int = 100) -> None:
        self.most, self.deleted = most, list[str]()

    def delete(self, name: str) -> None:
        if len(self.deleted) == self.most:
            raise BlobsUnavailable("away")
        self.deleted.append(name)


def with_blobs(blobs: Blobs) -> Context:
    here = context()
    here.large = LargeBodies(blobs, 100, "box")  # type: ignore[arg-type] # as much of one as is used
    return here


def test_those_that_are_not_referred_to_go_in_order_and_are_counted() -> None:
    blobs = Blobs()
    script = Script({"referred": [("b",)]})
    assert script.run(remove_unreferred(with_blobs(blobs), ["c", "b", "a", "c"])) == 2
    assert blobs.deleted == ["a", "c"]


def test_of_none_nothing_is_asked() -> None:
    script = Script({})
    assert script.run(remove_unreferred(with_blobs(Blobs()), [])) == 0
    assert script.transactions == []


def test_a_blob_store_that_fails_is_tried_no_further() -> None:
    blobs = Blobs(most=1)
    assert Script({"referred": []}).run(remove_unreferred(with_blobs(blobs), ["a", "b", "c"])) == 1
    assert blobs.deleted == ["a"]


def test_without_an_answer_nothing_goes() -> None:
    blobs, answers = Blobs(), dict[str, Any]({"referred": Lost()})
    assert Script(answers).run(remove_unreferred(with_blobs(blobs), ["a"])) == 0
    assert blobs.deleted == []
