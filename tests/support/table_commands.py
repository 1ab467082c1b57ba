"""``raycdc tables`` for a job, in the test's process."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from tests.support.jobs import Job, command


def ask(job: Job, *words: str) -> subprocess.CompletedProcess[str]:
    told = ("tables", words[0], str(job.configuration()), *words[1:])
    return command(told, environment=job.environment())


def tables_command(job: Job, *words: str) -> str:
    done = ask(job, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def listed(job: Job) -> dict[str, dict[str, Any]]:
    return {entry["table"]: entry for entry in map(json.loads, tables_command(job, "list", "--json").splitlines())}
