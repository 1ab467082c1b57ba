"""Places of logs, as ``raycdc inspect checkpoint --summary`` shows them."""

from __future__ import annotations

from pathlib import Path

import bson
import pytest

from raycdc.cli.inspect.inspect_checkpoint import state_location_of
from raycdc.cli.screens.formatting import position_text_of
from raycdc.connectors.mongodb.stream.resume_token import ResumeToken, StreamPosition
from raycdc.connectors.mongodb.stream.token import ordinal_of
from raycdc.errors import ConfigError
from raycdc.state.configured import write_configured
from raycdc.state.opaque import Position
from raycdc.state.store import CheckpointStore

EVENT = (
    "8260912B960000001E2B022C0100296E5A100497F661F4018447EEAE871045D76AB3E846645F6964006460912B96CE0EFD70017274DA0004"
)


def text_of(folder: Path, source: str, position: object) -> str:
    """The text of a position in a state that was made with such a source."""
    store = CheckpointStore(folder / "state", pipeline="shop")
    write_configured(store, {"source.type": source})
    return position_text_of(store)(Position.from_json(position))


def test_a_place_in_a_binlog_has_its_file(tmp_path: Path) -> None:
    place = {"file": "binlog.000007", "pos": 4, "gtid_set": "u:1-3"}
    assert text_of(tmp_path, "mysql", place) == "binlog.000007:4   gtid u:1-3"
    assert text_of(tmp_path, "mysql", {**place, "gtid_set": ""}) == "binlog.000007:4"


def test_a_place_in_a_change_stream_has_its_time_and_what_its_token_says(tmp_path: Path) -> None:
    def position_text(position: object) -> str:
        return text_of(tmp_path, "mongodb", position)

    time = ordinal_of(1620126614, 30)
    begun = StreamPosition(time, replica_set="rs0").to_json()
    assert position_text(begun) == "cluster time 2021-05-04 11:10:14+00:00 (1620126614, 30), no token yet"
    place = StreamPosition(time, ResumeToken.of({"_data": EVENT}), "rs0").to_json()
    assert position_text(place) == (
        "cluster time 2021-05-04 11:10:14+00:00 (1620126614, 30)   token of version 1: an event of the collection "
        "97f661f4018447eeae871045d76ab3e8"
    )
    binary = StreamPosition(time, ResumeToken.of({"_data": bson.Binary(bytes.fromhex(EVENT))}), "rs0").to_json()
    assert position_text(binary) == position_text(place)
    watermark = ResumeToken.of({"_data": "82612F653E000000022B0229296E04"})
    idle = StreamPosition(ordinal_of(1630496062, 2), watermark, "rs0")
    assert position_text(idle.to_json()).endswith("token of version 1: a high watermark")


@pytest.mark.parametrize("source", ["mongodb", "datagen", "not-installed"])
def test_a_place_of_another_kind_is_shown_as_it_is(tmp_path: Path, source: str) -> None:
    assert text_of(tmp_path, source, {"log": "none"}) == '{"log": "none"}'


def test_a_configuration_that_is_not_there_is_not_taken_for_a_state() -> None:
    with pytest.raises(ConfigError, match=r"shop\.toml cannot be read: No such file"):
        state_location_of(Path("nowhere/shop.toml"))
