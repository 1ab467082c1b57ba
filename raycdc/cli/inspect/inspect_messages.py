"""``raycdc inspect messages``: the changelog of a file of messages, as JSON lines.

One message per line; an empty line is a tombstone. Rows are decoded by the compiled code of a pipeline; only the
printing is Python. If a message is invalid, everything before it is printed, and then one line on stderr with its file
and line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TextIO

import numpy as np
import pyarrow as pa

from raycdc.core.terminal_text import printable, printable_json
from raycdc.errors import ConfigError, ExitCode
from raycdc.formats.api import ChangeItem, MessageBatch, Origin, RowsItem
from raycdc.formats.json.dialect import JsonDialect
from raycdc.formats.plugins import load_format
from raycdc.model import LogicalType, RowKind, TableId, TypeKind
from raycdc.model.batch import SYMBOLS
from raycdc.model.evolution import DropTableEvent, TruncateTableEvent
from raycdc.model.json_text import json_values

#: The number of bytes of the file that are decoded and printed at a time.
_PIECE_BYTES = 4 << 20
#: The maximum length of a message, which bounds the memory for a file without line breaks. (A broker's default is 1
#: MiB.)
_LINE_BYTES_MAX = 64 << 20
#: The prefix of the names of columns from the envelope. No JSON key can begin with it.
_MARK = "\0"


def print_messages(
    path: Path, identifier: str, columns: str | None, *, out: TextIO | None = None, errors: TextIO | None = None
) -> ExitCode:
    """Print the rows of every message. Returns `ExitCode.DATA` at the first invalid message, after the rows before it.

    `columns` are the tables' columns as in CREATE TABLE; without them they come from the messages. Raises `ConfigError`
    for a file that cannot be read, an unknown format or malformed columns.
    """
    out = out or sys.stdout
    options: dict[str, str | dict[str, str]] = {} if columns is None else {"columns": columns}
    made = load_format(identifier, key_path="--format", **options)
    nameless = None
    if isinstance(made, JsonDialect):
        nameless = made.table_id("", "", "", path.name)
        options["metadata"] = {name: _MARK + name for name in made.spec.metadata}
        made = load_format(identifier, key_path="--format", **options)
    decoder = made.decoder(keep_null_columns=True)
    for batch in _batches(path):
        if isinstance(batch, str):
            out.flush()
            print(printable(batch), file=errors or sys.stderr)
            return ExitCode.DATA
        decoded = decoder.decode(batch)
        # Tables are decoded one after the other, but the output has the order of the messages.
        lines = [line for item in decoded.items for line in _lines(item, nameless)]
        lines.sort(key=lambda line: line[0])
        out.writelines(text for _, text in lines)
        if decoded.failure is not None:
            out.flush()
            print(printable(str(decoded.failure).replace("\n", " ")), file=errors or sys.stderr)
            return ExitCode.DATA
    out.flush()
    return ExitCode.DONE


def _batches(path: Path) -> Iterator[MessageBatch | str]:
    """Yield the lines of the file in pieces, or the problem of the next line.

    A last line without a line break is a message, too.
    """
    try:
        file = path.open("rb")
    except OSError as cause:
        raise ConfigError(f"{path} cannot be read: {cause.strerror}") from cause
    with file:
        first = 1
        while values := _piece(file):
            too_long = len(values[-1]) > _LINE_BYTES_MAX
            whole = [text.rstrip(b"\r\n") for text in (values[:-1] if too_long else values)]
            if whole:
                lines = np.arange(first, first + len(whole))
                yield MessageBatch(Origin(path.name), pa.array(whole, pa.large_binary()), lines)
            first += len(whole)
            if too_long:
                yield f"{path.name}:{first}: corrupt message: it is longer than {_LINE_BYTES_MAX >> 20} MiB"
                return


def _piece(file: BinaryIO) -> list[bytes]:
    """Read the next lines. The last one is cut after the maximum length."""
    lines: list[bytes] = []
    size = 0
    while size < _PIECE_BYTES:
        line = file.readline(_LINE_BYTES_MAX + 2)
        if not line:
            break
        lines.append(line)
        if len(line) > _LINE_BYTES_MAX:
            break
        size += len(line)
    return lines


def _lines(item: RowsItem | ChangeItem, nameless: TableId | None) -> Iterator[tuple[tuple[int, int], str]]:
    """Yield ((message number, row number), line) for each row of an item.

    `nameless` is the table of messages that name no table. It is named after the file, as it would be named after a
    topic.
    """
    database, table = ("", "") if item.table == nameless else (item.table.db, item.table.table)
    if isinstance(item, ChangeItem):
        if any(isinstance(event, TruncateTableEvent | DropTableEvent) for event in item.events):
            metadata = {"database": database, "table": table}
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
    fixed = [
        (_key(name), printable_json(json.dumps(text, ensure_ascii=False)))
        for name, text in (("database", database), ("table", table))
    ]
    for i, op in enumerate(ops):
        image = ", ".join(name + texts[i] for name, texts in row)
        about = {name: texts[i] for name, texts in metadata_columns if texts[i] != "null"}
        if millis[i]:
            about[_key("time_ms")] = str(millis[i])
        own_names = [name + text for name, text in fixed if name not in about]
        line = ", ".join((*own_names, *(name + text for name, text in about.items())))
        yield (int(item.messages[i]), seqs[i]), _line(SYMBOLS[op], f"{{{image}}}", f"{{{line}}}")


def _line(op: str, row: str, metadata: str) -> str:
    return f'{{"op": "{op}", "row": {row}, "metadata": {metadata}}}\n'


def _key(name: str) -> str:
    return printable_json(json.dumps(name, ensure_ascii=False)) + ": "


def _texts(array: pa.Array, logical: LogicalType) -> list[str]:
    """Return the JSON text of each value, as ``inspect binlog`` prints it."""
    if logical.kind in (TypeKind.DATETIME, TypeKind.TIMESTAMP) and logical.fsp == 0:
        # If the precision is not declared, all digits that exist are printed.
        micros = array.drop_null().view(pa.int64())
        if len(micros) and np.any(micros.to_numpy() % 1_000_000):
            logical = LogicalType(logical.kind, fsp=6)
    return ["null" if text is None else text for text in json_values(array, logical).to_pylist()]
