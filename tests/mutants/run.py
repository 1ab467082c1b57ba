"""Rules of raycdc, each taken out by hand: ``python -m tests.mutants.run`` demands that its test notices every one.

A mutant is one change of the source: `file`, the `old` text, the `new` one, and the `test` that must fail with it. They
lie in the ``*.toml`` files beside this one, by the room they are about. The package is copied to temporary folders, one
for each worker, where one mutant at a time is applied; the work tree is never touched. Without a mutant each test must
pass, and with it a test must fail by itself: what cannot be imported or collected proves nothing. A mutant whose old
text is not found exactly once fails, so that the list stays true to the source.
"""

from __future__ import annotations

import argparse
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
WORKERS = 2
#: Some rules are missed by few seeds of a simulation only: more are played than in `make test`.
SEEDS = {"RAYCDC_SIM_SEEDS": "60", "RAYCDC_DRIVER_SEEDS": "40"}
#: Longest that one test may take; a run without an end was not noticed either.
TIMEOUT_S = 900
#: Exit code of pytest where tests were run, and some failed.
TESTS_FAILED = 1


@dataclass(frozen=True, slots=True)
class Mutant:
    """One rule that is taken out."""

    room: str
    rule: str
    file: str
    old: str
    new: str
    test: str

    def applied(self, text: str) -> str:
        """The file's text without the rule. Raises `ValueError` where it is not to be found, or more than once."""
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"{self.file} has the text of {self.rule!r} {found} times")
        return text.replace(self.old, self.new)


class Outcome(Enum):
    """What became of a mutant."""

    NOTICED = "noticed"
    SURVIVED = "SURVIVED"
    BROKEN = "BROKEN"


def mutants() -> list[Mutant]:
    """All that there are."""
    found = []
    for path in sorted(HERE.glob("*.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]:
            texts = (entry[name] for name in ("rule", "file", "old", "new", "test"))
            found += [Mutant(path.stem, *texts)]
    return found


class Copy:
    """A copy of what tests need, whose package may be changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("raycdc", "tests", "examples", "bench"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "README.md", "ARCHITECTURE.md", "Makefile"):
            shutil.copy(ROOT / name, folder / name)

    def run(self, test: str) -> tuple[int, str]:
        """The exit code of pytest, and its last lines; -1 where it found no end."""
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:randomly", "-m", "not long", *_words(test)]
        environment = {**SEEDS, **os.environ, "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return -1, f"no end within {TIMEOUT_S} s"
        return done.returncode, "\n".join(done.stdout.splitlines()[-6:])

    def without(self, mutant: Mutant) -> tuple[Outcome, str]:
        """What becomes of the test without the rule."""
        path = self.folder / mutant.file
        text = path.read_text(encoding="utf-8")
        path.write_text(mutant.applied(text), encoding="utf-8")
        try:
            code, told = self.run(mutant.test)
        finally:
            path.write_text(text, encoding="utf-8")
        if code == TESTS_FAILED and " failed" in told:
            return Outcome.NOTICED, told
        return (Outcome.SURVIVED if code == 0 else Outcome.BROKEN), told


def _words(test: str) -> list[str]:
    """Files, and what follows ``-k``."""
    files, keyword, expression = test.partition(" -k ")
    return [*files.split(), *(["-k", expression] if keyword else [])]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("words", nargs="*", help="only mutants whose rule, file or room has one of these words")
    words = parser.parse_args(arguments).words
    chosen = [m for m in mutants() if not words or any(w in f"{m.room} {m.rule} {m.file}" for w in words)]
    started, done, lock = time.monotonic(), 0, threading.Lock()
    bad: list[str] = []
    with tempfile.TemporaryDirectory(prefix="raycdc-mutants-") as folder:
        copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for number in range(WORKERS):
            copies.put(Copy(Path(folder) / str(number)))
        tests = sorted({mutant.test for mutant in chosen})

        def say(text: str, *, total: int) -> None:
            nonlocal done
            with lock:
                done += 1
                spent_s = time.monotonic() - started
                left_s = spent_s / done * (total - done)
                print(f"[{done}/{total}, about {left_s / 60:.0f} min left] {text}", flush=True)

        total = len(tests) + len(chosen)

        def passes(test: str) -> None:
            copy = copies.get()
            try:
                code, told = copy.run(test)
            finally:
                copies.put(copy)
            if code != 0:
                bad.append(f"{test} does not pass as it is:\n{told}")
            say(f"{'passes' if code == 0 else 'FAILS'}: {test}", total=total)

        def dies(mutant: Mutant) -> None:
            copy = copies.get()
            try:
                outcome, told = copy.without(mutant)
            except ValueError as error:
                outcome, told = Outcome.BROKEN, str(error)
            finally:
                copies.put(copy)
            if outcome is not Outcome.NOTICED:
                bad.append(f"{outcome.value}: {mutant.rule} ({mutant.file}; {mutant.test})\n{told}")
            say(f"{outcome.value}: {mutant.rule}", total=total)

        with ThreadPoolExecutor(WORKERS) as pool:
            list(pool.map(passes, tests))
            list(pool.map(dies, chosen))
    print(f"\n{len(chosen)} mutants in {(time.monotonic() - started) / 60:.1f} minutes; {len(bad)} to look at.")
    for text in bad:
        print(f"\n{text}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
