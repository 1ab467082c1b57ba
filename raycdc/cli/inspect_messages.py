"""``raycdc inspect messages``: the changelog that a file of messages means, as JSON lines.

One message per line; an empty line is a tombstone. Rows are decoded by the same compiled path as in a pipeline; only
the printing is Python. What comes before a bad message is printed, then one line on stderr names file and line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pyarrow as pa

from raycdc.errors import ConfigError, ExitCode
from raycdc.formats.api import ChangeItem, MessageBatch, Origin, RowsItem
from raycdc.formats.dialect import JsonDialect
from raycdc.formats.plugins import load_format
from raycdc.model import LogicalType, RowKind, TypeKind
from raycdc.model.json_text import json_values
from raycdc.model.row_kind import SYMBOLS
from raycdc.schema import TruncateTableEvent

#: Bytes of the file that are decoded, and printed, at a time.
_PIECE_BYTES = 4 << 20
#: Columns of the envelope are told from the table's by this in front of their names, which no JSON key can begin with.
_MARK = "\0"


def print_messages(
    path: Path, identifier: str, columns: str | None, *, out: TextIO | None = None, errors: TextIO | None = None
) -> ExitCode:
    """Print the rows of every message; `ExitCode.DATA` at the first bad one, after the rows before it.

    `columns` are the tables' columns as in CREATE TABLE; without them they come from the messages. Raises `ConfigError`
    for a file that cannot be read, an unknown format or malformed columns.
    """
    out = out or sys.stdout
    options: dict[str, Any] = {} if columns is None else {"columns": columns}
    made = load_format(identifier, place="--format", **options)
    if isinstance(made, JsonDialect):
        options["metadata"] = {name: _MARK + name for name in made.spec.metadata}
        made = load_format(identifier, place="--format", **options)
    decoder = made.decoder(keep_null_columns=True)
    for batch in _batches(path):
        decoded = decoder.decode(batch)
        # Tables are decoded one after the other; people read messages in their order.
        lines = [line for item in decoded.items for line in _lines(item)]
        lines.sort(key=lambda line: line[0])
        out.writelines(text for _, text in lines)
        if decoded.failure is not None:
            out.flush()
            print(str(decoded.failure).replace("\n", " "), file=errors or sys.stderr)
            return ExitCode.DATA
    out.flush()
    return ExitCode.DONE


def _batches(path: Path) -> Iterator[MessageBatch]:
    """The file's lines in pieces. A line that does not end is a message all the same."""
    try:
        file = path.open("rb")
    except OSError as cause:
        raise ConfigError(f"{path} cannot be read: {cause.strerror}") from cause
    with file:
        line = 1
        while lines := file.readlines(_PIECE_BYTES):
            values = [text.rstrip(b"\r\n") for text in lines]
            yield MessageBatch(
                Origin(path.name), pa.array(values, pa.large_binary()), np.arange(line, line + len(lines))
            )
            line += len(lines)


def _lines(item: RowsItem | ChangeItem) -> Iterator[tuple[tuple[int, int], str]]:
    """((message, row number), line) of an item."""
    if isinstance(item, ChangeItem):
        if any(isinstance(event, TruncateTableEvent) for event in item.events):
            metadata = {"database": item.table.db, "table": item.table.table}
            yield (item.message, 0), _line(SYMBOLS[RowKind.TRUNCATE], "null", json.dumps(metadata, ensure_ascii=False))
        return
    batch = item.batch
    row: list[tuple[str, list[str]]] = []
    metadata_columns: list[tuple[str, list[str]]] = []
    for index, column in enumerate(item.schema.columns):
        texts = _texts(batch.column(index), column.type)
        if column.name.startswith(_MARK):
            metadata_columns.append((_key(column.name[1:]), texts))
        else:
            row.append((_key(column.name), texts))
    own = len(item.schema.columns)
    ops, seqs, millis = (batch.column(own + i).to_pylist() for i in range(3))
    names = {name for name, _ in metadata_columns}
    table = {"database": item.table.db, "table": item.table.table}
    fixed = [f"{_key(name)}{json.dumps(value, ensure_ascii=False)}" for name, value in table.items()]
    fixed = [text for text in fixed if not any(text.startswith(name) for name in names)]
    for i, op in enumerate(ops):
        image = ", ".join(name + texts[i] for name, texts in row)
        about = [name + texts[i] for name, texts in metadata_columns if texts[i] != "null"]
        if millis[i]:
            about.append(f'"time_ms": {millis[i]}')
        yield (int(item.messages[i]), seqs[i]), _line(SYMBOLS[op], f"{{{image}}}", f"{{{', '.join([*fixed, *about])}}}")


def _line(op: str, row: str, metadata: str) -> str:
    return f'{{"op": "{op}", "row": {row}, "metadata": {metadata}}}\n'


def _key(name: str) -> str:
    return json.dumps(name, ensure_ascii=False) + ": "


def _texts(array: pa.Array, logical: LogicalType) -> list[str]:
    """The JSON text of each value: as ``inspect binlog`` prints them."""
    if logical.kind in (TypeKind.DATETIME, TypeKind.TIMESTAMP) and logical.fsp == 0:
        # A precision that nobody gave hides no digits that are there.
        micros = array.drop_null().view(pa.int64())
        if len(micros) and np.any(micros.to_numpy() % 1_000_000):
            logical = LogicalType(logical.kind, fsp=6)
    return ["null" if text is None else text for text in json_values(array, logical).to_pylist()]
