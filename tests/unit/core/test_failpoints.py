"""The list of fail points is the whole list: a point that is missing there cannot be asked for from outside."""

from __future__ import annotations

import ast

from raycdc.core.failpoints import POINTS
from tests.unit.test_tidy import nodes, source_files


def test_the_list_names_exactly_the_places_that_the_code_has() -> None:
    places = {
        str(argument.value)
        for path in source_files("raycdc")
        for node in nodes(path)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("reach", "left_out")
        and isinstance(argument := node.args[0], ast.Constant)
    }
    assert sorted(POINTS) == sorted(places)
