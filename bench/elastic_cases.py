"""One case of `bench.elastic`, in its own process: a cluster, servers and jobs, until all nodes have come and gone.

Jobs, raylets and servers end with the case, however it ends.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from bench.measure import progress
from raycdc.state.manifests.manifest import STATE_NODE
from tests.support.jobs import catch_up

NODES = 3
IDLE_S = 6.0
#: The rate limit of the whole job. A single reader gets its part of it, so that a snapshot lasts until nodes come.
PACE = 400
#: The maximum seconds of any step on a busy machine.
PATIENCE_S = 900.0
#: The maximum number of attempts of a case: servers and raylets of a busy machine may exceed their own limits, and a
#: snapshot may end before the nodes are there.
ATTEMPTS = 2
#: Seconds between two progress messages.
TELL_S = 30.0
_SECTIONS = '[ray]\naddress = "{address}"\n[spark]\nmaster = "local[1]"\n'
_COLUMNS = "id INT PRIMARY KEY, name VARCHAR(40)"


@dataclass(slots=True)
class Seen:
    """Observations while the jobs run: seconds since the start, live nodes, and readers of each job by node."""

    began_s: float = field(default_factory=time.monotonic)
    reported_s: float = 0.0
    nodes: list[tuple[float, int]] = field(default_factory=list)
    #: The time of each spool's first reader: in seconds since the start, and in wall-clock milliseconds.
    came_s: dict[str, float] = field(default_factory=dict)
    came_ms: dict[str, int] = field(default_factory=dict)
    rates: dict[int, list[int]] = field(default_factory=dict)
    #: The time of each sealed epoch of each job, and its segments; a state keeps only the newest epochs.
    sealed: dict[tuple[int, int], tuple[int, tuple[Any, ...]]] = field(default_factory=dict)
    #: The spools that had a reader when all nodes had one.
    grown: frozenset[str] = frozenset()
    first_row_s: float | None = None
    up_s: float = 0.0
    done_s: float = 0.0
    down_s: float = 0.0

    def look(self, alive: int, jobs: list[Any], *, waiting_for: str) -> None:
        now_s = round(time.monotonic() - self.began_s, 1)
        readers, rate = 0, 0
        for number, job in enumerate(jobs):
            self._take_sealed(number, job)
            last = next((e for e in reversed(job.runs[-1].events) if e["event"] == "progress"), None)
            for reader in last["readers"] if last else ():
                node = reader.get("node", "")
                self.came_s.setdefault(node, now_s)
                self.came_ms.setdefault(node, time.time_ns() // 1_000_000)
            if last and last["readers"]:
                readers += len(last["readers"])
                rate += sum(table["rows_per_s"] for table in _known_tables(job.runs[-1].events).values())
        if readers:
            self.rates.setdefault(readers, []).append(rate)
        if self.first_row_s is None and any(
            segment.rows for _, segments in self.sealed.values() for segment in segments
        ):
            self.first_row_s = now_s
        changed = not self.nodes or self.nodes[-1][1] != alive
        if changed:
            self.nodes.append((now_s, alive))
        if changed or now_s - self.reported_s >= TELL_S:
            self.reported_s = now_s
            held = f"{readers} reader{'s' * (readers != 1)}, {rate:,} rows/s"
            progress(f"  {now_s:6.1f} s: {alive} node{'s' * (alive != 1)}, {held}; waiting for {waiting_for}")

    def _take_sealed(self, number: int, job: Any) -> None:
        from raycdc.errors import StateError
        from raycdc.state.store import CheckpointStore

        known = max((epoch for owner, epoch in self.sealed if owner == number), default=-1)
        # A job has no state at first, and epochs may be pruned before they are read.
        with suppress(StateError, OSError):
            for manifest in CheckpointStore(job.state).manifests(known):
                self.sealed[number, manifest.epoch] = (manifest.created_ms, manifest.segments)

    def reactions(self) -> list[float]:
        """Return the seconds from each new node to a reader there.

        Spools do not report the names of their nodes, so the first new reader counts as that of the first node.
        """
        alive = [at for (_, before), (at, after) in pairwise(self.nodes) for _ in range(after - before)]
        readers = sorted(at for node, at in self.came_s.items() if node in self.grown - {STATE_NODE})
        return [round(reader - node, 1) for node, reader in zip(alive, readers, strict=False)]

    @property
    def most(self) -> int:
        return max((alive for _, alive in self.nodes), default=0)


class TooShortError(Exception):
    """Raised if the snapshot ended before every node had a reader: the case needs more rows."""


def measure_case(case: str, rows: int) -> dict[str, Any]:
    """Return the figures of `case`.

    The case is repeated with twice the rows if its snapshot ended too early, and once if its cluster or its servers did
    not start.
    """
    from raycdc.sandbox.servers import ServerError

    for attempt in range(1, ATTEMPTS + 1):
        try:
            with tempfile.TemporaryDirectory(prefix="elastic-") as folder:
                return _PLAYS[case](Path(folder), rows)
        except (TooShortError, ServerError) as error:
            if attempt == ATTEMPTS:
                raise
            progress(f"  {case}: {error}; beginning anew")
            if isinstance(error, TooShortError):
                rows *= 2
    raise AssertionError("the last attempt raised or returned")


def _chunks(folder: Path, rows: int, version: Literal["v1", "v2"] = "v2") -> dict[str, Any]:
    from tests.support.ray_cluster import scaling_nodes

    nodes = scaling_nodes(folder / "cluster", others=NODES, idle_s=IDLE_S, version=version)
    with nodes as cluster, _tables(rows, "a") as server:
        job = _table_job(folder / "a", server, cluster.address, "a", readers=1 + NODES)
        return _play(cluster, [job], rows=rows, written=lambda: rows)


def _datagen(folder: Path, rows: int) -> dict[str, Any]:
    from tests.support.jobs import Job
    from tests.support.ray_cluster import scaling_nodes

    class Generated(Job):
        def source_section(self) -> str:
            # One change, so that there is a log to follow.
            changes = "events = 1\nnew_rows = 1\ndeletes = 0.0"
            table = f'type = "datagen"\ntables = ["shop.t"]\nrows = {rows}\nchunk_rows = {self.chunk_rows}'
            # The rate limit is that of each reader: with one for the whole source, a single reader would suffice.
            return f"{table}\n{changes}\nfaults = {{ chunk_rows_per_second = {PACE // (1 + NODES)} }}"

    with scaling_nodes(folder / "cluster", others=NODES, idle_s=IDLE_S) as cluster:
        nobody: Any = None
        sections = _SECTIONS.format(address=cluster.address)
        job = Generated(
            folder / "a",
            nobody,
            "shop",
            ["t"],
            sink="jsonl",
            write="changelog",
            readers=1 + NODES,
            chunk_rows=100,
            sections=sections,
        )
        return _play(cluster, [job], rows=rows, written=lambda: rows)


def _beside(folder: Path, rows: int) -> dict[str, Any]:
    from tests.support.ray_cluster import scaling_nodes

    rows //= 2
    # Free CPUs for the last reader of each job: with one CPU, another node would be kept for the second log.
    nodes = scaling_nodes(folder / "cluster", others=NODES, idle_s=IDLE_S, head_cpus=2)
    with nodes as cluster, _tables(rows, "a", "b") as server:
        jobs = [
            _table_job(folder / name, server, cluster.address, name, readers=readers)
            for name, readers in (("a", 3), ("b", NODES - 1))
        ]
        return _play(cluster, jobs, rows=2 * rows, written=lambda: rows)


def _partitions(folder: Path, _: int) -> dict[str, Any]:
    from raycdc.sandbox.servers import KafkaServer
    from tests.support.jobs import TopicJob
    from tests.support.ray_cluster import scaling_nodes

    with (
        KafkaServer() as kafka,
        kafka.fresh_topic(partitions=8) as topic,
        scaling_nodes(folder / "cluster", others=NODES, idle_s=IDLE_S) as cluster,
        _messages(kafka.bootstrap_servers, topic, per_s=PACE) as count,
    ):
        broker: Any = kafka
        job = TopicJob(
            folder / "a",
            broker,
            "shop",
            ("product",),
            sink="jsonl",
            write="changelog",
            readers=1 + NODES,
            source='group_id = "elastic"\ndiscovery_interval = "1s"',
            sections=_SECTIONS.format(address=cluster.address),
            topic=topic,
            columns="id INT PRIMARY KEY, name VARCHAR(40)",
        )
        return _play(cluster, [job], rows=0, written=count)


def _play(cluster: Any, jobs: list[Any], *, rows: int, written: Any) -> dict[str, Any]:
    """Run until all nodes have come and gone, then stop the jobs and count rows."""
    try:
        for job in jobs:
            job.folder.mkdir(parents=True, exist_ok=True)
            job.start()
        seen = _watch(cluster, jobs, rows)
        codes = [job.runs[-1].interrupt() for job in jobs]
        wall_s = time.monotonic() - seen.began_s
        assert all(code in (0, 130) for code in codes), [job.runs[-1].story() for job in jobs]
        progress("  stopped; reading on to the end of the source, and counting")
        total, lost, repeated = 0, 0, 0
        for job in jobs:
            total += written()
            catch_up(job)
            keys = _keys(job)
            lost += written() - len(keys)
            repeated += sum(keys.values()) - len(keys)
    finally:
        for run in [run for job in jobs for run in job.runs if not run.ended]:
            run.kill()
    # The last run of each job is the one that caught up.
    reasons = [e["reason"] for job in jobs for e in job.runs[0].events if e["event"] == "scaling"]
    return {
        "rows": total,
        "wall_s": round(wall_s, 2),
        "nodes": seen.nodes,
        "first_row_after_s": seen.first_row_s,
        "all_nodes_read_after_s": seen.up_s,
        "reader_after_its_node_s": seen.reactions(),
        "work_done_after_s": seen.done_s,
        "given_back_after_s": seen.down_s,
        "given_back": seen.most == 1 + NODES and seen.nodes[-1][1] == 1,
        "lost": lost,
        "repeated": repeated,
        "share_of_rows_after_it_came": _shares(seen),
        "rows_per_s_by_readers": {n: round(sum(r) / len(r)) for n, r in sorted(seen.rates.items())},
        "reasons": list(dict.fromkeys(reasons)),
    }


def _watch(cluster: Any, jobs: list[Any], rows: int) -> Seen:
    """Observe until each node has a reader, and then until only the first node is left."""
    seen = Seen()

    def until(reached: Any, what: str) -> float:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            seen.look(len(cluster.alive()), jobs, waiting_for=what)
            if reached():
                return round(time.monotonic() - seen.began_s, 1)
            ended = any(job.runs[-1].ended for job in jobs)
            if ended or time.monotonic() > deadline:
                stories = "\n".join(job.runs[-1].story() for job in jobs)
                progress(f"{stories}\n{cluster.log.read_text()[-2000:]}")
                why = "a job ended before" if ended else f"not within {PATIENCE_S:.0f} s:"
                raise AssertionError(f"{why} {what}; seen were (seconds, nodes) {seen.nodes}")
            time.sleep(0.3)

    def up() -> bool:
        if len(seen.came_s) >= 1 + NODES and seen.nodes[-1][1] == 1 + NODES:
            return True
        if rows and _done(jobs, rows):
            raise TooShortError(f"{rows:,} rows were read before a reader was on each node: {seen.nodes}")
        return False

    seen.up_s = until(up, "a reader on each node")
    # The node of a log's last reader is no growth.
    seen.grown = frozenset(seen.came_s)
    seen.done_s = until(lambda: _done(jobs, rows), "the end of the snapshots") if rows else seen.up_s
    seen.down_s = until(lambda: seen.nodes[-1][1] == 1, "the end of all other nodes")
    return seen


def _known_tables(events: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the newest figures of each table by name; a progress line has only the tables with changes."""
    lines = [event for event in list(events) if event["event"] == "progress"]
    return {table["table"]: table for event in lines for table in event["tables"]}


