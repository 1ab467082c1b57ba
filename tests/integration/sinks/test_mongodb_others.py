"""Other people at a MongoDB target, beside the pipeline: their indexes, validators and documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pymongo.errors import ServerSelectionTimeoutError

from raycdc.clients.mongodb import SELECTION_TIMEOUT_MS
from raycdc.errors import KeyRefusedError, SinkUnavailableError, TargetExistsError
from raycdc.sinks.mongodb.server import Server
from tests.integration.sinks.others_story import OthersStory

pytestmark = pytest.mark.server

#: A key that no other text has.
SECRET = 918273645
KINDS = pytest.mark.parametrize("kind", ["mongodb-upsert", "mongodb-parts-upsert"])


class OthersCollection(OthersStory):
    """On a collection."""

    def collection(self, do: Any) -> Any:
        assert self.world.mongodb is not None
        with self.world.mongodb.client() as client:
            return do(client["shop"]["t"])

    def ids(self) -> list[int]:
        return sorted(document["_id"] for document in self.collection(lambda found: list(found.find())))


@KINDS
def test_unique_values_that_documents_exchange_within_an_epoch_arrive(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    story = OthersCollection(request, kind, tmp_path)
    story.seal((1, 1, 1), (2, 2, 2), (3, 3, 3))
    story.run()
    story.collection(lambda found: found.create_index("b", unique=True))
    story.exchange_values()
    story.run()
    story.world.check()


@KINDS
def test_fields_of_others_are_never_taken_out(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> None:
    story = OthersCollection(request, kind, tmp_path)
    story.collection(lambda found: found.insert_many([{"_id": n, "id": n, "b": n, "theirs": n} for n in (1, 2)]))
    story.seal((1, 1, 1), (2, 2, 2))
    story.run(on_existing="merge")
    story.collection(lambda found: found.create_index("b", unique=True, name="theirs"))
    story.table.update((1,), b=9)
    story.table.update((2,), b=1)
    story.table.update((1,), b=2)
    story.seal()
    with pytest.raises(KeyRefusedError):
        story.run()
    theirs = story.collection(lambda found: {one["_id"]: one["theirs"] for one in found.find()})
    assert theirs == {1: 1, 2: 2}


@KINDS
def test_emptying_the_source_spares_the_documents_of_others(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    story = OthersCollection(request, kind, tmp_path)
    story.collection(lambda found: found.insert_one({"_id": 100, "id": 100, "a": 1, "b": 1}))
    story.seal((1, 1, 1))
    story.run(on_existing="merge")
    story.table.truncate()
    story.seal((2, 2, 2))
    with pytest.raises(TargetExistsError, match="may have rows of others"):
        story.run(on_existing="merge")
    assert story.ids() == [1, 100]
    story.run(on_existing="replace")
    story.world.check()
    story.table.truncate()
    story.seal((3, 3, 3))
    story.run()
    story.world.check()


def test_a_server_that_goes_away_in_a_transaction_is_told_at_once(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """And not when the driver, which asks again by itself, has lost its patience."""
    story = OthersCollection(request, "mongodb-upsert", tmp_path)
    assert story.world.mongodb is not None
    asked: list[None] = []

    def away(_: object) -> None:
        asked.append(None)
        cause = ServerSelectionTimeoutError("nobody answers")
        cause._add_error_label("TransientTransactionError")
        raise cause

    with pytest.raises(SinkUnavailableError, match="nobody answers"):
        Server(story.world.mongodb.uri, "any").transaction(away)
    assert len(asked) == 1


def test_how_long_a_server_is_looked_for_is_the_users_to_say() -> None:
    def timeout_s(options: str) -> float:
        server = Server(f"mongodb://127.0.0.1:1/{options}", "any")
        try:
            return float(server.client.options.server_selection_timeout)
        finally:
            server.close()

    assert timeout_s("") == SELECTION_TIMEOUT_MS / 1000
    assert timeout_s("?serverSelectionTimeoutMS=90") == 0.09
