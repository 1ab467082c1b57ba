r"""Escapes names and texts of foreign origin for a terminal or a log, so that they cannot move the cursor or hide text.

Tables, columns and servers' error messages may contain any characters. Control characters, line breaks, invisible
characters, characters that change the text direction, and lone surrogates are printed as escapes (``\x1b``,
``\u202e``).
"""

from __future__ import annotations

import re

#: C0 and C1 controls; direction marks and overrides; characters without width; line separators; surrogates.
_UNPRINTABLE = (
    r"\x00-\x1f\x7f-\x9f"
    r"\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    r"\ud800-\udfff"
)
_IN_NAMES = re.compile(f"[{_UNPRINTABLE}]")
_IN_TEXTS = re.compile(f"(?![\n\t])[{_UNPRINTABLE}]")
#: The escapes that Python and JSON have in common.
_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def printable(name: str) -> str:
    """Return `text`, a name or another part of a line, with unsafe characters escaped."""
    return _IN_NAMES.sub(_escape, name)


def printable_text(text: str, *, indent: str = "") -> str:
    """Return a text of one or more lines with unsafe characters escaped; lines after the first begin with `indent`."""
    return _IN_TEXTS.sub(_escape, text).replace("\n", f"\n{indent}")


def printable_json(dumped: str) -> str:
    """Return the JSON text `dumped` with all unsafe characters escaped, of which ``json.dumps`` escapes only some."""
    return _IN_TEXTS.sub(lambda invalid: f"\\u{ord(invalid[0]):04x}", dumped)


def _escape(invalid: re.Match[str]) -> str:
    code = ord(invalid[0])
    return _SHORT.get(invalid[0]) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")