def _done(jobs: list[Any], rows: int) -> bool:
    """Return True if all tables were read to the end of their snapshots."""
    if not rows:
        return True
    known = [_known_tables(job.runs[-1].events) for job in jobs]
    return all(told and all(table["phase"] == "stream" for table in told.values()) for told in known)


def _shares(seen: Seen) -> dict[str, float]:
    """Return the fraction of rows that each node read, of those sealed while all nodes had a reader."""
    sealed = list(seen.sealed.values())
    last_ms = {
        node: max((ms for ms, segments in sealed if any(s.node == node for s in segments)), default=0)
        for node in seen.grown
    }
    end_ms = min((ms for node, ms in last_ms.items() if node != STATE_NODE), default=0)
    shares = {}
    for node in sorted(seen.grown, key=seen.came_ms.__getitem__):
        came_ms = seen.came_ms[node]
        rows: Counter[str] = Counter()
        for ms, segments in sealed:
            if came_ms <= ms <= end_ms:
                for segment in segments:
                    rows[segment.node] += segment.rows
        shares[node] = round(rows[node] / max(1, rows.total()), 3)
    return shares


def _keys(job: Any) -> Counter[int]:
    """Return how often each key was inserted into the sink's files."""
    from raycdc.sandbox.compare import read_changelog

    folder = next(path for path in job.lake.glob("*/*") if path.is_dir())
    return Counter(int(row["id"]) for row in read_changelog(folder, "jsonl") if row["_op"] == "+I")


