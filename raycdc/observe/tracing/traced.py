"""Tracing of one run: collects reports of its epoch loop and its source side, and sends traces to a collector."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from raycdc.config import PipelineConfig
from raycdc.delivery.ports import EpochPorts
from raycdc.observe.status.progress import ProgressReporter
from raycdc.observe.tracing.epoch_traces import PARKED, EpochTraces
from raycdc.observe.watch.run_reports import phases_at
from raycdc.state.store import CheckpointStore

ReportT = TypeVar("ReportT")


@contextmanager
def traced(
    config: PipelineConfig, store: CheckpointStore, ports: EpochPorts, reporter: ProgressReporter
) -> Iterator[EpochPorts]:
    """Yield `ports` that also send a trace of each epoch; the unchanged `ports` without ``[traces]``."""
    options = config.traces
    if not options.endpoint:
        yield ports
        return
    try:
        from raycdc.observe.tracing.otlp import OtlpTraces  # The import is here, because most runs are not traced.

        sent = OtlpTraces(options, reporter.warning)
    except Exception as wrong:  # noqa: BLE001 - of libraries, which read variables of their own
        reporter.warning(f"traces: none is sent to {options.receiver}: {wrong}")
        yield ports
        return
    record = store.last_commit()
    phases = phases_at(store, record.epoch if record else 0)
    traces = EpochTraces(
        config.pipeline.name,
        sent.put,
        generation=ports.generation,
        parked=[table for table, phase in phases.items() if phase == PARKED],
        keeps=lambda: random.random() < options.sample_ratio,  # noqa: S311 - no secret
    )
    ports.tracker.on_part = traces.part
    reporter.listeners.add("traces", traces.listen)
    reporter.hearers.on_parked.append(traces.parked)
    try:
        yield replace(ports, on_committed=_then(traces.committed, ports.on_committed))
    except BaseException as error:
        traces.ended(type(error).__name__)
        # An interrupted run does not wait for the collector.
        sent.end(options.end_wait.total_seconds() if isinstance(error, Exception) else 0.0)
        raise
    traces.ended()
    sent.end(options.end_wait.total_seconds())


def _then(first: Callable[[ReportT], None], second: Callable[[ReportT], None]) -> Callable[[ReportT], None]:
    """Return a function that calls both, one after the other."""

    def both(value: ReportT) -> None:
        first(value)
        second(value)

    return both
