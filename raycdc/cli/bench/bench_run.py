"""``raycdc bench run CONFIG``: measures a user's own pipeline into a temporary target, with its own and with
different settings.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from raycdc.bench.runs.measured import REPORTING_SECTIONS, BenchLimits, Figures, Setting, measured, trial_config
from raycdc.cli.screens.formatting import counted
from raycdc.config.load import load_config, read_toml
from raycdc.core.terminal_text import printable, printable_json, printable_text
from raycdc.core.typed_codec import Json
from raycdc.errors import ConfigError, ExitCode, RaycdcError

VERSION = 1
AS_IT_IS = "as it is"


@dataclass(frozen=True, slots=True)
class BenchRunOptions:
    """The options of the command."""

    seconds: float = 30.0
    rows: int = 0
    tries: Sequence[str] = ()
    into: str = ""
    local: bool = False
    as_json: bool = False


def measure_run(path: Path, asked: BenchRunOptions) -> int:
    """Run the pipeline unchanged, and once more with each setting to try; print the measurements."""
    config = load_config(path)
    data = read_toml(path)
    settings = [Setting.parse(text) for text in asked.tries]
    own = ("sink.", "pipeline.state", "control.", *(f"{section}." for section in REPORTING_SECTIONS))
    for setting in settings:
        if setting.key.startswith(own):
            raise ConfigError(
                f"--try {setting.key}: a measured run has its own target and state, and sends no notifications."
            )
        # A misspelt key is reported before the long runs begin.
        trial_config(data, (setting,), Path("nowhere"), into=asked.into)
    runs: list[Figures] = []
    interrupted = False
    try:
        for tried in ((), *((setting,) for setting in settings)):
            name = ", ".join(f"{setting.key} = {setting.value}" for setting in tried) or AS_IT_IS
            with _folder(config.sink.folder) as folder:
                trial = trial_config(data, tried, folder, into=asked.into)
                print(printable(_said(name, asked, folder)), file=sys.stderr, flush=True)
                limits = BenchLimits(asked.seconds, asked.rows)
                runs.append(measured(trial, limits, settings=name, target=folder / "target", local=asked.local))
    except KeyboardInterrupt:
        interrupted = True
    except RaycdcError:
        if runs:
            _show(config.pipeline.name, runs, asked)
        raise
    _show(config.pipeline.name, runs, asked)
    return int(ExitCode.INTERRUPTED if interrupted else ExitCode.DONE)


def _show(pipeline: str, found: Sequence[Figures], asked: BenchRunOptions) -> None:
    if asked.as_json:
        runs: list[Json] = [figures.to_json() for figures in found]
        document: dict[str, Json] = {"version": VERSION, "pipeline": pipeline, "runs": runs}
        print(printable_json(json.dumps(document, ensure_ascii=False)))
    else:
        _print(found)


@contextmanager
def _folder(sibling: str) -> Iterator[Path]:
    """Provide a temporary folder on the disk of the real target; it is removed at the end of the block."""
    parent = Path(sibling).absolute().parent if sibling else Path.cwd()
    while not parent.is_dir():
        parent = parent.parent
    try:
        folder = Path(tempfile.mkdtemp(prefix=".raycdc-bench-", dir=parent))
    except OSError as cause:
        raise ConfigError(
            f"raycdc bench run makes a temporary folder in {parent}, which cannot be written ({cause.strerror}). "
            "Run it as the user of the pipeline, or in a folder that you own with --into parquet."
        ) from cause
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _said(name: str, asked: BenchRunOptions, folder: Path) -> str:
    limits = [f"{asked.seconds:g} s"] if asked.seconds else []
    limits += [counted(asked.rows, "row")] if asked.rows else []
    bound = f"up to {' or '.join(limits)}" if limits else "until it has caught up"
    return f"Running it {bound}, {name}, into {folder}, which is removed afterwards. The real target is not touched."


def _print(runs: Sequence[Figures]) -> None:
    console = Console(soft_wrap=not sys.stdout.isatty())
    if not runs:
        console.print("Nothing was measured.")
        return
    view = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    view.add_column("", no_wrap=True)
    for figures in runs:
        view.add_column(printable(figures.settings), justify="right")
    rows = [dict(_lines(figures, runs[0])) for figures in runs]
    for name in rows[0]:
        view.add_row(name, *(Text(row[name]) for row in rows))
    console.print(view)
    for figures in runs:
        if figures.why:
            share = f"{figures.shares[figures.bottleneck]:.0%}"
            console.print(Text(printable_text(f"{figures.settings}: most of the time, {share}, goes to "
                                              f"{figures.bottleneck}: {figures.why}.")))  # fmt: skip
        for note in figures.notes:
            console.print(Text(printable_text(f"{figures.settings}: {note}")))


def _lines(figures: Figures, first: Figures) -> Iterator[tuple[str, str]]:
    """Yield (name, value) of each figure of a run; the names are the same for each run."""
    ratio = figures.rows_per_s / first.rows_per_s if first.rows_per_s else 0.0
    yield "rows", f"{figures.rows:,}" + ("" if figures.whole else ", not all")
    yield "seconds to start", f"{figures.start_s:.1f}"
    yield "seconds of running", f"{figures.seconds:.1f}"
    yield "rows/s", f"{figures.rows_per_s:,.0f}"
    yield f"times {AS_IT_IS}", f"{ratio:.2f}"
    yield "epochs", f"{figures.epochs:,}"
    yield "readers", f"{figures.readers:,}"
    for stage, share in figures.shares.items():
        yield f"  {stage}", f"{share:.0%}"
    yield "CPU seconds of readers", f"{figures.readers_cpu_s:.1f}"
    yield "peak MiB of the driver", f"{figures.driver_peak_bytes / 2**20:,.0f}"
    yield "MiB of the target", f"{figures.target_bytes / 2**20:,.1f}"
