"""A driver that is stopped between a look at the generations and the write of a document changes none behind its
successor, whether that one has written the document or only taken it over.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raycdc.errors import FencedError
from raycdc.state import codec
from raycdc.state.bad_row_counts import add_bad_rows, bad_rows
from raycdc.state.column_names import add_column_names, column_names
from raycdc.state.configured import read_configured, write_configured
from raycdc.state.documents import DOCUMENTS, REQUESTS, kind_of
from raycdc.state.drivers.driver_generation import DriverGeneration, brief_term
from raycdc.state.files.folder import LocalFolder
from raycdc.state.store import CheckpointStore
from raycdc.testing.epochs import EpochScript


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "state", pipeline="shop")


def passed_by(store: CheckpointStore, patch: pytest.MonkeyPatch, acts: Callable[[CheckpointStore], object]) -> None:
    """The next driver that writes a document stops right before, until a successor has begun and done its `acts`."""
    real, stops = LocalFolder.write, list[str]()

    def late(folder: LocalFolder, name: str, data: bytes) -> None:
        if not stops and any(document in name for document in DOCUMENTS):
            stops.append(name)
            successor = CheckpointStore(store.path)
            DriverGeneration(successor)
            acts(successor)
        real(folder, name, data)

    patch.setattr(LocalFolder, "write", late)


def test_what_a_user_asked_meanwhile_is_not_written_over(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``raycdc tables pause`` while a driver that is stopped settles what was asked before."""
    DriverGeneration(store)
    settled: dict[str, Any] = {"number": 0, "tables": {}, "start": None}
    asked = {**settled, "tables": {"shop.t": "pause"}}
    passed_by(store, monkeypatch, lambda other: other.documents.write(REQUESTS, asked))
    store.documents.write(REQUESTS, settled)
    assert store.documents.read(REQUESTS) == {"version": 1, **asked}
    with pytest.raises(FencedError):
        store.documents.write(REQUESTS, settled)


def test_names_that_a_successor_gave_are_not_forgotten(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    DriverGeneration(store)
    add_column_names(store, "shop.t", {"q;2": "q_2"})
    passed_by(store, monkeypatch, lambda other: add_column_names(other, "shop.t", {"a;b": "a_b"}))
    add_column_names(store, "shop.t", {"c;d": "c_d"})
    assert column_names(CheckpointStore(store.path)) == {"shop.t": {"q;2": "q_2", "a;b": "a_b"}}


def test_rows_that_a_stale_driver_leaves_out_are_not_counted(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The successor has taken the figures over, and not written them yet."""
    DriverGeneration(store)
    add_bad_rows(store, 1, {"shop.t": 3}, committed=0)
    passed_by(store, monkeypatch, lambda _: None)
    add_bad_rows(store, 2, {"shop.t": 5}, committed=1)
    assert bad_rows(CheckpointStore(store.path), 2) == {"shop.t": 3}


def test_a_document_that_was_not_there_is_not_made_by_a_stale_driver(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    DriverGeneration(store)
    passed_by(store, monkeypatch, lambda _: None)
    write_configured(store, {"sink.path": "old"})
    successor = CheckpointStore(store.path)
    assert read_configured(successor) is None
    with brief_term(successor):
        write_configured(successor, {"sink.path": "new"})
    assert read_configured(CheckpointStore(store.path)) == {"sink.path": "new"}


def test_a_number_that_rises_while_a_document_is_written_leaves_it_written(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver replaces its coordinator from another thread."""
    term = DriverGeneration(store)
    term.for_coordinator()
    real, stops = LocalFolder.write, list[str]()

    def late(folder: LocalFolder, name: str, data: bytes) -> None:
        if not stops and REQUESTS in name:
            stops.append(name)
            term.for_coordinator()
        real(folder, name, data)

    monkeypatch.setattr(LocalFolder, "write", late)
    store.documents.write(REQUESTS, {"number": 7})
    assert (term.generation(), store.documents.read(REQUESTS)) == (2, {"version": 1, "number": 7})


def test_documents_of_a_state_of_an_older_version_are_taken_over(store: CheckpointStore) -> None:
    path = store.path / REQUESTS
    path.write_bytes(codec.encode({"version": 1, "number": 3}))
    assert store.documents.read(REQUESTS) == {"version": 1, "number": 3}
    for number in (4, 5):
        DriverGeneration(store)
        assert store.documents.read(REQUESTS) == {"version": 1, "number": number - 1}
        store.documents.write(REQUESTS, {"number": number})
    assert not path.exists()
    names = [f"documents/{one.name}" for one in (store.path / "documents").iterdir()]
    assert names == ["documents/requests.json.0000000002"]
    assert {kind_of(name) for name in names} == {"requests"}


def test_epochs_that_a_driver_of_an_older_version_took_over_are_read(store: CheckpointStore) -> None:
    script = EpochScript(store)
    script.generation = DriverGeneration(store).generation()
    for number in (1, 2):
        script.table("shop.t").read([{"id": number, "name": "a", "qty": 1}])
        script.seal()
    store.drop_after(1)
    [taken_over] = (store.path / "generations").glob("*.epochs.json")
    taken_over.write_bytes(codec.encode({**codec.decode(taken_over.read_bytes(), origin=""), "version": 1}))
    assert CheckpointStore(store.path).sealed_epochs() == [1]


def test_a_raycdc_that_would_not_find_the_documents_refuses_the_state(store: CheckpointStore) -> None:
    DriverGeneration(store)
    [taken_over] = (store.path / "generations").glob("*.epochs.json")
    assert json.loads(taken_over.read_text())["version"] == 2
