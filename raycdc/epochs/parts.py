"""The parts of one epoch loop, which writing, deciding and recovering share."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from raycdc.checkpoint.store import CheckpointStore
from raycdc.epochs.holdings import Holdings
from raycdc.epochs.parked_targets import ParkedTargets
from raycdc.epochs.ports import EpochPorts
from raycdc.epochs.record_keeper import RecordKeeper
from raycdc.epochs.segment_making import SegmentMaking
from raycdc.epochs.sink_patience import SinkPatience
from raycdc.epochs.target_patience import TargetPatience
from raycdc.epochs.works import Works
from raycdc.sinks.api import Sink


@dataclass(frozen=True, slots=True)
class EpochParts:
    """See the module's docstring. `stopping` ends all waiting."""

    store: CheckpointStore
    sink: Sink
    ports: EpochPorts
    works: Works
    making: SegmentMaking
    parked: ParkedTargets
    holdings: Holdings
    records: RecordKeeper
    patience: SinkPatience
    target_patience: TargetPatience
    stopping: threading.Event

    @classmethod
    def of(cls, store: CheckpointStore, sink: Sink, ports: EpochPorts) -> EpochParts:
        """The parts for `store`, as its newest record has them, and the open `sink`."""
        record = store.last_commit()
        stopping = threading.Event()
        patience = SinkPatience(ports.parking.waiting, stopping, ports.threads)
        works = Works(store, ports.routing, generation=ports.generation, access=ports.access, patience=patience)
        parked = ParkedTargets(record.parked if record else {}, ports.parking.parks)
        holdings = Holdings(store, sink, ports, works, parked, patience)
        records = RecordKeeper(store, parked, generation=ports.generation, on_parked=ports.parking.on_parked)
        making = SegmentMaking(ports.routing, works.left_out, ports.access)
        of_targets = TargetPatience(sink, patience, parked, records, stopping)
        return cls(store, sink, ports, works, making, parked, holdings, records, patience, of_targets, stopping)
