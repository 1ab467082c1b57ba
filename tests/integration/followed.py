"""Pipelines that follow a collection, and what a reader of their changelog has at its end."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import bson
from bson import json_util

from raycdc.config import config_from_dict
from raycdc.connectors.mongodb.snapshot.keys import key_to_json
from raycdc.pipeline import Pipeline
from raycdc.sandbox.servers import MongoDb

#: Keys of several types, near one another in BSON's order across types.
KEYS: list[Any] = [
    *range(600),
    *(number + 0.5 for number in range(100)),
    *(f"key {number:04d}" for number in range(400)),
    *(bson.ObjectId() for _ in range(200)),
    *(bson.Binary(uuid.uuid4().bytes, 4) for _ in range(50)),
    *({"shop": shop, "number": number} for shop in ("x", "y") for number in range(50)),
    *(bson.DatetimeMS(1_700_000_000_000 + 1000 * number) for number in range(50)),
    *(False, True, None),
]


def pipeline(tmp_path: Path, mongodb: MongoDb, database: str, **options: Any) -> Pipeline:
    more = options.pop("pipeline", {})
    source = {"type": "mongodb", "uri": mongodb.uri, "collections": [f"{database}.orders"], **options}
    config = config_from_dict(
        {
            "pipeline": {"name": "shop", "state": str(tmp_path / "state"), "epoch_interval": "100ms", **more},
            "source": source,
            "sink": {"type": "jsonl", "path": str(tmp_path / "out"), "write": "changelog"},
            "readers": {"min": 1, "max": 2},
        }
    )
    return Pipeline.from_config(config)


def catch_up(tmp_path: Path, mongodb: MongoDb, database: str, **options: Any) -> None:
    pipeline(tmp_path, mongodb, database, **options).run(local=True, until="caught-up")


def changes(tmp_path: Path, table: str = "orders") -> list[dict[str, Any]]:
    """Rows of a target in their order."""
    files = sorted((tmp_path / "out").rglob(f"*{table}*/*.jsonl"))
    rows = [json_util.loads(line) for file in files for line in file.read_text().splitlines()]
    return sorted(rows, key=lambda row: row["_seq"])


def replayed(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What a reader of the changelog has at its end."""
    there: dict[str, dict[str, Any]] = {}
    for row in rows:
        key = key_to_json(row["_id"])
        match row["_op"]:
            case "T":
                there.clear()
            case "-D" | "-U":
                there.pop(key, None)
            case "+I" | "+U":
                there[key] = {name: value for name, value in row.items() if not name.startswith("_") or name == "_rest"}
            case other:
                raise AssertionError(other)
    return there


def as_document(row: dict[str, Any]) -> dict[str, Any]:
    """The document that a row of an inferred collection is of, without its key and what is null."""
    fields: dict[str, Any] = {}
    for name, value in row.items():
        if value is not None and (name == "_rest" or not name.startswith("_")):
            told = value if name == "_rest" else {name.removesuffix("__other"): value}
            assert not fields.keys() & told.keys(), row
            fields |= {field: one for field, one in told.items() if one is not None}
    return fields


def at_server(mongodb: MongoDb, database: str, collection: str = "orders") -> dict[str, Any]:
    with mongodb.client() as client:
        codec: bson.CodecOptions[dict[str, Any]] = bson.CodecOptions(
            datetime_conversion=bson.codec_options.DatetimeConversion.DATETIME_MS
        )
        found = client[database].get_collection(collection, codec_options=codec).find()
        return {key_to_json(document["_id"]): document["n"] for document in found}


def require_collection_equal(tmp_path: Path, mongodb: MongoDb, database: str) -> list[dict[str, Any]]:
    rows = changes(tmp_path)
    assert {key: row["n"] for key, row in replayed(rows).items()} == at_server(mongodb, database)
    return rows


@contextmanager
def writing(write: Callable[[Any, int], None], mongodb: MongoDb, database: str) -> Iterator[None]:
    """`write` again and again, in a thread, while the block runs."""
    stop = threading.Event()
    failed: list[BaseException] = []

    def loop() -> None:
        number = 0
        try:
            with mongodb.client() as client:
                while not stop.is_set():
                    number += 1
                    write(client, number)
        except BaseException as error:  # noqa: BLE001 - raised again below
            failed.append(error)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not failed


def require_true_changelog(rows: list[dict[str, Any]]) -> None:
    """Each key is inserted where it is not, and what a change says was there before it is what was there."""
    there: dict[str, Any] = {}
    for row in rows:
        key = key_to_json(row["_id"])
        match row["_op"]:
            case "+I":
                assert key not in there, row
                there[key] = row["n"]
            case "-U" | "-D":
                assert there.pop(key, "nothing") == row["n"], row
            case "+U":
                assert key not in there, row
                there[key] = row["n"]
            case other:
                raise AssertionError(other)
