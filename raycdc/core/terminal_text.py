r"""Names and texts of others as they may stand on a terminal or in a log: nothing in them moves the cursor or hides.

Tables, columns and servers' error messages hold whatever their makers want. Control characters, which terminals obey,
line breaks, which would begin a line of their own, characters that turn the direction of text or are not seen, and
halves of characters, which no output takes, are printed as escapes (``\x1b``, ``\u202e``) instead.
"""

from __future__ import annotations

import re

#: C0 and C1 controls; marks and overrides of direction; characters without width; separators of lines; surrogates.
_UNPRINTABLE = (
    r"\x00-\x1f\x7f-\x9f"
    r"\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    r"\ud800-\udfff"
)
_IN_NAMES = re.compile(f"[{_UNPRINTABLE}]")
_IN_TEXTS = re.compile(f"(?![\n\t])[{_UNPRINTABLE}]")
#: The escapes that both Python and JSON have.
_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def printable(name: str) -> str:
    """A name, or anything else that is no more than a part of a line."""
    return _IN_NAMES.sub(_escape, name)


def printable_text(text: str, *, indent: str = "") -> str:
    """A text that may have several lines; those after the first begin with `indent`."""
    return _IN_TEXTS.sub(_escape, text).replace("\n", f"\n{indent}")


def printable_json(dumped: str) -> str:
    """A JSON text as ``json.dumps`` makes it, which lets through all but the first of these characters."""
    return _IN_TEXTS.sub(lambda invalid: f"\\u{ord(invalid[0]):04x}", dumped)


def _escape(invalid: re.Match[str]) -> str:
    code = ord(invalid[0])
    return _SHORT.get(invalid[0]) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")
