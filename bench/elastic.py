"""Readers on a Ray cluster that scales: 1 → 4 → 1 nodes under one run, and what each node read of it.

| case | reads | grows because | shrinks because |
|---|---|---|---|
| ``chunks`` | a table of MariaDB, by chunks, at a pace | chunks wait | only the log is left |
| ``partitions`` | a topic of eight partitions that somebody writes to | nothing is known at the start | no backlog |
| ``beside`` | two tables, in two pipelines on the same cluster | chunks wait | only the logs are left |
| ``datagen`` | a generated table, by chunks, slowly by each reader | chunks wait | only the log is left |
| ``autoscaler_v1`` | as ``chunks``, under the older one of Ray's autoscalers | chunks wait | only the log is left |

The cluster is Ray's own autoscaler (v2, but for the last case) over raylets of this machine
(`raycdc.testing.ray_cluster`); each node has one CPU, and each reader needs one. Rows per node are counted from
manifests. ``rows`` are those of the source; ``lost`` and ``repeated`` are counted in the sink's files. Times are those
of this machine, which starts the nodes itself.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from bench.measure import Measurement, Options, progress

CASES = ("chunks", "partitions", "beside", "datagen", "autoscaler_v1")
SERVER = "mariadb and kafka"

NODES = 3
IDLE_S = 6.0
#: Of the whole job; a reader alone has its share of it, so that a snapshot lasts while nodes come.
PACE = 400
ROWS = 40_000
#: Longest that anything may take on a busy machine.
PATIENCE_S = 420.0
_SECTIONS = '[ray]\naddress = "{address}"\n[spark]\nmaster = "local[1]"\n'
_COLUMNS = "id INT PRIMARY KEY, name VARCHAR(40)"


@dataclass(slots=True)
class Seen:
    """What was seen while the jobs ran: seconds since the start, nodes that are alive, readers of each job by node."""

    began_s: float = field(default_factory=time.monotonic)
    nodes: list[tuple[float, int]] = field(default_factory=list)
    #: Wall-clock milliseconds at which each spool had its first reader.
    came_ms: dict[str, int] = field(default_factory=dict)
    rates: dict[int, list[int]] = field(default_factory=dict)
    #: When each epoch of each job was sealed, and its segments; a state keeps the newest epochs only.
    sealed: dict[tuple[int, int], tuple[int, tuple[Any, ...]]] = field(default_factory=dict)

    def look(self, alive: int, jobs: list[Any]) -> None:
        now_s = time.monotonic() - self.began_s
        if not self.nodes or self.nodes[-1][1] != alive:
            self.nodes.append((round(now_s, 1), alive))
            progress(f"  {now_s:6.1f} s: {alive} nodes")
        for number, job in enumerate(jobs):
            self._take_sealed(number, job)
            last = next((e for e in reversed(job.runs[-1].events) if e["event"] == "progress"), None)
            for reader in last["readers"] if last else ():
                self.came_ms.setdefault(reader.get("node", ""), time.time_ns() // 1_000_000)
            if last and last["readers"]:
                rate = sum(table["rows_per_s"] for table in _known_tables(job.runs[-1].events).values())
                self.rates.setdefault(len(last["readers"]), []).append(rate)

    def _take_sealed(self, number: int, job: Any) -> None:
        from raycdc.checkpoint.store import CheckpointStore
        from raycdc.errors import StateError

        known = max((epoch for owner, epoch in self.sealed if owner == number), default=-1)
        # Before a job has a state there is none, and what was seen may be pruned before it is read.
        with suppress(StateError, OSError):
            for manifest in CheckpointStore(job.state).manifests(known):
                self.sealed[number, manifest.epoch] = (manifest.created_ms, manifest.segments)

    @property
    def most(self) -> int:
        return max((alive for _, alive in self.nodes), default=0)


def run(options: Options) -> Iterator[Measurement]:
    """Each case on a cluster of its own."""
    cases = {
        "chunks": _chunks,
        "partitions": _partitions,
        "beside": _beside,
        "datagen": _datagen,
        "autoscaler_v1": partial(_chunks, version="v1"),
    }
    for case in options.cases:
        progress(f"{case}: starting a cluster and a server ...")
        with tempfile.TemporaryDirectory(prefix="elastic-") as folder:
            yield cases[case](Path(folder), options.rows or ROWS)


def _chunks(folder: Path, rows: int, version: Literal["v1", "v2"] = "v2") -> Measurement:
    from raycdc.testing.ray_cluster import scaling_nodes

    nodes = scaling_nodes(folder / "cluster", others=NODES, idle_s=IDLE_S, version=version)
    with nodes as cluster, _tables(rows, "a") as server:
        job = _table_job(folder / "a", server, cluster.address, "a", readers=1 + NODES)
        case = "chunks" if version == "v2" else "autoscaler_v1"
        return _play(case, cluster, [job], rows=rows, written=lambda: rows)


def _datagen(folder: Path, rows: int) -> Measurement:
    from raycdc.testing.jobs import Job
    from raycdc.testing.ray_cluster import scaling_nodes

    class Generated(Job):
        def source_section(self) -> str:
            # One change, so that there is a log to follow.
            changes = "events = 1\nnew_rows = 1\ndeletes = 0.0"
            table = f'type = "datagen"\ntables = ["shop.t"]\nrows = {rows}\nchunk_rows = {self.chunk_rows}'
            # Of each reader: with a pace of the whole source, one would do.
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
        return _play("datagen", cluster, [job], rows=rows, written=lambda: rows)


def _beside(folder: Path, rows: int) -> Measurement:
    from raycdc.testing.ray_cluster import scaling_nodes

    rows //= 2
    # Room for the last reader of each: with one CPU another node would be kept for the second log.
    nodes = scaling_nodes(folder / "cluster", others=NODES, idle_s=IDLE_S, head_cpus=2)
    with nodes as cluster, _tables(rows, "a", "b") as server:
        jobs = [
            _table_job(folder / name, server, cluster.address, name, readers=readers)
            for name, readers in (("a", 3), ("b", NODES - 1))
        ]
        return _play("beside", cluster, jobs, rows=2 * rows, written=lambda: rows)


def _partitions(folder: Path, _: int) -> Measurement:
    from raycdc.testing.jobs import TopicJob
    from raycdc.testing.ray_cluster import scaling_nodes
    from raycdc.testing.servers import KafkaServer

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
        return _play("partitions", cluster, [job], rows=0, written=count)


def _play(case: str, cluster: Any, jobs: list[Any], *, rows: int, written: Any) -> Measurement:
    """Run until all nodes have come and gone again, then stop, and count."""
    from raycdc.testing.jobs import catch_up

    seen = Seen()
    for job in jobs:
        job.folder.mkdir(parents=True, exist_ok=True)
        job.start()

    def until(reached: Any, what: str) -> float:
        deadline = time.monotonic() + PATIENCE_S
        while not reached():
            seen.look(len(cluster.alive()), jobs)
            ended = [job.runs[-1].story() for job in jobs if job.runs[-1].ended]
            if ended or time.monotonic() > deadline:
                stories = "\n".join(job.runs[-1].story() for job in jobs)
                raise AssertionError(f"{what} did not come\n{seen}\n{stories}\n{cluster.log.read_text()[-2000:]}")
            time.sleep(0.3)
        return time.monotonic() - seen.began_s

    up_s = until(lambda: len(seen.came_ms) >= 1 + NODES, "a reader on each node")
    down_s = until(lambda: len(cluster.alive()) == 1 and _done(jobs, rows), "the end of all other nodes")
    seen.look(1, jobs)
    codes = [job.runs[-1].interrupt() for job in jobs]
    wall_s = time.monotonic() - seen.began_s
    assert all(code in (0, 130) for code in codes), [job.runs[-1].story() for job in jobs]
    total, lost, repeated = 0, 0, 0
    for job in jobs:
        total += written()
        catch_up(job)
        keys = _keys(job)
        lost += written() - len(keys)
        repeated += sum(keys.values()) - len(keys)
    # The last run of each is the one that caught up.
    reasons = [e["reason"] for job in jobs for e in job.runs[0].events if e["event"] == "scaling"]
    more = {
        "nodes": seen.nodes,
        "all_nodes_read_after_s": round(up_s, 1),
        "given_back_after_s": round(down_s, 1),
        "given_back": seen.most == 1 + NODES and seen.nodes[-1][1] == 1,
        "lost": lost,
        "repeated": repeated,
        "share_of_rows_after_it_came": _shares(seen),
        "rows_per_s_by_readers": {n: round(sum(r) / len(r)) for n, r in sorted(seen.rates.items())},
        "reasons": list(dict.fromkeys(reasons)),
    }
    shares = ", ".join(f"{share:.0%}" for share in more["share_of_rows_after_it_came"].values())
    progress(f"  {case}: {lost} rows lost, {repeated} repeated, nodes read {shares}, given back after {down_s:.0f} s")
    return Measurement(case, "raycdc", total, wall_s, 0.0, 0.0, more)


def _known_tables(events: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The newest figures of each table by name: a line of progress has those of which there was news."""
    lines = [event for event in list(events) if event["event"] == "progress"]
    return {table["table"]: table for event in lines for table in event["tables"]}


