"""What `make test` leaves out, in suites: ``make test-long SUITE=NAME``, or all of them, which a release runs.

A test belongs to a suite by its marker, ``long(suite="stores")``, and is then no part of `make test`; the marker
``long_variants("mysql80*", suite="servers")`` is about those of its variants whose ids match. A suite may also play
again what `make test` plays, on other servers or with more seeds: files in `Suite.again`.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
#: Each process has servers of its own, which it waits for; `tests.distribution` shares the tests out.
SEVERAL = ("-n", "4", "--dist", "loadfile")
TWO = ("-n", "2", "--dist", "worksteal")
ALL_CORES = ("-n", "logical", "--dist", "worksteal")


@dataclass(frozen=True, slots=True)
class Suite:
    """Tests, and programs that are tests, which are run together."""

    help: str
    #: Patterns of files whose tests of `make test` are played again.
    again: tuple[str, ...] = ()
    #: How pytest shares the tests out.
    processes: tuple[str, ...] = ()
    #: Variables that are not set otherwise.
    environment: Mapping[str, str] = field(default_factory=dict)
    #: What `.ci/setup` prepares for it.
    setup: str = "test"
    #: A program that is run before the tests.
    program: tuple[str, ...] = ()
    #: Whether there are tests besides.
    tests: bool = True

    def has(self, nodeid: str, marks: Iterable[pytest.Mark], name: str) -> bool:
        """Whether a test belongs to this suite, whose name is given."""
        suites = {mark.kwargs["suite"] for mark in marks}
        path = nodeid.partition("::")[0]
        return name in suites or (not suites and any(fnmatchcase(path, pattern) for pattern in self.again))


PYTHON = sys.executable
#: All suites by their names, in the order in which a release runs them.
SUITES: Mapping[str, Suite] = {
    "stories": Suite(
        "What `make test` tells in a cheaper form: the tutorial into PostgreSQL, a bench of every system, states moved",
        processes=SEVERAL,
    ),
    "servers": Suite("What `make test` tells on one kind of server, on the others", processes=SEVERAL),
    "sinks": Suite(
        "Every way of writing of every sink, failing at every point, with transforms too; whole conformance suites",
        processes=SEVERAL,
    ),
    "blackbox": Suite(
        "Stories of DDL, types, broken surroundings, damaged state: both servers, three sinks",
        again=("tests/blackbox/*",),
        processes=SEVERAL,
    ),
    "kill": Suite(
        "Kill tests with ten seeds (RAYCDC_KILL_SEEDS); prints the table of the manual's page (tests)",
        again=("tests/kill/*",),
        environment={"RAYCDC_KILL_SEEDS": "10"},
    ),
    "engines": Suite(
        "Ray, Spark or the run itself is killed at each step of a hand-over, and Spark where rows need it",
        again=("tests/kill/test_hand_over.py",),
    ),
    "takeover": Suite(
        "Twenty standbys of each kind take over; stopped drivers; lost nodes and heads of Ray; SIGTERM at any moment",
        processes=TWO,
    ),
    "elastic": Suite(
        "A Ray cluster that scales: nodes come under a run, read, and are given back (half an hour)",
        again=("tests/e2e/test_two_nodes.py",),
    ),
    "balance": Suite("A hot partition of a topic gets a reader of its own; topics and change streams at a rate limit"),
    "spark-elsewhere": Suite(
        "Spark with executors that share no disk with the driver (network namespaces: needs root)",
        again=("tests/integration/segments/*",),
    ),
    "simulation": Suite(
        "A whole job under faults, simulated: 1,000 seeds of each of its kinds (RAYCDC_SIM_SEEDS; twenty minutes)",
        again=("tests/simulation/test_simulation.py", "tests/simulation/test_names.py"),
        processes=ALL_CORES,
        environment={"RAYCDC_SIM_SEEDS": "1000"},
    ),
    "drivers": Suite(
        "Drivers of one state that die anywhere, simulated: 3,000 seeds (RAYCDC_DRIVER_SEEDS; ten minutes)",
        again=("tests/simulation/test_drivers.py",),
        processes=ALL_CORES,
        environment={"RAYCDC_DRIVER_SEEDS": "3000"},
    ),
    "races": Suite(
        "The hand-off under aimed writes: 2,000 chunks on each kind of server; a log beyond 4 GiB; types",
        processes=("-s",),
    ),
    "stores": Suite(
        "Object stores: clients race at S3Mock, moto, Azurite (needs npm), Google's (needs Go); long stories",
        again=(
            "tests/integration/storage/*",
            "tests/integration/sinks/test_azure_stores.py",
            "tests/e2e/test_stores.py",
        ),
        processes=SEVERAL,
        setup="stores",
    ),
    "leaks": Suite(
        "The sweep for secrets and values of rows over processes, Ray, Spark, logs and files",
        again=("tests/e2e/test_nothing_leaks.py", "tests/integration/test_secrets_in_refusals.py"),
    ),
    "certificates": Suite(
        "Certificates of every kind against every client, passwords that change, odd names through every sink",
        again=("tests/integration/test_certificates.py",),
    ),
    "verify": Suite(
        "verify finds what was planted among 5 million rows, and raises no alarm in 100 comparisons under load",
        processes=("-s",),
    ),
    "monitoring": Suite(
        "Each alert of examples/monitoring fires and clears by a real fault, in Prometheus (needs apt)"
    ),
    "page": Suite(
        "The page of a run in a headless Chromium; pictures in build/page (needs apt)",
        setup="browser",
    ),
    "demos": Suite(
        "The demo of every pair of a source and a target, each with servers of its own (a quarter of an hour)",
        processes=TWO,
    ),
    "docs": Suite(
        "The manual's site: links, search without a network; every command of README and manual as it stands",
        program=(".ci/docs",),
    ),
    "deploy": Suite(
        "The wheel outside a checkout, the steps of the Dockerfile, two machines with ray start (needs root and apt)",
        setup="deploy",
    ),
    "pythons": Suite(
        "The unit tests on Python 3.12 and 3.13, where these are installed",
        program=(".ci/pythons", *ALL_CORES, "-m", "bare and not long", "tests/unit"),
        tests=False,
    ),
    "mongodb-peer": Suite(
        "MongoDB's tests on SecantusDB, a server of its protocol by others (from PyPI)",
        again=(
            "tests/kill/test_mongodb*.py",
            "tests/e2e/test_mongodb*.py",
            "tests/e2e/test_lookups.py",
            "tests/integration/*/test_mongodb*.py",
            "tests/integration/connectors/mongodb/*",
            "tests/integration/delivery/*",
        ),
        processes=SEVERAL,
        environment={"RAYCDC_TEST_MONGODB_URI": "secantusdb"},
    ),
    "mutants": Suite(
        "Takes some 200 rules out, one at a time: a test must notice each (a quarter of an hour)",
        program=(PYTHON, "-m", "tests.mutants.run"),
        tests=False,
    ),
    "fuzz": Suite(
        "Damages real binlogs 100,000 times: named errors, no crash, no wrong row (five minutes)",
        program=(PYTHON, "-m", "tests.fuzz.binlog", "--mutations", "100000"),
        tests=False,
    ),
    "fuzz-servers": Suite(
        "Random sessions, DDL, commands and kills on real servers: MINUTES=60 by default, seeds from SEED=1",
        program=(
            *(PYTHON, "-m", "tests.fuzz.servers"),
            *("--minutes", os.environ.get("MINUTES", "60"), "--seed", os.environ.get("SEED", "1")),
        ),
    ),
    "server-suites": Suite(
        "MariaDB's own regression suite is followed: each table equal, or parked for a named reason (hours; PART=1/13)",
        program=(PYTHON, "-m", "tests.suites", "--part", os.environ.get("PART", "1/1")),
        tests=False,
    ),
}


def check_suites(nodeid: str, marks: Iterable[pytest.Mark]) -> None:
    """Raise `ValueError` if a marker ``long`` of a test names no suite that has tests."""
    for mark in marks:
        named = SUITES.get(mark.kwargs.get("suite", ""))
        if mark.args or set(mark.kwargs) != {"suite"} or named is None or not named.tests:
            raise ValueError(f"{nodeid}: a long test names a suite, as in long(suite={next(iter(SUITES))!r}): {mark}")


def mark_variants(items: Sequence[pytest.Item], *, whole: bool) -> None:
    """Mark the variants that ``long_variants`` names as long. Raises `ValueError` if it names none of a function's.

    Without `whole`, some variants of a function may be missing, so that this cannot be known.
    """
    matched: dict[tuple[str, tuple[str, ...]], bool] = {}
    for item in items:
        function, _, variant = item.nodeid.partition("[")
        for mark in item.iter_markers("long_variants"):
            fits = any(fnmatchcase(variant.removesuffix("]"), pattern) for pattern in mark.args)
            matched[function, mark.args] = matched.get((function, mark.args), False) or fits
            if fits:
                item.add_marker(pytest.mark.long(**mark.kwargs))
    unused = [f"{function}: {', '.join(patterns)}" for (function, patterns), fits in matched.items() if not fits]
    if whole and unused:
        raise ValueError(f"long_variants names no variant of {'; '.join(unused)}")


def run(name: str) -> int:
    """Prepare and run a suite. Returns the first exit code that is not zero."""
    suite = SUITES[name]
    os.environ.update({key: value for key, value in suite.environment.items() if key not in os.environ})
    commands: list[tuple[str, ...]] = [(".ci/setup", suite.setup)]
    if suite.program:
        commands.append((PYTHON, ".ci/phase", name, *suite.program))
    if suite.tests:
        pytest_ = (PYTHON, "-m", "pytest", "--suite", name, *suite.processes, "tests")
        commands.append((PYTHON, ".ci/phase", name, *pytest_))
    for command in commands:
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        if code:
            return code
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suites that are named, or all; 1 if one of them failed."""
    width = max(map(len, SUITES)) + 2
    parser = argparse.ArgumentParser(
        prog="make test-long SUITE=…",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(f"{name:{width}}{suite.help}" for name, suite in SUITES.items()),
    )
    parser.add_argument("suites", nargs="*", metavar="SUITE")
    chosen = parser.parse_args(arguments).suites or list(SUITES)
    if unknown := [name for name in chosen if name not in SUITES]:
        parser.error(f"no suite is called {', '.join(unknown)}; there are {', '.join(SUITES)}")
    failed = []
    for name in chosen:
        print(f"suite {name}: {SUITES[name].help}", flush=True)
        code = run(name)
        if code in (130, -signal.SIGINT):
            return 130
        failed += [name] if code else []
    print(f"suites: {len(chosen) - len(failed)} of {len(chosen)} are fine" + "".join(f"; {n} failed" for n in failed))
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
