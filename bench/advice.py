"""Measures the effect of a recommendation of ``raycdc bench splits``: a skewed table is compared, the printed lines are
pasted into the configuration, and the pipeline is run alternately with the old and the new lines.

| case | what is skewed, and what the configuration says at first |
|---|---|
| ``table`` | nearly all keys lie densely, and a few far away; ``strategy = "even"``, arithmetic steps |

The server is reached over a link that gives each connection so many bytes a second and no more, as one between two
sites does: reading with two connections is twice as fast there, whatever the processors do. Figures are seconds of the
whole run, from the command to its end, and CPU seconds of its processes; ``gain`` is old by new for each pair.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench import tables
from bench.measure import Measurement, Options, progress
from bench.pipeline import Bench
from tests.support.servers.gate import Before, Gate

CASES = ("table",)
SERVER = "mariadb"
#: The number of pairs of runs.
TRIES = 5

_ROWS = 400_000
#: Bytes per second of each connection.
_BYTES_PER_S = 1_000_000
#: The number of rows whose keys are far away from the others.
_FAR = 20
_CHUNK_ROWS = 20_000


class SlowLink(Gate):
    """A proxy that passes each connection's bytes at `bytes_per_s`."""

    bytes_per_s = _BYTES_PER_S

    def valve(self) -> Before:
        """Return a valve per direction; each has its own rate limit."""
        due_s = time.monotonic()

        def hold(data: bytes) -> None:
            nonlocal due_s
            due_s = max(due_s + len(data) / self.bytes_per_s, time.monotonic() - 0.05)
            time.sleep(max(0.0, due_s - time.monotonic()))

        return hold


def run(options: Options) -> Iterator[Measurement]:
    """Fill the table, ask for a recommendation, follow it, and measure pairs of runs."""
    with tempfile.TemporaryDirectory(prefix="raycdc-bench-") as folder, tables.server_of("mariadb", {}) as server:
        bench = Bench(Path(folder), server)
        rows = options.rows or _ROWS
        connection = tables.connect(server.port)
        tables.prepare(connection)
        with connection.cursor() as cursor:
            cursor.execute("USE bench")
            cursor.execute("CREATE TABLE bench.skewed (id BIGINT PRIMARY KEY, v INT, note VARCHAR(60))")
            progress(f"filling {rows:,d} rows ...")
            cursor.execute(
                f"INSERT INTO bench.skewed SELECT IF(seq <= {_FAR}, 9000000000000000000 - seq, seq), seq % 1000, "
                f"REPEAT('x', 20 + seq % 40) FROM seq_1_to_{rows}"
            )
            cursor.execute("ANALYZE TABLE bench.skewed")
        with SlowLink("127.0.0.1", server.port) as link:
            yield Followed(bench, link.port, rows).measured(options.tries)


def conclusions(measurements: Sequence[Measurement]) -> dict[str, Any]:
    """Return the recommended lines, their reason, and the gain."""
    return {
        "recommendations": {
            m.case: {"advice": f"{m.more['settings']!r}: {m.more['gain']} times as fast", **m.more}
            for m in measurements
        }
    }


class Followed:
    """The case: the configuration before, and with the lines of the recommendation."""

    def __init__(self, bench: Bench, port: int, rows: int) -> None:
        self._bench, self._port, self._rows = bench, port, rows

    def measured(self, pairs: int) -> Measurement:
        before = f'[source.snapshot]\nstrategy = "even"\nchunk_rows = {_CHUNK_ROWS}\n'
        advice = self._asked(self._configuration("asked", before))
        after = self._pasted(before, advice["settings"])
        progress(f"recommended: {advice['settings']!r}: {advice['reason']}")
        walls: dict[str, list[float]] = {"before": [], "after": []}
        cpu: dict[str, list[float]] = {"before": [], "after": []}
        peak_mb = 0.0
        for pair in range(pairs):
            for name, lines in (("before", before), ("after", after)):
                progress(f"pair {pair + 1} of {pairs}: {name} ...")
                config = self._configuration(name, lines)
                command = [sys.executable, "-m", "raycdc.cli", "run", str(config), "--json", "--until", "caught-up"]
                found = self._bench.watched(command)
                assert sum(event["rows"] for _, event in found.of("commit")) == self._rows
                walls[name].append(round(found.ended - found.spawned, 2))
                cpu[name].append(round(sum(found.tree.cpu_s(found.ended).values()), 2))
                peak_mb = max(peak_mb, found.tree.peak_pss_mb)
        gains = [old / new for old, new in zip(walls["before"], walls["after"], strict=True)]
        figures = {
            "settings": advice["settings"],
            "reason": advice["reason"],
            "gain": round(statistics.median(gains), 2),
            "gains": [round(gain, 2) for gain in gains],
            "wall_s": walls,
            "cpu_s_of": cpu,
        }
        wall_s, cpu_s = statistics.median(walls["after"]), statistics.median(cpu["after"])
        return Measurement("table", "raycdc", self._rows, wall_s, cpu_s, round(peak_mb, 1), figures)

    def _asked(self, config: Path) -> Any:
        """Return the recommendation of ``raycdc bench splits``."""
        command = [sys.executable, "-m", "raycdc.cli", "bench", "splits", str(config), "--json"]
        return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)["advice"]

    @staticmethod
    def _pasted(before: str, settings: str) -> str:
        """Return the section in which the recommended lines replace those of the same keys."""
        new = tomllib.loads(settings)["source"]["snapshot"]
        kept = [line for line in before.splitlines() if line.partition(" = ")[0] not in new]
        return "\n".join([*kept, *settings.splitlines()[1:], ""])

    def _configuration(self, name: str, lines: str) -> Path:
        """Return a configuration whose run is its first one."""
        folder = self._bench.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        path = folder / "job.toml"
        path.write_text(
            f"""
[pipeline]
name = "advice"
state = "{folder / "state"}"
[readers]
max = 2
[sink]
type = "delta"
path = "{folder / "lake"}"
[source]
type = "mysql"
port = {self._port}
user = "root"
password = "{self._bench.server.root_password}"
tables = ["bench.skewed"]
{lines}"""
        )
        return path