def _done(jobs: list[Any], rows: int) -> bool:
    """All tables were read to the end of their snapshots, where there are any."""
    if not rows:
        return True
    known = [_known_tables(job.runs[-1].events) for job in jobs]
    return all(told and all(table["phase"] == "stream" for table in told.values()) for told in known)


def _shares(seen: Seen) -> dict[str, float]:
    """Of the rows that were sealed after a node's first reader came, while all had some, the part that it read."""
    sealed = list(seen.sealed.values())
    last_ms = {
        node: max((ms for ms, segments in sealed if any(s.node == node for s in segments)), default=0)
        for node in seen.came_ms
    }
    end_ms = min((ms for node, ms in last_ms.items() if node != "state"), default=0)
    shares = {}
    for node, came_ms in seen.came_ms.items():
        rows: Counter[str] = Counter()
        for ms, segments in sealed:
            if came_ms <= ms <= end_ms:
                for segment in segments:
                    rows[segment.node] += segment.rows
        shares[node] = round(rows[node] / max(1, rows.total()), 3)
    return shares


def _keys(job: Any) -> Counter[int]:
    """How often each key was inserted into the sink's files."""
    from raycdc.testing.changelog import read_changelog

    folder = next(path for path in job.lake.glob("*/*") if path.is_dir())
    return Counter(int(row["id"]) for row in read_changelog(folder, "jsonl") if row["_op"] == "+I")


def _table_job(folder: Path, server: Any, address: str, name: str, *, readers: int) -> Any:
    from raycdc.testing.jobs import Job

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
    from raycdc.testing.servers import MariaDbServer

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
    """Somebody writes to all partitions while the block runs; tells how many messages there are, once stopped."""
    import json

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
