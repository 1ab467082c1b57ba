"""What a library raises about a table parks it; the same exception out of our own code stays a bug."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from raycdc.sinks.delta import table as delta
from raycdc.sinks.iceberg import refusals as iceberg
from raycdc.sinks.lakes.unreachable import raised_in

#: A module of ours, as the traceback sees it.
OURS = {"__name__": "raycdc.planted", "json": json, "pa": pa, "pc": pc, "pq": pq, "DeltaTable": DeltaTable}


def raised(code: str, **names: object) -> Exception:
    """What `code` raises when one of our modules runs it."""
    space = {**OURS, **names}
    exec(f"def run():\n    {code}", space)
    run: Callable[[], None] = space["run"]
    with pytest.raises(Exception) as caught:
        run()
    return caught.value


BUGS = (
    'int("x")',
    "[][1]",
    'json.loads("{")',
    'pc.cast(pa.array(["x"]), pa.int64())',
    "pa.table({'a': [1]}).cast(pa.schema([('b', pa.int64())]))",
    'raise ValueError("a column too many")',
    'raise KeyError("id")',
)


@pytest.mark.parametrize("code", BUGS)
def test_an_error_of_our_own_code_is_a_bug_whatever_its_type(code: str) -> None:
    error = raised(code)
    assert not delta.is_the_tables(error), error
    assert not iceberg.is_the_tables(error), error


def test_a_damaged_file_of_a_table_is_the_tables(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.parquet"
    damaged.write_bytes(b"PAR1 no such thing PAR1")
    error = raised("pq.read_table(path)", path=str(damaged))
    assert delta.is_the_tables(error)
    assert iceberg.is_the_tables(error)


def test_what_the_libraries_themselves_say_is_the_tables(tmp_path: Path) -> None:
    assert delta.is_the_tables(raised("DeltaTable(path)", path=str(tmp_path)))
    assert delta.is_the_tables(DeltaError("refused"))
    read = "from pyiceberg.serializers import FromByteStream\n    FromByteStream.table_metadata(open(path, 'rb'))"
    (tmp_path / "metadata.json").write_text("{}")
    assert iceberg.is_the_tables(raised(read, path=str(tmp_path / "metadata.json")))


def test_a_library_that_calls_us_back_does_not_take_the_blame() -> None:
    library: dict[str, object] = {"__name__": "deltalake.planted"}
    exec("def call(back):\n    back()", library)
    ours = raised("call(lambda: int('x'))", call=library["call"])
    assert not raised_in(ours, "deltalake")
    assert raised_in(raised("call(1)", call=library["call"]), "deltalake")
