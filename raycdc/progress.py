"""The reports of a running pipeline: the events of ``raycdc run --json`` and of the screen.

| event | when | fields |
|---|---|---|
| `starting` | before `started`, one per step | `step`: what is being done, for people (not in ``--json``) |
| `started` | processes are up, and again whenever they change | `pids` |
| `progress` | twice a second, less with hundreds of tables | tables: phase, chunks, rows, values lost, rows left out; \
lags; readers |
| `commit` | an epoch is in the sink | `epoch`, `tables`, `rows`, `seconds` = `staging_s` + `commit_s` |
| `warning` | something the user should know, the job goes on | `text` |
| `parked` | a table is not followed (told at each start) | `table`, `phase`, `again`, `reason`, `position`, `ts_ms` |
| `caught_up` | a bounded run reached its end | |
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from raycdc.epochs.outcomes import EpochStatistics
from raycdc.errors import RaycdcError

#: So many tables are reported of as often as a caller wants; looking at ten times as many costs ten times as much.
TABLES_PER_LOOK = 100


Listener = Callable[[dict[str, Any]], None]


class ProgressReporter:
    """Turns statuses and commits into events. `listener` is called from several threads, one at a time."""

    def __init__(self, listener: Listener, *, driver_pid: int) -> None:
        self._listener = listener
        self._driver_pid = driver_pid
        self._lock = threading.Lock()
        self._parked: dict[str, int] = {}
        self._problems: dict[str, str] = {}
        self._rows: dict[str, tuple[float, int]] = {}
        self._emit_lag_ms: int | None = None
        self._bad_rows: Mapping[str, int] = {}
        self._ordinal: int | None = None
        self._moved_s = time.monotonic()

    def starting(self, step: str) -> None:
        self._tell({"event": "starting", "step": step})

    def processes(self, pids: dict[str, Any]) -> None:
        self._tell({"event": "started", "pids": {"driver": self._driver_pid, **pids}})

    def warning(self, text: str) -> None:
        self._tell({"event": "warning", "text": text})

    def committed(self, figures: EpochStatistics) -> None:
        if figures.watermark_ms is not None:
            self._emit_lag_ms = max(0, figures.committed_ms - figures.watermark_ms)
        self._bad_rows = figures.bad_rows
        self._tell(
            {
                "event": "commit",
                "epoch": figures.epoch,
                "tables": dict(figures.tables),
                "rows": figures.rows,
                "seconds": round(figures.staging_s + figures.commit_s, 3),
                "staging_s": round(figures.staging_s, 3),
                "commit_s": round(figures.commit_s, 3),
            }
        )

    def finished(self, *, stopped: bool) -> None:
        if not stopped:
            self._tell({"event": "caught_up"})

    def bad_rows(self, before: Mapping[str, int]) -> None:
        """Rows of each table that earlier runs left out."""
        self._bad_rows = before

    @contextmanager
    def watching(self, status: Callable[[], dict[str, Any] | None], *, every_s: float) -> Iterator[None]:
        """Report progress in the background while the block runs, and once more at its end."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(every_s * max(1.0, len(self._rows) / TABLES_PER_LOOK)):
                if not self._look(status):
                    return

        thread = threading.Thread(target=watch, name="progress", daemon=True)
        thread.start()
        try:
            yield
            self._look(status)
        finally:
            ended.set()
            thread.join(timeout=5)

    def _look(self, status: Callable[[], dict[str, Any] | None]) -> bool:
        """Report once; False when the job has failed, which the epoch loop tells in its own words."""
        try:
            now = status()
        except RaycdcError:
            return False
        if now is not None:
            self._tell_parked(now["tables"])
            self._tell_problems(now.get("problems", {}))
            self._tell(self._progress(now))
        return True

    def _tell_parked(self, tables: dict[str, Any]) -> None:
        for name, table in sorted(tables.items()):
            entry = table.get("parked")
            if entry is not None and self._parked.get(name) != entry["incarnation"]:
                self._parked[name] = entry["incarnation"]
                told = {key: entry[key] for key in ("phase", "again", "reason", "position", "ts_ms")}
                self._tell({"event": "parked", "table": name, **told})

    def _tell_problems(self, problems: Mapping[str, str]) -> None:
        """Harmless notes of the source: a warning for each, and again when it went away and came back."""
        for place, text in sorted(problems.items()):
            if self._problems.get(place) != text:
                self.warning(f"{place}: {text}")
        self._problems = dict(problems)

    def _progress(self, status: dict[str, Any]) -> dict[str, Any]:
        now_s = time.monotonic()
        tables = []
        for name, table in sorted(status["tables"].items()):
            rows = table.get("rows", 0)
            then_s, before = self._rows.get(name, (now_s, rows))
            self._rows[name] = (now_s, rows)
            rate = (rows - before) / (now_s - then_s) if now_s > then_s else 0.0
            lost = table.get("lost_values", 0)
            bad = {"bad_rows": self._bad_rows[name]} if name in self._bad_rows else {}
            bad |= _of_readers(status["readers"], name)
            tables.append({"table": name, **table, "rows": rows, "rows_per_s": round(rate), "lost_values": lost, **bad})
        readers = [
            {
                **{k: r[k] for k in ("subtask", "pid", "splits")},
                "seconds": r["metrics"].get("seconds", {}),
                # Where the cut of an epoch is that takes long, in files and bytes on disk.
                **({"sealing": r["metrics"]["sealing"]} if "sealing" in r["metrics"] else {}),
                # Partitions that wait for slower ones.
                **({"paused": r["metrics"]["waiting"]} if "waiting" in r["metrics"] else {}),
            }
            for r in status["readers"]
        ]
        return {"event": "progress", "tables": tables, "lag": self._lags(status, now_s), "readers": readers}

    def _lags(self, status: dict[str, Any], now_s: float) -> dict[str, Any]:
        """FLIP-33's names, in milliseconds; null while there is nothing to measure. Partitions have two more."""
        partitioned = [r["metrics"] for r in status["readers"] if "pendingRecords" in r["metrics"]]
        if partitioned:
            return _lags_of_partitions(partitioned)
        fetch_lag_ms = None
        for reader in status["readers"]:
            log = reader["metrics"].get("log")
            if log is not None:
                fetch_lag_ms = reader["metrics"].get("fetch_lag_ms")
                if log["ordinal"] != self._ordinal:
                    self._ordinal, self._moved_s = log["ordinal"], now_s
        return {
            "currentFetchEventTimeLag": fetch_lag_ms,
            "currentEmitEventTimeLag": self._emit_lag_ms,
            "sourceIdleTime": round((now_s - self._moved_s) * 1000),
        }

    def _tell(self, event: dict[str, Any]) -> None:
        with self._lock:
            self._listener(event)


def _of_readers(readers: Sequence[Mapping[str, Any]], table: str) -> dict[str, int]:
    """The sources' figures about a table, in all readers since these began; empty where there are none."""
    total: Counter[str] = Counter()
    for reader in readers:
        for name, counts in reader["metrics"].get("source", {}).items():
            total[name] += counts.get(table, 0)
    return {name: count for name, count in total.items() if count}


def _lags_of_partitions(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Those of all readers together: the worst lag, how long nobody has read anything, what is still to be read."""

    def known(name: str) -> list[int]:
        return [figures[name] for figures in metrics if figures[name] is not None]

    pending = known("pendingRecords")
    return {
        "currentFetchEventTimeLag": max(known("currentFetchEventTimeLag"), default=None),
        "currentEmitEventTimeLag": max(known("currentEmitEventTimeLag"), default=None),
        "sourceIdleTime": min(known("sourceIdleTime"), default=None),
        "pendingRecords": sum(pending) if pending else None,
        "watermarkLag": max(known("watermarkLag"), default=None),
    }
