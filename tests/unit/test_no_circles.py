"""No two files of the package need each other, not even for types or within a function."""

from __future__ import annotations

from graphlib import TopologicalSorter

import grimp

#: The compiler is loaded only where something is not compiled yet: one thing in two files, for the time of a start.
_ONE_THING = {("raycdc.core.compiled", "raycdc.core.compiled_build")}


def test_no_file_needs_one_that_needs_it() -> None:
    graph = grimp.build_graph("raycdc")
    # A package's own file hands on names of what is in it, and each file in it loads it.
    needs = {
        module: {
            needed
            for needed in graph.find_modules_directly_imported_by(module)
            if not graph.find_children(needed) and (module, needed) not in _ONE_THING
        }
        for module in graph.modules
        if not graph.find_children(module)
    }
    # It raises `CycleError`, with the names.
    TopologicalSorter(needs).prepare()
