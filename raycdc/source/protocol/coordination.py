"""How a source coordinator is set up: its settings, its surroundings, and when it seals."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from raycdc.checkpoint.manifest import Manifest
from raycdc.source.protocol.acknowledging import Acknowledgements, CallAsync, told_nobody
from raycdc.source.protocol.live_readers import LiveReader

#: A position that moved without rows is worth a manifest only now and then.
IDLE_SEAL_INTERVAL_S = 10.0
#: An early epoch takes what comes within so long, so that one transaction is not followed by the next one's epoch.
EARLY_S = 0.1
#: Early epochs that were not needed are kept for later, up to those of so long.
EARLY_KEPT_S = 600.0


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """Cadence and patience. Times in seconds, sizes in bytes.

    An idle sink gets an epoch of `epoch_bytes_idle` already, so that it writes while the next one is read. A smaller
    one is not sealed behind another that the sink has not committed: it would be waited for, and so would what comes
    in between, which can as well be part of it. A reader whose process says nothing for `reader_timeout_s` is dead; one
    whose process answers while its main thread makes no progress for `progress_timeout_s` hangs, and would keep a seal
    waiting for ever. Syncing files is progress, file by file. Where the source is `paced`, readers share one budget.

    Not where epochs are taken by hand (`hand_taken`): there the commit of one may be told only after the next one came.

    Changes that wait while the sink is idle need not wait for `epoch_interval_s`, as long as there are at most
    `epochs_per_hour` in the mean (0: they wait) and no chunk is being read: rows of a snapshot are grouped.
    """

    epoch_interval_s: float = 2.0
    epoch_bytes_max: int = 256 << 20
    epoch_bytes_idle: int = 64 << 20
    in_flight_max: int = 2
    reader_timeout_s: float = 10.0
    progress_timeout_s: float = 60.0
    paced: bool = False
    epochs_per_hour: int = 0
    hand_taken: bool = False


class ManifestWriter(Protocol):
    """The durable side of an epoch (`raycdc.checkpoint.store`)."""

    def put_documents(self, documents: Mapping[str, dict[str, Any]]) -> None:
        """Keep schema documents by their fingerprints."""

    def document(self, fingerprint: str) -> dict[str, Any]: ...

    def write_manifest(self, manifest: Manifest) -> None: ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Everything outside of a coordinator that it reaches: `acknowledgements` hear of commits."""

    writer: ManifestWriter
    call_async: CallAsync
    wall_ms: Callable[[], int]
    acknowledgements: Acknowledgements = field(default_factory=told_nobody)


class SealTimer:
    """When the open epoch is due; see the coordinator's docstring for the rules."""

    def __init__(self, settings: CoordinatorSettings) -> None:
        self._settings = settings
        self._last_s = 0.0
        #: A token bucket: epochs that may be sealed early, as of `_last_s`.
        self._most = max(1.0, settings.epochs_per_hour * EARLY_KEPT_S / 3600) if settings.epochs_per_hour else 0.0
        self._kept = self._most

    def restart(self, *, now_s: float) -> None:
        """The open epoch is being sealed."""
        self._kept = max(0.0, self._early(now_s) - 1)
        self._last_s = now_s

    def _early(self, now_s: float) -> float:
        """How many epochs may come early by now."""
        return min(self._most, self._kept + (now_s - self._last_s) * self._settings.epochs_per_hour / 3600)

    def is_due(
        self, readers: Collection[LiveReader], *, asked: bool, in_flight: int, reads_chunks: bool, now_s: float
    ) -> bool:
        """Whether to seal now what these registered readers have open; `asked` are stop and enumerator. An early epoch
        of a snapshot (`reads_chunks`) would be a small file that nobody waits for.
        """
        if not readers or in_flight >= self._settings.in_flight_max:
            return False
        if asked or any(reader.heartbeat.wants_seal for reader in readers):
            return True
        open_bytes = sum(reader.heartbeat.open_bytes for reader in readers)
        enough = self._settings.epoch_bytes_max if in_flight else self._settings.epoch_bytes_idle
        if open_bytes >= min(enough, self._settings.epoch_bytes_max):
            return True
        age_s = now_s - self._last_s
        if open_bytes > 0:
            if in_flight and open_bytes < self._settings.epoch_bytes_idle and not self._settings.hand_taken:
                return False
            early = not in_flight and not reads_chunks and age_s >= EARLY_S and self._early(now_s) >= 1
            return early or age_s >= self._settings.epoch_interval_s
        dirty = any(reader.heartbeat.dirty for reader in readers)
        return dirty and age_s >= max(IDLE_SEAL_INTERVAL_S, self._settings.epoch_interval_s)
