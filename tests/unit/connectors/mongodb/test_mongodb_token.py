"""Resume tokens that servers of several versions sent, read again."""

from __future__ import annotations

from typing import Any

import bson
import pytest

from raycdc.connectors.mongodb.stream.token import (
    TokenParts,
    cluster_time_of,
    decode_token,
    ordinal_of,
    seconds_of,
    token_bytes,
)
from raycdc.errors import DataError

#: A high watermark of 4.4; events of 4.4, 5.0 and 6.0, the last from MongoDB's manual ("Change Streams").
WATERMARK = "82612F653E000000022B0229296E04"
OLDER = (
    "8260912B960000001E2B022C0100296E5A100497F661F4018447EEAE871045D76AB3E846645F6964006460912B96CE0EFD70017274DA0004"
)
NEWER = (
    "82635019A0000000012B042C0100296E5A1004AB1154ACACD849A48C61756D70D3B21F463C6F7065726174696F6E54797065003C"
    "696E736572740046646F63756D656E744B65790046645F69640064635019A078BE67426D7CF4D2000004"
)


def test_tokens_of_servers_say_their_time_and_collection() -> None:
    assert decode_token(WATERMARK) == TokenParts(ordinal_of(1630496062, 2), 1, True, 0, False, None)
    assert decode_token(OLDER) == TokenParts(
        ordinal_of(1620126614, 30), 1, False, 0, False, "97f661f4018447eeae871045d76ab3e8"
    )
    assert decode_token(NEWER) == TokenParts(
        ordinal_of(0x635019A0, 1), 2, False, 0, False, "ab1154acacd849a48c61756d70d3b21f"
    )


def test_both_encodings_are_one_token() -> None:
    assert token_bytes(bson.Binary(bytes.fromhex(NEWER))) == token_bytes(NEWER)


def test_a_high_watermark_comes_before_the_events_of_its_time() -> None:
    event = NEWER.replace("635019A000000001", "612F653E00000002")
    assert cluster_time_of(event) == cluster_time_of(WATERMARK) == ordinal_of(1630496062, 2)
    assert token_bytes(WATERMARK) < token_bytes(event)


def test_a_place_in_a_transaction_and_an_invalidation_are_read() -> None:
    token = "82612F653E000000022B022C01002B0E6F04"
    assert decode_token(token) == TokenParts(ordinal_of(1630496062, 2), 1, False, 7, True, None)


def test_what_is_unknown_behind_the_time_is_left_out() -> None:
    key_first = "82612F653E0000000246645F696400645E8DB54FF368D1BC67ABE7AE0004"
    assert decode_token(key_first) == TokenParts(ordinal_of(1630496062, 2), 0)
    cut = decode_token(OLDER[:24])
    assert (cut.cluster_time, cut.uuid) == (ordinal_of(1620126614, 30), None)


@pytest.mark.parametrize("data", [None, "", "8260", "not hexadecimal", "0060912B960000001E", 7])
def test_what_is_no_token_is_refused(data: Any) -> None:
    with pytest.raises(DataError):
        token_bytes(data)


def test_a_cluster_time_is_one_number_in_order() -> None:
    assert ordinal_of(1, 0) > ordinal_of(0, 2**32 - 1)
    assert seconds_of(ordinal_of(1630496062, 7)) == (1630496062, 7)
