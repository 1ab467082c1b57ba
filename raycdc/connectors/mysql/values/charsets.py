"""MySQL character sets: bytes per character, code points for the compiled loops, ids of the binlog's collations.

Used by the layouts (`layouts`), the arenas (`columns`) and TABLE_MAP checks. Bytes of the utf8 sets and of ascii are
UTF-8 already; ucs2, utf16 and utf32 are computed; every other set becomes a table of code points from Python's codec
and `charset_corrections`, which together match the servers.
"""

from __future__ import annotations

import codecs
from contextlib import suppress
from functools import cache

import numpy as np
import numpy.typing as npt

from raycdc.connectors.mysql.values import charset_loops as loops
from raycdc.connectors.mysql.values.charset_corrections import CORRECTIONS

#: Sets whose bytes are UTF-8 already.
UTF8_CHARSETS = frozenset({"utf8", "utf8mb3", "utf8mb4", "ascii"})

#: The most bytes per character and the Python codec of each set. Python has no codec for a few (dec8, hp8, swe7,
#: geostd8, keybcs2, armscii8), so their whole upper half is in the corrections.
_CHARSETS: dict[str, tuple[int, str]] = {
    "utf8": (3, "utf-8"),
    "utf8mb3": (3, "utf-8"),
    "utf8mb4": (4, "utf-8"),
    "ascii": (1, "ascii"),
    "binary": (1, "latin-1"),
    "latin1": (1, "cp1252"),
    "latin2": (1, "iso8859-2"),
    "latin5": (1, "iso8859-9"),
    "latin7": (1, "iso8859-13"),
    "cp1250": (1, "cp1250"),
    "cp1251": (1, "cp1251"),
    "cp1256": (1, "cp1256"),
    "cp1257": (1, "cp1257"),
    "cp850": (1, "cp850"),
    "cp852": (1, "cp852"),
    "cp866": (1, "cp866"),
    "koi8r": (1, "koi8-r"),
    "koi8u": (1, "koi8-u"),
    "greek": (1, "iso8859-7"),
    "hebrew": (1, "iso8859-8"),
    "tis620": (1, "tis-620"),
    "macce": (1, "mac-latin2"),
    "macroman": (1, "mac-roman"),
    "dec8": (1, "ascii"),
    "hp8": (1, "ascii"),
    "swe7": (1, "ascii"),
    "armscii8": (1, "ascii"),
    "geostd8": (1, "ascii"),
    "keybcs2": (1, "ascii"),
    "big5": (2, "big5"),
    "sjis": (2, "shift_jis"),
    "cp932": (2, "cp932"),
    "gb2312": (2, "gb2312"),
    "gbk": (2, "gbk"),
    "euckr": (2, "cp949"),
    "ujis": (3, "euc_jp"),
    "eucjpms": (3, "euc_jp"),
    "gb18030": (4, "gb18030"),
    "ucs2": (2, "utf-16-be"),
    "utf16": (4, "utf-16-be"),
    "utf16le": (4, "utf-16-le"),
    "utf32": (4, "utf-32-be"),
}

_REPLACEMENT = 0xFFFD

_UNICODE_FAMILIES = {
    "ucs2": loops.FAMILY_UTF16,
    "utf16": loops.FAMILY_UTF16,
    "utf16le": loops.FAMILY_UTF16LE,
    "utf32": loops.FAMILY_UTF32,
}

_Bytes = tuple[tuple[int, int], ...]

#: The ranges of the first and last byte of two-byte codes that servers accept as a character when they store it, even
#: if it is unassigned (``ismbchar`` of strings/ctype-*.cc). In a three-byte code (0x8F first), the second form applies
#: twice.
_FORMS: dict[str, tuple[_Bytes, _Bytes]] = {
    "big5": (((0xA1, 0xF9),), ((0x40, 0x7E), (0xA1, 0xFE))),
    "sjis": (((0x81, 0x9F), (0xE0, 0xFC)), ((0x40, 0x7E), (0x80, 0xFC))),
    "cp932": (((0x81, 0x9F), (0xE0, 0xFC)), ((0x40, 0x7E), (0x80, 0xFC))),
    "gb2312": (((0xA1, 0xF7),), ((0xA1, 0xFE),)),
    "gbk": (((0x81, 0xFE),), ((0x40, 0x7E), (0x80, 0xFE))),
    "euckr": (((0x81, 0xFE),), ((0x41, 0x5A), (0x61, 0x7A), (0x81, 0xFE))),
    "ujis": (((0xA1, 0xFE),), ((0xA1, 0xFE),)),
    "eucjpms": (((0xA1, 0xFE),), ((0xA1, 0xFE),)),
    "gb18030": (((0x81, 0xFE),), ((0x40, 0x7E), (0x80, 0xFE))),
}

#: The first number of MariaDB's UCA-14.0.0 collations: 256 numbers for each set (its manual, "Supported Character Sets
#: and Collations").
_UCA1400_FIRST = 2048
_UCA1400_SETS = ("utf8mb3", "utf8mb4", "ucs2", "utf16", "utf32")


