"""Statements among a topic's rows, under random faults: each has its place, whoever dies where.

As in `test_partitions`, each rule that matters is switched off once, and must be missed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from raycdc.connectors.kafka.enumeration.schemas import SchemaRegistry
from raycdc.connectors.kafka.reading import held_partitions, reader
from raycdc.connectors.kafka.reading.emitter import KafkaRecordEmitter
from raycdc.connectors.kafka.reading.held_partitions import BatchRequirements
from raycdc.connectors.kafka.reading.reader import KafkaReader
from raycdc.connectors.kafka.split import NO_DECODER_STATE
from tests.support.simulation import SimulationError
from tests.support.simulation.partition_job import PartitionSettings
from tests.support.simulation.statement_job import StatementJob

SEEDS = 12
SEEDS_MAX = 60

Switch = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_rows_and_statements_reach_the_target_in_their_order_each_once(seed: int) -> None:
    StatementJob(seed).run()


def forget_to_tell_of_truncations(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KafkaRecordEmitter, "_empty", lambda *_: None)


def give_no_defaults(patch: pytest.MonkeyPatch) -> None:
    real = held_partitions.judge

    def judge(*arguments: Any, **options: Any) -> BatchRequirements:
        judged = real(*arguments, **options)
        plain = tuple((table, _without_defaults(schema)) for table, schema in judged.schemas)
        return BatchRequirements(plain, judged.emptied, (), judged.dropped, judged.without)

    patch.setattr(reader, "judge", judge)


def _without_defaults(schema: Any) -> Any:
    return replace(schema, columns=tuple(replace(column, default=None) for column in schema.columns))


def emit_before_the_schema_is_in_force(patch: pytest.MonkeyPatch) -> None:
    """A position that moves although its batch still waits."""
    real = KafkaReader._ask_for

    def ask_for(self: KafkaReader, lacking: Any) -> None:
        real(self, lacking)
        waiting = self._held
        if waiting is not None:
            waiting.split.state = waiting.split.state.moved(waiting.fetched.next_offset, NO_DECODER_STATE)

    patch.setattr(KafkaReader, "_ask_for", ask_for)


def say_schemas_one_epoch_too_late(patch: pytest.MonkeyPatch) -> None:
    real = SchemaRegistry.sealed
    patch.setattr(SchemaRegistry, "sealed", lambda self, epoch: real(self, epoch - 1))


CRASHES = PartitionSettings(readers=2, partitions=3, steps=700, network_faults=0.05, crashes=0.012, scaling=0.01)

RULES: list[Switch] = [
    forget_to_tell_of_truncations,
    give_no_defaults,
    emit_before_the_schema_is_in_force,
    say_schemas_one_epoch_too_late,
]


@pytest.mark.parametrize("switch", RULES, ids=lambda v: v.__name__)
def test_a_run_without_the_rule_is_noticed(switch: Switch, monkeypatch: pytest.MonkeyPatch) -> None:
    switch(monkeypatch)
    for seed in itertools.count():
        assert seed < SEEDS_MAX, f"{SEEDS_MAX} runs passed although the job would {switch.__name__}"
        try:
            StatementJob(seed, settings=CRASHES).run()
        except SimulationError:
            return
