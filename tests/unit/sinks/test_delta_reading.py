"""Reading keys of a Delta table whose files other engines wrote."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable, write_deltalake

from raycdc.sinks.delta.reading import key_batches


def test_keys_are_found_in_files_that_delta_rs_rewrote(tmp_path: Path) -> None:
    location = str(tmp_path / "t")
    rows = pa.table({"k": ["a", "b", "d"], "p": ["x", "x", "x"], "v": [1, 2, 3]})
    write_deltalake(location, rows, partition_by=["p"])
    # delta-rs writes views of texts into the files that this makes.
    DeltaTable(location).update(updates={"v": "v + 1"})
    write_deltalake(location, pa.table({"k": ["c"], "p": ["y"], "v": [3]}), mode="append")
    within = (ds.field("k") >= pa.scalar("b")) & (ds.field("k") <= pa.scalar("c"))
    found = pa.Table.from_batches(key_batches(DeltaTable(location), ["k", "p"], within)).to_pylist()
    assert {("b", "x"), ("c", "y")} <= {(row["k"], row["p"]) for row in found}