def _table_job(folder: Path, server: Any, address: str, name: str, *, readers: int) -> Any:
    from tests.support.jobs import Job

    return Job(
        folder,
        server,
        f"elastic_{name}",
        ["t"],
        sink="jsonl",
        write="changelog",
        readers=readers,
        chunk_rows=100,
        snapshot=f"rows_per_second = {PACE * readers // (1 + NODES)}, connections = {readers}",
        sections=_SECTIONS.format(address=address),
    )


@contextmanager
def _tables(rows: int, *names: str) -> Iterator[Any]:
    from raycdc.sandbox.servers import MariaDbServer

    with MariaDbServer() as server:
        with server.connect() as connection, connection.cursor() as cursor:
            for name in names:
                cursor.execute(f"CREATE DATABASE elastic_{name}")
                cursor.execute(f"USE elastic_{name}")
                cursor.execute(f"CREATE TABLE elastic_{name}.t ({_COLUMNS})")
                cursor.execute(f"INSERT INTO elastic_{name}.t SELECT seq, CONCAT('name ', seq) FROM seq_1_to_{rows}")
            connection.commit()
        yield server


@contextmanager
def _messages(servers: str, topic: str, *, per_s: int) -> Iterator[Any]:
    """Write to all partitions while the block runs; the yielded function stops that and returns the number
    of messages.
    """
    from confluent_kafka import Producer

    ended, count = threading.Event(), [0]

    def work() -> None:
        producer = Producer({"bootstrap.servers": servers, "log_level": 0})
        while not ended.wait(0.1):
            for _ in range(per_s // 10):
                number = count[0] = count[0] + 1
                data = {"id": number, "name": f"name {number}"}
                message = {"database": "shop", "table": "product", "type": "insert", "ts": 1, "data": data}
                producer.produce(topic, json.dumps(message).encode(), partition=number % 8)
            producer.poll(0)
        producer.flush(30)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()

    def stop() -> int:
        ended.set()
        thread.join()
        return count[0]

    try:
        yield stop
    finally:
        with suppress(RuntimeError):
            stop()


_PLAYS: dict[str, Callable[[Path, int], dict[str, Any]]] = {
    "chunks": _chunks,
    "partitions": _partitions,
    "beside": _beside,
    "datagen": _datagen,
    "autoscaler_v1": partial(_chunks, version="v1"),
}


def main(case: str, rows: int) -> int:
    """Print the figures of the case, or the error that ended it, as the last line."""
    # All processes that the case has started end with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        told: dict[str, Any] = {"figures": measure_case(case, rows)}
    except Exception as error:  # noqa: BLE001 - the other cases follow
        traceback.print_exc()
        told = {"failed": f"{type(error).__name__}: {error}".strip()}
    print("\n" + json.dumps(told), flush=True)
    return "failed" in told


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
