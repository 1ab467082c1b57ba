"""CPU time of a whole tree of processes by role, read from /proc while it runs.

`getrusage` knows only children that were waited for; Ray's workers and Spark's Python workers have other parents, and
many end on their own. So the tree is looked at every `SAMPLE_S`; a process counts with the last CPU time seen of it.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

#: A process that ends between two samples can have used at most this much time unseen.
SAMPLE_S = 0.1
#: Seconds between two measurements of shared memory, for which the kernel walks all pages of a process.
PSS_EVERY_S = 1.0

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
#: The fields of /proc/PID/stat after the name in parentheses: parent, user time, system time, resident pages.
_PARENT, _USER, _SYSTEM, _RESIDENT = 1, 11, 12, 21

#: The role of a process by a part of its command line; the first match counts. Without a match it is the driver if it
#: is the root, else "other".
_ROLES = (
    ("org.apache.spark", "spark-jvm"),
    ("-m raycdc.spark.daemon", "spark-python"),
    ("pyspark.daemon", "spark-python"),
    ("ray::SourceReader", "readers"),
    ("ray::SplitEnumerator", "coordinator"),
    ("ray::", "ray"),
    ("raylet", "ray"),
    ("gcs_server", "ray"),
    ("/ray/", "ray"),
)


class ProcessTree:
    """Watches `root` and all its descendants in the background between ``with`` and the block's end."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._cpu: dict[int, float] = {}
        self._roles: dict[int, str] = {}
        self._samples: list[tuple[float, dict[int, float]]] = []
        self.peak_rss_mb = 0.0
        #: The largest sum of all processes' memory; a shared page counts once.
        self.peak_pss_mb = 0.0
        self._pss_s = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="process-tree", daemon=True)

    def __enter__(self) -> Self:
        self._look()
        self._thread.start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def cpu_s(self, at: float) -> dict[str, float]:
        """Return CPU seconds by role up to `at` (of `time.monotonic`), from the nearest sample not before it."""
        cpu = next((cpu for seen, cpu in self._samples if seen >= at), self._samples[-1][1])
        totals: dict[str, float] = {}
        for pid, seconds in cpu.items():
            # The last role counts: Ray's idle workers become readers.
            totals[self._roles[pid]] = totals.get(self._roles[pid], 0.0) + seconds
        return totals

    def _watch(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            self._look()

    def _look(self) -> None:
        stats = {pid: found for pid in _pids() if (found := _stat(pid)) is not None}
        resident = 0
        members = self._members(stats)
        if time.monotonic() >= self._pss_s + PSS_EVERY_S:
            self.peak_pss_mb = max(self.peak_pss_mb, sum(map(_pss_mb, members)))
            self._pss_s = time.monotonic()
        for pid in members:
            fields = stats[pid]
            self._cpu[pid] = (int(fields[_USER]) + int(fields[_SYSTEM])) / _TICKS_PER_S
            resident += int(fields[_RESIDENT])
            if self._roles.get(pid, "other") in ("other", "ray"):
                # Workers get their names only when they get their work.
                self._roles[pid] = self._role(pid)
        self.peak_rss_mb = max(self.peak_rss_mb, resident * _PAGE_BYTES / (1 << 20))
        self._samples.append((time.monotonic(), dict(self._cpu)))

    def _members(self, stats: dict[int, list[str]]) -> list[int]:
        """Return the root, the processes that it started, and orphaned processes that belonged to the tree before."""
        children: dict[int, list[int]] = {}
        for pid, fields in stats.items():
            children.setdefault(int(fields[_PARENT]), []).append(pid)
        pending = [pid for pid in {self._root, *self._cpu} if pid in stats]
        members: set[int] = set()
        while pending:
            pid = pending.pop()
            if pid not in members:
                members.add(pid)
                pending += children.get(pid, [])
        return sorted(members)

    def _role(self, pid: int) -> str:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            return "other"
        if pid == self._root:
            return "driver"
        return next((role for part, role in _ROLES if part in command), "other")


def process_cpu_s(pid: int) -> float:
    """Return the CPU seconds that `pid` has used so far; 0 if it has ended."""
    fields = _stat(pid)
    return 0.0 if fields is None else (int(fields[_USER]) + int(fields[_SYSTEM])) / _TICKS_PER_S


def _pss_mb(pid: int) -> float:
    """Return the memory of a process, with its part of shared pages; 0 if it has ended (proc_pid_smaps_rollup(5), in
    kB).
    """
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith("Pss:")), 0.0)


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the state on; None if the process has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()
