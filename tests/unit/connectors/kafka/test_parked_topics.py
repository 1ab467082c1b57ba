"""A table from topics that is parked: another pipeline that takes the keys of the text begins where it was parked."""

from __future__ import annotations

import re
import tomllib

import pytest

from raycdc.connectors.kafka.plugin import KafkaSourceConfig
from raycdc.connectors.kafka.split import PartitionState
from raycdc.delivery.targets.parked_targets import ParkedTargets, Parks
from raycdc.errors import SchemaError, ValueRefusedError
from raycdc.formats.options import DEAD_LETTERS
from raycdc.model import TableId
from raycdc.model.rules.selector import TableSelector
from raycdc.source.tables.table_requests import complain_of_parked
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.opaque import EnumeratorState, SealedSplit
from raycdc.state.store import CommitRecord

ORDERS = TableId("shop", "orders")


def test_the_text_says_with_which_keys_another_pipeline_begins_where_it_was_parked() -> None:
    splits = [PartitionState("changes", number, "id", offset) for number, offset in ((0, 42), (1, 0))]
    states = {split.split_id: split.sealed() for split in splits}
    manifest = Manifest(3, 1, 0, states, states, EnumeratorState.from_json({}))
    parked = ParkedTargets({}, Parks())
    parked.park(ORDERS, [ORDERS], manifest, ValueRefusedError("shop.orders: 'x' is no date."), None)
    text = parked.entries["shop.orders"].text
    assert "source.exclude" not in text
    assert 'pipeline.on_existing = "merge"' in text
    (keys,) = re.findall(r"source\.format\.include = (\[.*?\]) and source\.startup = (\{.*\})$", text)
    include, start = (tomllib.loads(f"value = {key}")["value"] for key in keys)
    section = {"type": "kafka", "bootstrap_servers": "127.0.0.1:9092", "topics": ["changes"]}
    config = KafkaSourceConfig.model_validate({**section, "format": {"type": "maxwell-json"}, "startup": start})
    assert config.startup.offsets == {"changes:0": 42, "changes:1": 0}
    assert [TableSelector(tuple(include)).matches(table) for table in (ORDERS, TableId("shop", "orders_2"))] == [
        True,
        False,
    ]


def test_what_the_format_leaves_out_owes_nothing() -> None:
    manifest = Manifest(
        3, 1, 0, {}, {"changes:0": SealedSplit.from_json({"position": {"offset": 7}})}, EnumeratorState.from_json({})
    )
    parked = ParkedTargets({}, Parks())
    parked.park(ORDERS, [ORDERS], manifest, ValueRefusedError("shop.orders: 'x' is no date."), None)
    record = CommitRecord(3, 1, 0, {}, parked=parked.entries)

    def kafka(**options: object) -> KafkaSourceConfig:
        section = {"type": "kafka", "bootstrap_servers": "127.0.0.1:9092", "topics": ["changes"]}
        return KafkaSourceConfig.model_validate({**section, "format": {"type": "maxwell-json", **options}})

    for config in (kafka(), kafka(include=["shop\\..*"]), kafka(exclude=["shop.items"])):
        with pytest.raises(SchemaError, match=r"(?s)shop\.orders: parked, .*leave it out \(source\.format\.exclude\)"):
            complain_of_parked(manifest, record, selects=config.captures)
    for config in (kafka(exclude=["shop\\.ord.*"]), kafka(include=["shop.items"])):
        complain_of_parked(manifest, record, selects=config.captures)


def test_messages_that_cannot_be_decoded_are_kept_whatever_tables_are_taken() -> None:
    section = {"type": "kafka", "bootstrap_servers": "127.0.0.1:9092", "topics": ["changes"]}
    kept = {"type": "maxwell-json", "include": ["shop.items"], "on_error": "dead-letter"}
    assert KafkaSourceConfig.model_validate({**section, "format": kept}).captures(DEAD_LETTERS)
    assert not KafkaSourceConfig.model_validate({**section, "format": {**kept, "on_error": "skip"}}).captures(
        DEAD_LETTERS
    )
