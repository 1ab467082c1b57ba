"""Parquet and JSON Lines on an object store: the suite that each sink is held to, and what a store does differently."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pyarrow.parquet as pq
import pytest

from raycdc.core.failpoints import FailpointError
from raycdc.model import TableId
from raycdc.sinks.files import store_target
from raycdc.storage.files import copy
from raycdc.testing.epochs import Row
from raycdc.testing.sink_play import Play
from tests.epochs.test_lake_conformance import FILES
from tests.integration.sinks.on_s3 import IN_STORES, OnS3, play_only

pytestmark = pytest.mark.server


class Files(OnS3):
    """Targets are the objects below a name."""

    kind = "jsonl"
    impossible: ClassVar[Mapping[str, str]] = {**IN_STORES, **FILES}

    def settings(self, folder: Path) -> dict[str, Any]:
        return {"type": self.kind, "path": f"s3://{self.bucket(folder)}/lake"}

    def rows(self, folder: Path, target: TableId) -> list[Row]:
        rows: list[Row] = []
        for key in sorted(self.keys(folder, target)):
            if "/_raycdc/" not in key:
                rows += self.read(bytes(self.objects(folder).get(key).bytes()))
        names = dict.fromkeys(name for row in rows for name in row)
        return [{**names, **row} for row in rows]

    def read(self, data: bytes) -> list[Row]:
        return [json.loads(line) for line in data.splitlines()]

    def occupy(self, folder: Path, target: TableId) -> None:
        self.objects(folder).put(f"lake/{target.db}/{target.table}/theirs.{self.kind}", self.theirs())

    def erase(self, folder: Path, target: TableId) -> None:
        first = min(key for key in self.keys(folder, target) if "/_raycdc/" not in key)
        self.objects(folder).delete([first])

    def theirs(self) -> bytes:
        return b'{"id": 1}\n'


class Parquet(Files):
    """The same in Parquet."""

    kind = "parquet"

    def read(self, data: bytes) -> list[Row]:
        rows: list[Row] = pq.read_table(io.BytesIO(data)).to_pylist()
        return rows

    def theirs(self) -> bytes:
        import pyarrow as pa

        file = io.BytesIO()
        pq.write_table(pa.table({"id": [1]}), file)
        return file.getvalue()


@pytest.mark.long(suite="stores")
class TestParquetOnS3(Parquet):
    """The whole suite."""


@pytest.mark.long(suite="stores")
class TestJsonLinesOnS3(Files):
    """The whole suite."""


class TestJsonLinesOnS3InEachRun(Files):
    """Those of the suite that show most for their time, and the story of a commit that dies in its middle."""

    def test_an_epoch_that_was_committed_and_not_made_visible_is_made_so_by_the_next_start(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        play = Play(tmp_path, self.new_sink)
        play.epochs(2)

        def died(*_: object) -> None:
            raise FailpointError("between the record and the copy")

        with monkeypatch.context() as patched:
            patched.setattr(store_target, "copy", died)
            with pytest.raises(FailpointError):
                play.run()
        assert self.rows(tmp_path, play.orders.id) == []
        play.restart()
        self._check(play)

    def test_a_driver_that_slept_between_record_and_copy_changes_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        play = Play(tmp_path, self.new_sink)
        play.epochs(3)
        late: list[tuple[Any, ...]] = []
        carried = copy

        def asleep(*names: Any) -> None:
            if not late:
                late.append(names)
                raise FailpointError("it sleeps")
            carried(*names)

        monkeypatch.setattr(store_target, "copy", asleep)
        with pytest.raises(FailpointError):
            play.run()
        play.restart()
        # It wakes up, and copies what is no longer staged.
        with pytest.raises(FileNotFoundError):
            carried(*late[0])
        self._check(play)


play_only(
    TestJsonLinesOnS3InEachRun,
    (
        "test_every_change_is_there_once",
        "test_a_replaced_driver_writes_nothing",
        "test_a_store_that_fails_for_a_while_is_waited_for",
    ),
)
