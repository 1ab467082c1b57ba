"""Processes without pandas: pyarrow's answer is settled before it imports it, and others may still have it."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

from raycdc.core.startup_tuning import without_collection

PROGRAM = """
import sys
import pyarrow as pa
from raycdc.core.startup_tuning import without_pandas
without_pandas()
assert pa.array(["a", None]).to_pylist() == ["a", None]
assert "pandas" not in sys.modules
import pandas
assert pandas.DataFrame({"a": [1]}).shape == (1, 1)
"""


#: Runs a pipeline of generated rows, and shows which of the libraries that take long it has loaded. The control API,
#: which opens by itself in a run that lasts, does not open however slow the machine is.
LOCAL_RUN = """
import sys
from raycdc.cli import main
from raycdc.server import control_server
control_server.OPENS_AFTER_S = 600.0
assert main(["run", "--local", sys.argv[1]]) == 0
loaded = {"asyncio", "deltalake", "opentelemetry", "pandas", "pyiceberg", "pyspark", "ray", "starlette", "uvicorn"}
print(sorted(loaded & sys.modules.keys()))
"""
CONFIG = """
pipeline = {{ name = "lean", state = "{folder}/state" }}
source = {{ type = "datagen", tables = ["shop.orders"], rows = 10, events = 0 }}
sink = {{ type = "jsonl", path = "{folder}/out" }}
"""


def test_cycles_are_looked_for_less_often_where_that_was_asked_for_and_still_are_found() -> None:
    program = """
import gc, weakref
from raycdc.core.startup_tuning import collect_seldom
before = gc.get_threshold()[0]
collect_seldom()
assert gc.isenabled() and gc.get_threshold()[0] > before
class Node: pass
node = Node()
node.itself = node
gone = weakref.ref(node)
del node
kept = [[] for _ in range(3 * gc.get_threshold()[0])]
assert gone() is None
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_pyarrow_does_without_pandas_and_who_wants_it_may_import_it() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)


def test_a_run_without_ray_loads_no_library_that_it_does_not_use(tmp_path: Path) -> None:
    config = tmp_path / "lean.toml"
    config.write_text(CONFIG.format(folder=tmp_path))
    command = [sys.executable, "-c", LOCAL_RUN, str(config)]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    assert ended.stdout.splitlines()[-1] == "[]"
    assert list((tmp_path / "out").rglob("*.jsonl"))


def test_cycles_are_looked_for_again_after_the_last_of_several_blocks() -> None:
    with without_collection():
        with without_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
