"""SecantusDB's resume tokens in MongoDB's form, there and back, in the messages that carry them."""

from __future__ import annotations

import bson

from raycdc.connectors.mongodb.stream.token import cluster_time_of, decode_token, ordinal_of
from tests.support.servers.token_bridge import Times, inward, outward, translated_reply, translated_request


def moment(increment: int) -> bson.Timestamp:
    return bson.Timestamp(1_700_000_000, increment)


def theirs(increment: int, *, invalidate: bool = False) -> str:
    said = {"s": increment, "t": moment(increment), "n": "a.b", "k": {"_id": 1}}
    return bson.encode({**said, **({"i": True} if invalidate else {})}).hex()


def test_a_token_says_its_time_and_comes_back_as_it_was() -> None:
    for increment in (1, 255, 2**31):
        for invalidate in (False, True):
            token = theirs(increment, invalidate=invalidate)
            told = decode_token(outward(token))
            assert told.cluster_time == ordinal_of(1_700_000_000, increment)
            assert told.from_invalidate == invalidate
            assert not told.high_watermark
            assert inward(outward(token)) == token
    assert inward("82ab") == "82ab"


def test_a_token_behind_no_events_is_of_two_answers_before() -> None:
    times = Times()
    told = []
    for increment in (3, 5, 7, 9):
        cursor = {"nextBatch": [], "postBatchResumeToken": {"_data": theirs(6)}, "id": bson.Int64(5)}
        reply = translated_reply(bson.encode({"cursor": cursor, "operationTime": moment(increment)}), times)
        told.append(cluster_time_of(bson.decode(reply)["cursor"]["postBatchResumeToken"]["_data"]))
    assert told == [ordinal_of(1, 1), ordinal_of(1, 1), ordinal_of(1_700_000_000, 3), ordinal_of(1_700_000_000, 5)]


def test_events_and_commands_carry_tokens_and_nothing_else_changes() -> None:
    document = {"v": bson.Int64(1), "far": bson.Regex("a", "i"), "f": -0.0}
    event = {"_id": {"_data": theirs(1)}, "operationType": "insert", "fullDocument": document}
    reply = {
        "cursor": {"nextBatch": [event], "postBatchResumeToken": {"_data": theirs(2)}, "id": bson.Int64(5)},
        "ok": 1.0,
    }
    passed = bson.decode(translated_reply(bson.encode({**reply, "operationTime": moment(9)}), Times()))
    assert passed["cursor"]["nextBatch"] == [{**event, "_id": {"_data": outward(theirs(1))}}]
    assert bson.encode(passed["cursor"]["nextBatch"][0]["fullDocument"]) == bson.encode(document)
    assert passed["cursor"]["postBatchResumeToken"] == {"_data": outward(theirs(2))}
    assert (passed["cursor"]["id"], passed["ok"]) == (5, 1.0)
    plain = bson.encode({"cursor": {"firstBatch": [event]}})
    assert translated_reply(plain, Times()) is plain
    stage = {"$changeStream": {"startAfter": {"_data": outward(theirs(2))}}}
    command = bson.decode(translated_request(bson.encode({"aggregate": 1, "pipeline": [stage]})))
    assert command["pipeline"][0]["$changeStream"] == {"startAfter": {"_data": theirs(2)}}