def bytes_per_character(charset: str) -> int:
    """Return the most bytes of one character; 0 if the set is unknown (lengths cannot be compared then)."""
    return _CHARSETS.get(charset, (0, ""))[0]


def is_known(charset: str) -> bool:
    """Return True if bytes of the set can be read. ``""`` stands for no set."""
    return not charset or charset in _CHARSETS


def codec_of(charset: str) -> str:
    """Return the Python codec of a set, for statements. An unknown set is read as UTF-8."""
    return _CHARSETS.get(charset, (0, "utf-8"))[1]


def first_unheld(charset: str, text: str) -> str:
    """Return the first character of `text` that the set lacks; empty if the set has all of them.

    A server replaces such a character by ``?`` when it converts the text, so that different texts may become equal.
    """
    if charset in ("", "binary", "utf8mb4", "utf16", "utf16le", "utf32", "gb18030") or charset not in _CHARSETS:
        return ""
    points = {ord(character) for character in text}
    if charset == "ascii" or charset in UTF8_CHARSETS or charset == "ucs2":
        lacking = {point for point in points if point > (0x7F if charset == "ascii" else 0xFFFF)}
    else:
        lacking = points.difference(code_points(charset).tolist())
    return next((character for character in text if ord(character) in lacking), "")


def family_of(charset: str) -> int:
    """Return how the compiled loops read the set; an unknown one is read as UTF-8, with invalid bytes replaced."""
    if charset in _UNICODE_FAMILIES:
        return _UNICODE_FAMILIES[charset]
    if charset in ("", "binary") or charset in UTF8_CHARSETS or charset not in _CHARSETS:
        return loops.FAMILY_UTF8
    if charset in ("ujis", "eucjpms"):
        return loops.FAMILY_EUC3
    if charset == "gb18030":
        return loops.FAMILY_GB18030
    return loops.FAMILY_SINGLE if bytes_per_character(charset) == 1 else loops.FAMILY_DOUBLE


def has_table(family: int) -> bool:
    """Return True if sets of the family need `code_points`."""
    return loops.FAMILY_UTF8 < family <= loops.FAMILY_GB18030


@cache
def code_points(charset: str) -> npt.NDArray[np.int32]:
    """Return the set's table for `charset_loops`: all single bytes, then all codes of two bytes, then longer ones.

    With the suffix `DISTINCT`, return `distinct_points`.
    """
    if charset.endswith(DISTINCT):
        return distinct_points(charset.removesuffix(DISTINCT))
    family, codec = family_of(charset), _CHARSETS[charset][1]
    lengths = {1: 256}
    if family != loops.FAMILY_SINGLE:
        lengths[2] = 1 << 16
    if family == loops.FAMILY_EUC3:
        lengths[3] = 1 << 16
    if family == loops.FAMILY_GB18030:
        lengths[4] = loops.GB18030_TABLE
    parts = {length: _decoded(length, count, codec) for length, count in lengths.items()}
    for entry in CORRECTIONS.get(charset, "").split():
        code, _, point = entry.partition("=")
        length, _, run = code.partition(".")
        first, _, times = run.partition("*")
        start, count = int(first, 16), int(times or "1")
        points = np.arange(count) + int(point, 16) if point != "-" else loops.NO_CHARACTER
        parts[int(length)][start : start + count] = points
    if charset in _FORMS:
        first_bytes, last_bytes = (_in_ranges(ranges) for ranges in _FORMS[charset])
        _mark_unassigned(parts[2], first_bytes, last_bytes)
        if 3 in parts:
            _mark_unassigned(parts[3], last_bytes, last_bytes)
        parts[1][first_bytes] = loops.LEAD
    if 2 in parts:
        begins: npt.NDArray[np.bool_] = np.max(parts[2].reshape(256, 256), axis=1) >= 0
        if family == loops.FAMILY_EUC3:
            begins[0x8F] = True
        if family == loops.FAMILY_GB18030:
            begins[0x81:0xFF] = True
        parts[1][begins] = loops.LEAD
    table = np.concatenate([parts[length] for length in sorted(parts)])
    table.setflags(write=False)
    return table


#: The suffix of a set's name that selects `distinct_points`.
DISTINCT = ":distinct"


@cache
def distinct_points(charset: str) -> npt.NDArray[np.int32]:
    """Return `code_points` in which each character has one code: the one for encoding, else the first.

    All further codes of the character are `SECOND_CODE`. Text with such a code may be equal in Unicode to text that the
    server considers different. Every code of U+FFFD is a `SECOND_CODE`, because U+FFFD stands for invalid bytes.
    """
    points = code_points(charset)
    indexes = np.flatnonzero(points >= 0)
    order = indexes[np.argsort(points[indexes], kind="stable")]
    doubled = np.zeros(len(points), np.bool_)
    same = points[order][1:] == points[order][:-1]
    doubled[order[1:][same]] = doubled[order[:-1][same]] = True
    table = points.copy()
    table[doubled] = loops.SECOND_CODE
    table[points == _REPLACEMENT] = loops.SECOND_CODE
    for point in np.unique(points[doubled]).tolist():
        if point != _REPLACEMENT:
            codes = np.flatnonzero(doubled & (points == point))
            own = _index_of(chr(point), charset)
            table[own if own in codes else codes[0]] = point
    table.setflags(write=False)
    return table


