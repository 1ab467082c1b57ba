"""A service manager ends a run on Ray and Spark by SIGTERM, at any moment from its first one: that is a clean end."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from raycdc.sandbox.compare import check_changelog, read_changelog
from raycdc.sandbox.servers import MariaDbServer
from tests.support.jobs import Job, JobRun, catch_up

pytestmark = [
    pytest.mark.server,
    pytest.mark.spark,
    pytest.mark.kill,
    pytest.mark.long(suite="takeover"),
    pytest.mark.timeout(1800),
]

#: Seconds after the command has taken the signal, which Python itself does not; and the first events of these names.
MOMENTS = (0.0, 1.0, 2.5, 4.0, 6.0, "started", "commit")


def reached(run: JobRun, moment: float | str, began_s: float) -> bool:
    if isinstance(moment, str):
        return any(event["event"] == moment for event in list(run.events))
    return time.monotonic() - began_s >= moment


def takes_sigterm(run: JobRun) -> bool:
    """proc(5), "SigCgt": bit n - 1 is signal n."""
    lines = Path(f"/proc/{run.process.pid}/status").read_text().splitlines()
    caught = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt"))
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def test_sigterm_is_a_clean_end_at_any_moment(mariadb: MariaDbServer, tmp_path: Path) -> None:
    mariadb.execute("CREATE OR REPLACE DATABASE served", "CREATE TABLE served.t (id INT PRIMARY KEY)")
    mariadb.execute("INSERT INTO served.t VALUES (1), (2), (3)")
    job = Job(tmp_path, mariadb, "served", ("t",), sink="jsonl", write="changelog")
    for moment in MOMENTS:
        run = job.start()
        assert run.wait_for(lambda r=run: takes_sigterm(r)), run.story()  # type: ignore[misc]
        began_s = time.monotonic()
        assert run.wait_for(lambda r=run, m=moment, b=began_s: reached(r, m, b)), run.story()  # type: ignore[misc]
        run.process.send_signal(signal.SIGTERM)
        assert run.wait(timeout_s=90) == 0, f"{moment}\n{run.story()}"
        assert [event for event in run.events if event["event"] in ("error", "not JSON")] == [], run.story()
    catch_up(job)
    rows = read_changelog(job.lake / "served" / "t", "jsonl")
    assert (check_changelog(rows, ["id"]), len(rows)) == ([], 3)
