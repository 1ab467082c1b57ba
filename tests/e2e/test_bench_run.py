"""``raycdc bench run``: a pipeline measured into a target that is thrown away."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from raycdc.errors import ExitCode
from tests.support.forked_commands import completed

CONFIG = """
[pipeline]
name = "generated"
state = "state"
epoch_interval = "200ms"
[source]
type = "datagen"
tables = ["shop.orders"]
rows = 20000
chunk_rows = 1000
events = 10
[sink]
{sink}
"""


def measured(folder: Path, *words: str, sink: str = 'type = "delta"\npath = "lake"') -> tuple[int, str, str]:
    path = folder / "job.toml"
    path.write_text(CONFIG.format(sink=sink))
    done = completed(("bench", "run", str(path), "--local", *words), environment=os.environ, folder=folder)
    return done.returncode, done.stdout, done.stderr


def test_each_setting_is_a_run_of_its_own_and_nothing_stays(tmp_path: Path) -> None:
    code, out, errors = measured(tmp_path, "--json", "--seconds", "0", "--try", "source.chunk_rows=500")
    assert code == ExitCode.DONE, errors
    first, second = json.loads(out)["runs"]
    assert (first["settings"], second["settings"]) == ("as it is", "source.chunk_rows = 500")
    for run in (first, second):
        assert run["whole"]
        # A deletion that comes while its chunk is read takes its row out of it.
        assert 19_990 <= run["rows"] <= 20_010
        assert run["target_bytes"] > 0
        assert run["bottleneck"] in run["shares"]
        assert run["shares"]["spark"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["job.toml"]


def test_a_run_ends_at_its_number_of_rows(tmp_path: Path) -> None:
    code, out, errors = measured(
        tmp_path, "--json", "--seconds", "0", "--rows", "1", "--try", "source.rows_per_second=200"
    )
    assert code == ExitCode.DONE, errors
    slow = json.loads(out)["runs"][1]
    assert not slow["whole"]
    assert 1 <= slow["rows"] < 20_000
    assert slow["shares"]["rate_limit"] > 0


@pytest.mark.parametrize(
    ("words", "sink", "told"),
    [
        (["--try", "nonsense"], 'type = "delta"\npath = "lake"', "is no KEY=VALUE"),
        (["--try", "readers.maximum=3"], 'type = "delta"\npath = "lake"', "readers.maximum: unknown key"),
        (["--try", "sink.path=x"], 'type = "delta"\npath = "lake"', "its own target and state"),
        (["--try", "logging.level=debug"], 'type = "delta"\npath = "lake"', "and sends no notifications"),
        ([], 'type = "delta"\npath = "s3://lake/shop"', "--into parquet"),
    ],
)
def test_what_cannot_be_measured_is_named(words: list[str], sink: str, told: str, tmp_path: Path) -> None:
    code, out, errors = measured(tmp_path, *words, sink=sink)
    assert (code, out) == (ExitCode.CONFIG, "")
    assert told in errors
    assert "Running it" not in errors


def test_files_stand_in_for_a_sink_whose_target_is_not_thrown_away(tmp_path: Path) -> None:
    sink = 'type = "jdbc"\nurl = "postgresql://127.0.0.1:1/none"\nuser = "nobody"'
    code, out, errors = measured(tmp_path, "--json", "--seconds", "0", "--into", "parquet", sink=sink)
    assert code == ExitCode.DONE, errors
    (run,) = json.loads(out)["runs"]
    assert run["rows"] >= 19_990
