"""Runs a pipeline as a task of Airflow 3: every quarter of an hour it reads to the present end of the log, and ends.

Between two passes nothing runs; the source must keep its log for longer than the longest pause. The worker needs raycdc
in an environment of its own, because Airflow pins many of the same packages: ``python -m venv /opt/raycdc``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta

from airflow.sdk import dag, task
from airflow.sdk.exceptions import AirflowException, AirflowFailException

RAYCDC = os.environ.get("RAYCDC_COMMAND", "/opt/raycdc/bin/raycdc")
CONFIG = os.environ.get("RAYCDC_CONFIG", "/etc/raycdc/shop.toml")

#: Exit codes after which a retry may succeed without a person: the source, the sink or the Ray cluster was unreachable.
#: After each of them the same command continues from what was sealed. All others need a person (README, "Exit codes").
RETRIED = frozenset({3, 5, 7})


def react(code: int, said: str) -> None:
    """Do nothing for 0; else raise the exception that lets Airflow retry, or not."""
    if code == 0:
        return
    text = f"raycdc ended with exit code {code}: {said}"
    raise AirflowException(text) if code in RETRIED else AirflowFailException(text)


@task(retries=5, retry_delay=timedelta(minutes=2), retry_exponential_backoff=True)
def caught_up() -> None:
    """Run one pass.

    If the task is stopped, the pass ends in order: what is sealed is committed, and nothing is lost.
    """
    words = [RAYCDC, "run", CONFIG, "--local", "--until", "caught-up"]
    said = ""
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            for line in process.stdout or ():
                sys.stdout.write(line)
                said = line.strip() or said
            process.wait()
        finally:
            # The process still runs only if Airflow ends this task.
            process.terminate()
    react(process.returncode, said)


@dag(
    schedule="*/15 * * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    # Two runs of one state exclude each other, and the second would fail with 6.
    max_active_runs=1,
)
def raycdc_shop() -> None:
    """Define the task; tasks that read the lake follow it."""
    caught_up()


raycdc_shop()