def _index_of(character: str, charset: str) -> int:
    """Return the index in the set's table of the code that Python's codec gives a character; -1 if there is none."""
    try:
        code = character.encode(_CHARSETS[charset][1])
    except UnicodeEncodeError:
        return -1
    match len(code):
        case 1:
            return code[0]
        case 2:
            return 256 + int.from_bytes(code, "big")
        case 3 if code[0] == 0x8F:
            return 256 + (1 << 16) + int.from_bytes(code[1:], "big")
        case _:
            return -1


def _in_ranges(ranges: _Bytes) -> npt.NDArray[np.bool_]:
    """Return for each byte whether it is in one of the ranges."""
    inside = np.zeros(256, np.bool_)
    for first, last in ranges:
        inside[first : last + 1] = True
    return inside


def _mark_unassigned(
    codes: npt.NDArray[np.int32], first_bytes: npt.NDArray[np.bool_], last_bytes: npt.NDArray[np.bool_]
) -> None:
    """Mark codes that are no character, but have the form of one, as `UNASSIGNED`."""
    formed = (first_bytes[:, None] & last_bytes[None, :]).reshape(-1)
    codes[formed & (codes < 0)] = loops.UNASSIGNED


def _decoded(length: int, count: int, codec: str) -> npt.NDArray[np.int32]:
    """Return the character of each code of `length` bytes by Python's codec, `NO_CHARACTER` if it is not one
    character.
    """
    decode = codecs.getdecoder(codec)
    table = np.full(count, loops.NO_CHARACTER, np.int32)
    # Codes of several bytes begin with a non-ASCII byte.
    for code in range(0x8000 if length in (2, 3) else 0, count):
        match length:
            case 3:
                raw = b"\x8f" + code.to_bytes(2, "big")
            case 4:
                rest, last = divmod(code, 10)
                rest, third = divmod(rest, 126)
                raw = bytes([0x81 + rest // 10, 0x30 + rest % 10, 0x81 + third, 0x30 + last])
            case _:
                raw = code.to_bytes(length, "big")
        with suppress(UnicodeDecodeError):
            text, _ = decode(raw)
            if len(text) == 1:
                table[code] = ord(text)
    return table


#: The numbers of collations by their set, as all servers from MySQL 5.7 to 9.7 and MariaDB list them.
_COLLATIONS: dict[str, str] = {
    "big5": "1 84",
    "latin2": "2 9 21 27 77",
    "dec8": "3 69",
    "cp850": "4 80",
    "latin1": "5 8 15 31 47-49 94",
    "hp8": "6 72",
    "koi8r": "7 74",
    "swe7": "10 82",
    "ascii": "11 65",
    "ujis": "12 91",
    "sjis": "13 88",
    "cp1251": "14 23 50-52",
    "hebrew": "16 71",
    "tis620": "18 89",
    "euckr": "19 85",
    "latin7": "20 41-42 79",
    "koi8u": "22 75",
    "gb2312": "24 86",
    "greek": "25 70",
    "cp1250": "26 34 44 66 99",
    "gbk": "28 87",
    "cp1257": "29 58-59",
    "latin5": "30 78",
    "armscii8": "32 64",
    "utf8mb3": "33 76 83 192-215 223 576-578",
    "ucs2": "35 90 128-151 159 640-642",
    "cp866": "36 68",
    "keybcs2": "37 73",
    "macce": "38 43",
    "macroman": "39 53",
    "cp852": "40 81",
    "utf8mb4": "45-46 224-247 255-323 608-610",
    "utf16": "54-55 101-124 672-674",
    "utf16le": "56 62",
    "cp1256": "57 67",
    "utf32": "60-61 160-183 736-738",
    "binary": "63",
    "geostd8": "92-93",
    "cp932": "95-96",
    "eucjpms": "97-98",
    "gb18030": "248-250",
}


@cache
def _sets_of_collations() -> dict[int, str]:
    sets: dict[int, str] = {}
    for charset, numbers in _COLLATIONS.items():
        for entry in numbers.split():
            first, _, last = entry.partition("-")
            sets |= dict.fromkeys(range(int(first), int(last or first) + 1), charset)
    return sets


def charset_of_collation(collation_id: int) -> str:
    """Return the set of a collation's number in TABLE_MAP and QUERY events; ``""`` if unknown."""
    if collation_id >= _UCA1400_FIRST:
        index = (collation_id - _UCA1400_FIRST) // 256
        return _UCA1400_SETS[index] if index < len(_UCA1400_SETS) else ""
    # MariaDB's NOPAD variants have the number of the padded collation + 1024.
    return _sets_of_collations().get(collation_id % 1024, "")


def same_charset(one: str, other: str) -> bool:
    """Return True if two names mean the same set: servers call one of them ``utf8`` or ``utf8mb3``."""
    return one == other or {one, other} == {"utf8", "utf8mb3"}
