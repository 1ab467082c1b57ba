"""Observes when rows become visible in a target, for `bench.latency`, whose rows have their own time in a column `at`.

Each class asks a target of one kind as its own readers would, and never raycdc. Times are microseconds of the clock
that all processes of this machine share.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raycdc.sandbox.servers import KafkaServer, PostgresServer

#: A row's key and its own time.
Row = tuple[int, int]

#: Seconds between two listings of an Iceberg table's metadata, of which a hundred versions are kept.
_POLL_S = 0.2
_ANSWER_S = 30.0


class Watch(ABC):
    """Observes one target. It begins when the snapshot's rows are there, before the first change."""

    def begin(self) -> None:  # noqa: B027
        """Begin to observe, if the target does not keep the times itself."""

    @abstractmethod
    def seen(self, since_us: int) -> Mapping[Row, int]:
        """Return when each row was seen first, of those whose own time is not before `since_us`."""

    def close(self) -> None:  # noqa: B027
        """Stop observing."""


class InDelta(Watch):
    """Observes the newest versions of a table's log. Each adds files with rows that no earlier version has."""

    def __init__(self, table: Path) -> None:
        self._table = table

    def seen(self, since_us: int) -> Mapping[Row, int]:
        found: dict[Row, int] = {}
        for version in sorted((self._table / "_delta_log").glob("*.json")):
            committed_us = version.stat().st_mtime_ns // 1000
            if committed_us < since_us:
                continue
            actions = [json.loads(line) for line in version.read_text().splitlines()]
            files = [self._table / action["add"]["path"] for action in actions if "add" in action]
            for row in _rows(files, since_us):
                found.setdefault(row, committed_us)
        return found


class InIceberg(Watch):
    """Observes the snapshots of a table in a folder.

    Each snapshot adds files with rows that no earlier one has. A snapshot is visible when the metadata file with it has
    its name. Metadata files are removed after a hundred versions, so each gets a second name in `kept`.
    """

    def __init__(self, table: Path, kept: Path) -> None:
        self._metadata, self._kept = table / "metadata", kept
        self._named_us: dict[int, int] = {}
        #: The rows of the files that each snapshot added, for the versions that were read.
        self._rows: dict[int, list[Row]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_on, daemon=True)

    def begin(self) -> None:
        self._kept.mkdir()
        self._thread.start()

    def seen(self, since_us: int) -> Mapping[Row, int]:
        self._look()
        found: dict[Row, int] = {}
        for version, named_us in sorted(self._named_us.items()):
            if named_us < since_us:
                continue
            if version not in self._rows:
                self._rows[version] = _rows(_added(self._kept / f"{version}.metadata.json"), since_us)
            for row in self._rows[version]:
                if row[1] >= since_us:
                    found.setdefault(row, named_us)
        return found

    def close(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _look_on(self) -> None:
        while not self._over.wait(_POLL_S):
            self._look()

    def _look(self) -> None:
        for path in self._metadata.glob("v*.metadata.json"):
            version = int(path.name[1:].partition(".")[0])
            if version in self._named_us:
                continue
            with contextlib.suppress(FileNotFoundError, FileExistsError):
                # The last change of the file is its renaming; the second name is given later.
                named_us = path.stat().st_ctime_ns // 1000
                os.link(path, self._kept / f"{version}.metadata.json")
                self._named_us[version] = named_us


class InPostgres(Watch):
    """Reads the commit times of the rows' transactions, which the server keeps (``track_commit_timestamp``)."""

    def __init__(self, server: PostgresServer, table: str) -> None:
        self._server, self._table = server, table

    def seen(self, since_us: int) -> Mapping[Row, int]:
        rows = self._server.execute(
            f"SELECT id, at, (EXTRACT(EPOCH FROM pg_xact_commit_timestamp(xmin)) * 1000000)::bigint "
            f"FROM {self._table} WHERE at >= {since_us}"
        )
        return {(key, at): committed_us for key, at, committed_us in rows}


class InLines(Watch):
    """Observes the files of a changelog of JSON Lines."""

    def __init__(self, lake: Path) -> None:
        self._lake = lake

    def seen(self, since_us: int) -> Mapping[Row, int]:
        found: dict[Row, int] = {}
        for path in sorted(self._lake.rglob("*.jsonl"), key=os.path.getmtime):
            written_us = path.stat().st_mtime_ns // 1000
            if written_us < since_us:
                continue
            for line in path.read_text().splitlines():
                row = json.loads(line)
                if row["at"] >= since_us and row["_op"] in ("+I", "+U", "I", "U"):
                    found.setdefault((row["id"], row["at"]), written_us)
        return found


class InKafka(Watch):
    """Consumes a topic of Debezium's messages, only committed ones, and notes when each arrives."""

    def __init__(self, server: KafkaServer, topic: str) -> None:
        self._server, self._topic = server, topic
        self._given: list[tuple[int, bytes]] = []
        self._over = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._consume, daemon=True)

    def begin(self) -> None:
        self._thread.start()
        if not self._ready.wait(_ANSWER_S):
            raise RuntimeError(f"the consumer of {self._topic} does not begin")

    def seen(self, since_us: int) -> Mapping[Row, int]:
        found: dict[Row, int] = {}
        for given_us, text in list(self._given):
            row = json.loads(text).get("after")
            if row is not None and row["at"] >= since_us:
                found.setdefault((row["id"], row["at"]), given_us)
        return found

    def close(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _consume(self) -> None:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self._server.bootstrap_servers,
                "group.id": "raycdc-bench",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        try:
            partitions = consumer.list_topics(self._topic, timeout=_ANSWER_S).topics[self._topic].partitions
            ends = [TopicPartition(self._topic, number) for number in partitions]
            for end in ends:
                _, end.offset = consumer.get_watermark_offsets(end, timeout=_ANSWER_S)
            consumer.assign(ends)
            self._ready.set()
            while not self._over.is_set():
                message = consumer.poll(_POLL_S)
                # A tombstone has no value, and a transaction's end marker is no message.
                value = None if message is None or message.error() is not None else message.value()
                if value is not None:
                    self._given.append((time.time_ns() // 1000, value))
        finally:
            consumer.close()


def _added(metadata: Path) -> list[Path]:
    """Return the data files that the newest snapshot of a table's metadata added."""
    from pyiceberg.io.pyarrow import PyArrowFileIO
    from pyiceberg.manifest import ManifestEntryStatus
    from pyiceberg.table.snapshots import Snapshot

    text = json.loads(metadata.read_text())
    number = text.get("current-snapshot-id")
    # Parsing all snapshots by pyiceberg would take longer than what is measured.
    snapshots = [Snapshot.model_validate(one) for one in text.get("snapshots", ()) if one["snapshot-id"] == number]
    io = PyArrowFileIO()
    manifests = [one for snapshot in snapshots for one in snapshot.manifests(io) if one.added_snapshot_id == number]
    entries = [entry for manifest in manifests for entry in manifest.fetch_manifest_entry(io)]
    added = [entry for entry in entries if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == number]
    return [Path(entry.data_file.file_path.removeprefix("file://")) for entry in added]


def _rows(files: Iterable[Path], since_us: int) -> list[Row]:
    """Return the rows of these Parquet files whose own time is not before `since_us`."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    found: list[Row] = []
    for path in files:
        if path.exists():
            rows = pq.read_table(path, columns=["id", "at"], filters=pc.field("at") >= since_us)
            found += zip(rows["id"].to_pylist(), rows["at"].to_pylist(), strict=True)
    return found
