"""A reply's batch in one piece: the documents as they came, the rest as the driver reads it; damage is left to it."""

from __future__ import annotations

from typing import Any

import bson
import pytest

from raycdc.connectors.mongodb.stream.raw_stream import reply_of

_DOCUMENTS = [{"_id": number, "nextBatch": [{"cursor": {}}], "text": "x" * number} for number in range(300)]


@pytest.mark.parametrize("name", ["firstBatch", "nextBatch"])
@pytest.mark.parametrize("documents", [[], _DOCUMENTS[:1], _DOCUMENTS], ids=["none", "one", "many"])
def test_the_batch_is_bytes_and_the_rest_is_read(name: str, documents: list[dict[str, Any]]) -> None:
    rest = {"id": bson.Int64(5), "ns": "shop.orders", "postBatchResumeToken": {"_data": "82"}}
    time = bson.Timestamp(7, 1)
    cursor = {"id": rest["id"], name: documents, **rest}
    payload = bson.encode({"cursor": cursor, "ok": 1.0, "operationTime": time, "$clusterTime": {"clusterTime": time}})
    joined = b"".join(map(bson.encode, documents))
    found = {**rest, name: [joined] if joined else []}
    expected = {"cursor": found, "ok": 1.0, "operationTime": time, "$clusterTime": {"clusterTime": time}}
    assert reply_of(payload) == reply_of(memoryview(payload)) == expected


def test_what_is_no_batch_is_left_to_the_driver() -> None:
    assert reply_of(bson.encode({"ok": 0.0, "errmsg": "no", "code": 280})) is None
    assert reply_of(bson.encode({"ok": 1.0, "cursor": {"id": 0, "nextBatch": [{"a": 1}, 2]}})) is None
    assert reply_of(bson.encode({"ok": 1.0, "cursor": {"id": 0, "nextBatch": {"0": {}}}})) is None
    whole = bson.encode({"ok": 1.0, "cursor": {"id": 0, "nextBatch": [{"a": 1}, {"b": 2}]}})
    for cut in range(4, len(whole)):
        assert reply_of(whole[:cut]) is None
