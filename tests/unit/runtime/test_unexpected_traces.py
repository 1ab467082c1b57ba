"""Tracebacks for ``--verbose``: the texts of libraries beneath a named error are left out."""

from __future__ import annotations

import pyarrow as pa
import pytest

from raycdc.errors import SinkError
from raycdc.runtime.unexpected import traceback_of, unexpected


def raised() -> SinkError:
    try:
        try:
            raise ValueError("row planted 4141")
        except ValueError as cause:
            raise SinkError("shop.t: column v cannot be written.") from cause
    except SinkError as error:
        return error


def test_causes_of_a_named_error_have_their_kind_and_lines_alone() -> None:
    told = traceback_of(raised())
    assert "planted" not in told.replace('raise ValueError("row planted 4141")', "")
    assert "\nValueError\n" in told
    assert told.endswith("raycdc.errors.SinkError: shop.t: column v cannot be written.")
    assert told.count("Traceback (most recent call last)") == 2


def test_a_bug_keeps_its_text_but_for_values_that_arrow_quotes() -> None:
    assert str(unexpected(KeyError("name"), object())).startswith("KeyError: 'name'")
    with pytest.raises(pa.ArrowInvalid) as refused:
        pa.array([4141]).cast(pa.int8())
    assert "4141" not in str(unexpected(refused.value, object()))
    assert "Integer value … not in range" in traceback_of(refused.value)


def test_an_error_that_passed_through_code_of_others_has_its_kind_and_place_alone() -> None:
    """The package of this test is such code."""
    with pytest.raises(ValueError, match="invalid") as refused:
        int("planted")
    with pytest.raises(AttributeError, match="kind") as bug:
        object().kind  # type: ignore[attr-defined]  # noqa: B018
    told = str(unexpected(refused.value, raised))
    assert told.startswith(f"ValueError ({__file__}:")
    assert "planted'" not in traceback_of(refused.value)
    assert str(unexpected(bug.value, raised)).startswith("AttributeError: 'object' object has no attribute 'kind' (")
