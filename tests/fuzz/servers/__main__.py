"""``python -m tests.fuzz.servers [--server NAME …] [--minutes M] [--seed S] [--stories N]``: play seeds for a time.

A seed that finds something is printed with what is wrong and the folder with its logs; it is played again alone with
``--server NAME --seed S --stories 1``.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping

from raycdc.sandbox.servers import DatabaseServer, MariaDbServer, MySqlServer
from tests.fuzz.servers.story import Plan, play

SERVERS: Mapping[str, Callable[[], DatabaseServer]] = {
    "mariadb": MariaDbServer,
    "mariadb-no-metadata": lambda: MariaDbServer({"binlog_row_metadata": "NO_LOG"}),
    "mysql80": MySqlServer,
    "mysql80-no-gtid": lambda: MySqlServer(gtid=False),
    "mysql57": lambda: MySqlServer(version="5.7", gtid=False),
}


def main() -> int:
    """Zero when every story was as it must be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", action="append", choices=list(SERVERS))
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stories", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=Plan().steps)
    parser.add_argument("--acts", type=int, default=Plan().acts)
    arguments = parser.parse_args()
    begun = time.monotonic()
    counts: Counter[str] = Counter()
    failed = []
    chosen = arguments.server or list(SERVERS)
    share = arguments.minutes * 60 / len(chosen)
    for number, name in enumerate(chosen):
        with SERVERS[name]() as server:
            for seed in range(arguments.seed, arguments.seed + arguments.stories):
                if time.monotonic() - begun > share * (number + 1):
                    break
                story = play(server, seed, Plan(arguments.acts, arguments.steps))
                verdict, folder = story.verdict, story.folder
                counts["stories"] += 1
                counts["statements"] += verdict.statements
                counts["deaths"] += verdict.deaths
                counts["tables compared"] += verdict.compared
                counts["tables parked, as foreseen"] += len(verdict.parked)
                print(f"{name} {seed}: {verdict.statements} statements, {verdict.deaths} deaths, "
                      f"{verdict.compared} compared, {len(verdict.parked)} parked, {len(verdict.problems)} problems",
                      flush=True)  # fmt: skip
                if verdict.problems:
                    failed.append(f"{name} {seed}")
                    print("\n".join(verdict.problems), f"see {folder}", sep="\n", flush=True)
                else:
                    shutil.rmtree(folder, ignore_errors=True)
    hours = (time.monotonic() - begun) / 3600
    print(f"{hours:.2f} hours: " + ", ".join(f"{count:,} {what}" for what, count in counts.items()))
    if failed:
        print("seeds that found something: " + ", ".join(failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
