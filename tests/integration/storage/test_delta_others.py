"""What others do to a Delta table in a store: noticed in its log, which is read there without delta-rs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from raycdc.errors import TargetDroppedError, TargetModifiedError
from raycdc.model import TableId
from raycdc.sandbox.servers import MotoServer
from raycdc.sinks.delta.reading import table_at
from raycdc.storage.files import Access
from raycdc.testing.sink_play import Play
from tests.integration.storage.test_delta_conformance import DeltaInStore
from tests.support.servers.store_proxy import StoreProxy

pytestmark = pytest.mark.server


class OthersToo(DeltaInStore):
    """Others reach the server without the proxy, because a restore of delta-rs holds all threads of this process."""

    theirs: Access


@pytest.fixture
def suite(moto: MotoServer, tmp_path: Path) -> Iterator[OthersToo]:
    with StoreProxy(moto) as proxy:
        suite = OthersToo()
        name = "".join(character for character in tmp_path.name.lower() if character.isalnum())
        suite.url, suite.access = f"s3://{moto.create_bucket(name[-60:])}", Access(proxy.settings)
        suite.theirs = Access(moto.settings)
        yield suite


def deleted(table: DeltaTable) -> None:
    table.delete("id > 110")


def restored(table: DeltaTable) -> None:
    table.restore(table.version() - 1)


def updated(table: DeltaTable) -> None:
    table.update({"qty": "-1"}, predicate="id = 119")


def compacted(table: DeltaTable) -> None:
    table.optimize.compact()


def begun(suite: OthersToo, folder: Path) -> tuple[Play, DeltaTable, TableId]:
    """A pipeline that has written its first epochs, and the table of one of its targets."""
    play = Play(folder, suite.new_sink)
    play.epochs(2)
    play.run()
    place = replace(suite.place(folder, play.orders.id), access=suite.theirs)
    return play, table_at(place), play.orders.id


@pytest.mark.parametrize(
    "act", [deleted, *(pytest.param(act, marks=pytest.mark.long(suite="stores")) for act in (restored, updated))]
)
def test_rows_that_others_took_or_changed_are_noticed(
    suite: OthersToo, tmp_path: Path, act: Callable[[DeltaTable], None]
) -> None:
    play, table, target = begun(suite, tmp_path)
    act(table)
    play.epochs(1)
    sink = play.sink()
    (work,) = [work for work in play.commits(3) if work.target == target]
    with pytest.raises((TargetModifiedError, TargetDroppedError), match=r"lost rows|was restored|other rows"):
        sink.commit(work, sink.stage([work])[target])


def test_files_that_others_made_larger_are_no_harm(suite: OthersToo, tmp_path: Path) -> None:
    play, table, target = begun(suite, tmp_path)
    compacted(table)
    play.epochs(1)
    play.restart()
    assert sorted(row["id"] for row in suite.rows(tmp_path, target)) == sorted(key for (key,) in play.orders.rows)
