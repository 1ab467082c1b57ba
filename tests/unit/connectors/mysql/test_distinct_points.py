"""Which codes of a character set a key may have: no two that are one text."""

from __future__ import annotations

import numpy as np
import pytest

from raycdc.connectors.mysql.values.charset_loops import SECOND_CODE
from raycdc.connectors.mysql.values.charsets import code_points, distinct_points

REPLACEMENT = 0xFFFD


def two_bytes(code: int) -> int:
    return 256 + code


@pytest.mark.parametrize(
    "charset",
    ["cp932", "sjis", "ujis", "eucjpms", "euckr", "gbk", "gb2312", "big5", "gb18030", "latin1", "armscii8", "tis620"],
)
def test_no_character_has_two_codes_and_none_is_without_one(charset: str) -> None:
    points, distinct = code_points(charset), distinct_points(charset)
    kept = distinct[distinct >= 0]
    assert len(np.unique(kept)) == len(kept)
    assert set(kept.tolist()) == set(points[points >= 0].tolist()) - {REPLACEMENT}
    left_out = distinct == SECOND_CODE
    assert np.array_equal(points[~left_out], distinct[~left_out])


def test_of_the_codes_of_a_character_the_one_it_is_turned_into_is_kept() -> None:
    distinct = distinct_points("cp932")
    assert distinct[two_bytes(0x81CA)] == 0xFFE2
    assert [int(distinct[two_bytes(code)]) for code in (0xEEF9, 0xFA54)] == [SECOND_CODE] * 2
    assert sorted(int(distinct[two_bytes(code)]) for code in (0xED40, 0xFA5C)) == [SECOND_CODE, 0x7E8A]
    assert distinct_points("sjis")[0x5C] == 0x5C
    assert distinct_points("sjis")[two_bytes(0x815F)] == SECOND_CODE
