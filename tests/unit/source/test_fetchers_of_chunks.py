"""``readers.fetchers``: how many chunks one reader reads at the same time, played with real threads and segments."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from raycdc.connectors.datagen.plugin import DatagenSourceConfig
from raycdc.connectors.datagen.source import DatagenChunks, DatagenSource
from raycdc.connectors.mysql.plugin import MySqlSourceConfig
from raycdc.connectors.mysql.source import MySqlSource
from raycdc.source.reader.fetcher_manager import MultiThreaded, Sequential, ThreadingModel
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.split import OpenedAt, SnapshotSplit
from raycdc.testing.source_play import SourcePlay

PATIENCE_S = 120


class Meeting:
    """The first reads wait for one another; once all have met, nobody waits any more."""

    def __init__(self, readers: int) -> None:
        self._barrier = threading.Barrier(readers, timeout=PATIENCE_S)
        self.met = threading.Event()

    def wait(self) -> None:
        if not self.met.is_set():
            self._barrier.wait()
            self.met.set()


class MeetingChunks(DatagenChunks):
    def __init__(self, config: DatagenSourceConfig, meeting: Meeting) -> None:
        super().__init__(config)
        self._meeting = meeting

    def read(self, split: SnapshotSplit, *, opened_at: OpenedAt, document: SchemaDocument) -> Iterator[pa.RecordBatch]:
        self._meeting.wait()
        return super().read(split, opened_at=opened_at, document=document)


class MeetingSource(DatagenSource):
    """Generated tables whose chunks are read as those of a database."""

    def __init__(self, config: DatagenSourceConfig, meeting: Meeting) -> None:
        super().__init__(config)
        self._meeting = meeting

    def threading(self, fetchers: int) -> ThreadingModel:
        return MultiThreaded(fetchers)

    def chunk_reader(self) -> MeetingChunks:
        return MeetingChunks(self.config, self._meeting)


def test_two_chunks_of_one_reader_are_read_at_once(tmp_path: Path) -> None:
    config = DatagenSourceConfig(type="datagen", tables=("shop.orders",), rows=400, events=0, chunk_rows=100)
    meeting = Meeting(2)
    play = SourcePlay(tmp_path, lambda: MeetingSource(config, meeting), readers=1, fetchers=2)
    play.run()
    assert meeting.met.is_set()
    assert {table: len(rows) for table, rows in play.target.items()} == {
        table: described.rows for table, described in DatagenSource(config).tables().items()
    }


def test_generated_rows_are_read_sequentially() -> None:
    config = DatagenSourceConfig(type="datagen", tables=("shop.orders",))
    assert DatagenSource(config).threading(4) == Sequential()


def test_a_database_whose_connections_are_limited_has_one_per_reader() -> None:
    def threading_with(**snapshot: int) -> ThreadingModel:
        config = MySqlSourceConfig.model_validate(
            {
                "type": "mysql",
                "host": "db1",
                "user": "cdc",
                "password": "cdc",
                "tables": ["shop.orders"],
                "snapshot": snapshot,
            }
        )
        return MySqlSource(config).threading(3)

    assert threading_with() == MultiThreaded(3)
    assert threading_with(connections=2) == Sequential()
    assert threading_with(rows_per_second=1_000) == Sequential()
