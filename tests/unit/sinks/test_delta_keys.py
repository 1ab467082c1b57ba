"""Keys of an object store that change while a Delta table is opened with them: the handle knows which ones it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raycdc.core.secrets import ReferenceResolver
from raycdc.errors import SinkUnavailableError
from raycdc.model import TableId
from raycdc.sinks.delta import reading
from raycdc.sinks.delta import table as delta_table
from raycdc.sinks.delta.log_inspection import LogWatch
from raycdc.sinks.delta.table import DeltaTarget
from raycdc.storage.files import Access, StorePath
from raycdc.storage.settings import StorageSettings
from raycdc.storage.url import ObjectLocation, StoreKind

KEY = "aws_secret_access_key"


class Opened:
    """A table of delta-rs, which keeps the key that it was opened with; the store takes those that are `good`."""

    def __init__(self, key: str, good: set[str]) -> None:
        self.key = key
        self.good = good

    def version(self) -> int:
        return 0

    def update_incremental(self) -> None:
        if self.key not in self.good:
            raise OSError("Generic S3 error: The operation lacked the necessary privileges to complete")


def test_a_table_that_was_opened_while_its_key_changed_is_opened_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, good = tmp_path / "secret", {"old", "new"}
    secret.write_text("old")
    renewed = ReferenceResolver({}).resolve(f"${{file:{secret}}}")
    settings = StorageSettings(access_key_id="id", secret_access_key=renewed, region="r", endpoint="http://store")
    opened: list[str] = []

    def table(_: str, *, version: int | None, storage_options: dict[str, str]) -> Any:
        opened.append(storage_options[KEY])
        secret.write_text("new")
        return Opened(opened[-1], good)

    monkeypatch.setattr(delta_table, "is_table", lambda _: True)
    monkeypatch.setattr(reading, "DeltaTable", table)
    monkeypatch.setattr(LogWatch, "inspect", lambda *_: None)
    monkeypatch.setattr(LogWatch, "is_another", lambda _: False)
    monkeypatch.setattr(LogWatch, "is_newest", lambda *_: False)
    monkeypatch.setattr(DeltaTarget, "_check_same", lambda _: None)
    monkeypatch.setattr(DeltaTarget, "vector", lambda _: None)
    path = StorePath(ObjectLocation(StoreKind.S3, "bucket", "t"), Access(settings))
    target = DeltaTarget(path, TableId("shop", "orders"), "raycdc:test:1")
    assert target.refresh()
    good.remove("old")
    assert target.refresh()
    assert opened == ["old", "new"]
    good.clear()
    with pytest.raises(SinkUnavailableError, match="lacked the necessary privileges"):
        target.refresh()
