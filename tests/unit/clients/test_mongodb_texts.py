"""Texts of MongoDB's errors, as servers and the driver give them: nothing of a row is left in them."""

from __future__ import annotations

import pytest

from raycdc.clients.mongodb import denied_database, redacted


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (
            'not authorized on shop to execute command { find: "t", filter: { _id: "me@x" }, $db: "shop" }',
            "not authorized on shop to execute command find",
        ),
        (
            'not authorized on shop to execute command { insert: "t", documents: [ { _id: 1, v: "a\nb" } ] }',
            "not authorized on shop to execute command insert",
        ),
        (
            'E11000 duplicate key error collection: shop.t index: v_1 dup key: { v: "me@x" }',
            "E11000 duplicate key error collection: shop.t index: v_1",
        ),
        (
            "Document failed validation, full error: {'errInfo': {'failingDocumentId': 'me@x'}}",
            "Document failed validation",
        ),
        ("not primary", "not primary"),
    ],
)
def test_a_text_says_what_was_refused_and_nothing_of_a_row(text: str, left: str) -> None:
    assert redacted(text) == left


def test_the_database_in_which_a_right_is_missing_is_known() -> None:
    assert denied_database('not authorized on shop to execute command { find: "t" }') == "shop"
    assert denied_database("not primary") == ""
