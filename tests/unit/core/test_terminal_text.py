"""What others have written does nothing to a terminal."""

from __future__ import annotations

import json

import pytest

from raycdc.core.terminal_text import printable, printable_json, printable_text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("größe 表 🎉 [link=x]", "größe 表 🎉 [link=x]"),
        ("\x1b[2J\x07", r"\x1b[2J\x07"),
        ("\x9b31m", r"\x9b31m"),
        ("a\u202egnp.exe\u200b", r"a\u202egnp.exe\u200b"),
        ("a\u2028b\x85c", r"a\u2028b\x85c"),
        ("half \ud83d of one", r"half \ud83d of one"),
        ("a\r\n\tb", r"a\r\n\tb"),
    ],
)
def test_odd_characters_of_a_name_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown
    shown.encode()


def test_a_text_keeps_its_lines_and_may_be_set_in() -> None:
    assert printable_text("one\n\ttwo\rthree\x1b") == "one\n\ttwo\\rthree\\x1b"
    assert printable_text("one\ntwo", indent="  ") == "one\n  two"


def test_json_stays_the_same_json() -> None:
    value = {"a\x1b\x9b\u202e\n": "b\ud800\x7f\u2028é"}
    dumped = printable_json(json.dumps(value, ensure_ascii=False))
    assert json.loads(dumped) == value
    assert printable(dumped) == dumped
    indented = json.dumps(value, ensure_ascii=False, indent=2)
    assert json.loads(printable_json(indented)) == value
    assert printable_json(indented).count("\n") == indented.count("\n")
