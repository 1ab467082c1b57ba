"""MySQL character sets: bytes per character, the Python codec of each, and collation ids of the binlog's metadata.

Used by the type mapping (`types`), the arenas (`columns`) and TABLE_MAP checks. utf8 family and ascii bytes are
already UTF-8; a single-byte set becomes a table of 256 code points for the compiled loops; the others are converted
by their codec after the loop.
"""

from __future__ import annotations

import codecs
from functools import cache

import numpy as np
import numpy.typing as npt

#: Sets whose bytes are UTF-8 as they are.
UTF8_CHARSETS = frozenset({"utf8", "utf8mb3", "utf8mb4", "ascii"})

#: Set → (bytes per character at most, Python codec). Python has no codec for a few (dec8, hp8, swe7, geostd8, keybcs2,
#: armscii8): latin1 is the nearest superset of their ASCII half; their upper halves are counted as replaced bytes.
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

#: MariaDB's UCA-14.0.0 collations: 256 ids for each set (its manual, "Supported Character Sets and Collations").
_UCA1400_FIRST = 2048
_UCA1400_SETS = ("utf8mb3", "utf8mb4", "ucs2", "utf16", "utf32")


def bytes_per_character(charset: str) -> int:
    """The most bytes one character takes; 0 when the set is unknown (then lengths cannot be compared)."""
    return _CHARSETS.get(charset, (0, ""))[0]


def is_single_byte(charset: str) -> bool:
    """Whether `code_points` can stand for the set."""
    return bytes_per_character(charset) == 1 and charset not in UTF8_CHARSETS


def codec_of(charset: str) -> str:
    """Python codec of a set; an unknown set is read as UTF-8, its invalid bytes replaced and counted."""
    return _CHARSETS.get(charset, (0, "utf-8"))[1]


@cache
def code_points(charset: str) -> npt.NDArray[np.int32]:
    """The 256 code points of a single-byte set; U+FFFD where it has none.

    MySQL's latin1 is cp1252 with the five undefined bytes kept as C1 controls (manual, "West European Character Sets").
    """
    decoder = codecs.getdecoder(codec_of(charset))
    table = np.full(256, 0xFFFD, dtype=np.int32)
    for byte in range(256):
        text, _ = decoder(bytes([byte]), "replace")
        table[byte] = byte if charset == "latin1" and text == "\ufffd" else ord(text)
    table.setflags(write=False)
    return table


def charset_of_collation(collation_id: int) -> str:
    """The set a collation id of TABLE_MAP's metadata belongs to; ``""`` when unknown."""
    if collation_id >= _UCA1400_FIRST:
        index = (collation_id - _UCA1400_FIRST) // 256
        return _UCA1400_SETS[index] if index < len(_UCA1400_SETS) else ""
    if 1024 <= collation_id < _UCA1400_FIRST:  # MariaDB's NOPAD twins: the id of the padded one + 1024
        collation_id -= 1024
    from pymysql.charset import charset_by_id

    try:
        return str(charset_by_id(collation_id).name)
    except KeyError:
        return ""
