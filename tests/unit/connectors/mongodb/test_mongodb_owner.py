"""Whose log a place is of: a place that a mongos told means nothing to a replica set, and the other way round."""

from __future__ import annotations

import pytest

from raycdc.connectors.mongodb.server.client import MONGOS, MongoDbServerInfo
from raycdc.errors import LogLostError


@pytest.mark.parametrize(("begun", "answers"), [("", "rs0"), ("rs0", ""), ("rs0", "rs1")])
def test_nothing_is_read_again_from_another_owner_of_the_log(begun: str, answers: str) -> None:
    info = MongoDbServerInfo("127.0.0.1:27017", (7, 0, 0), answers, is_mongos=not answers)
    with pytest.raises(LogLostError, match="is not the replica set that the state belongs to"):
        info.owner.require_again(begun or MONGOS)


@pytest.mark.parametrize("name", ["", "rs0"])
def test_the_owner_of_the_state_is_read_again(name: str) -> None:
    info = MongoDbServerInfo("127.0.0.1:27017", (7, 0, 0), name, is_mongos=not name)
    info.owner.require_again(name or MONGOS)
