"""Processes without pandas: pyarrow's answer is settled before it imports it, and others may still have it."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import pyarrow as pa
from raycdc.lean import without_pandas
without_pandas()
assert pa.array(["a", None]).to_pylist() == ["a", None]
assert "pandas" not in sys.modules
import pandas
assert pandas.DataFrame({"a": [1]}).shape == (1, 1)
"""


def test_pyarrow_does_without_pandas_and_who_wants_it_may_import_it() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
