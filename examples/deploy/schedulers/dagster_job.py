"""Runs a pipeline as a job of Dagster: every quarter of an hour it reads to the present end of the log, and ends.

``dagster dev -f dagster_job.py``. The source must keep its log for longer than the longest pause between two passes.
"""

# Dagster reads the annotation of `context` itself, so `from __future__ import annotations` must not be here.
import json
import os
import subprocess

from dagster import Definitions, Failure, OpExecutionContext, Output, RetryPolicy, ScheduleDefinition, job, op

RAYCDC = os.environ.get("RAYCDC_COMMAND", "/opt/raycdc/bin/raycdc")
CONFIG = os.environ.get("RAYCDC_CONFIG", "/etc/raycdc/shop.toml")

#: Exit codes after which a retry may succeed without a person: the source, the sink or the Ray cluster was unreachable.
#: After each of them the same command continues from what was sealed. All others need a person (README, "Exit codes").
RETRIED = frozenset({3, 5, 7})


def react(code: int, said: str) -> None:
    """Do nothing for 0; else raise the failure that lets Dagster retry, or not."""
    if code:
        raise Failure(f"raycdc ended with exit code {code}: {said}", allow_retries=code in RETRIED)


@op(retry_policy=RetryPolicy(max_retries=5, delay=120))
def caught_up(context: OpExecutionContext) -> Output[None]:
    """Run one pass; the numbers of rows that it wrote to each table are shown with the run."""
    words = [RAYCDC, "run", CONFIG, "--local", "--until", "caught-up", "--json"]
    rows: dict[str, int] = {}
    said = ""
    # Messages for people and lines for programs come in one stream, so that neither blocks the other.
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            for line in process.stdout or ():
                event = json.loads(line) if line.startswith("{") else {}
                if event.get("event") == "progress":
                    rows |= {table["table"]: table["rows"] for table in event["tables"]}
                elif not event:
                    said = line.strip() or said
                    context.log.info(line.rstrip())
            process.wait()
        finally:
            # The process still runs only if Dagster ends this op: it commits what is sealed, and ends.
            process.terminate()
    react(process.returncode, said)
    return Output(None, metadata=dict(rows))


# Two runs of one state exclude each other, and the second would fail with 6. The tag permits one run at a time
# (`concurrency: { runs: { tag_concurrency_limits: … } }` of the instance).
@job(tags={"raycdc": "shop"})
def raycdc_shop() -> None:
    """Define the job: the pass, then ops that read the lake."""
    caught_up()


defs = Definitions(jobs=[raycdc_shop], schedules=[ScheduleDefinition(job=raycdc_shop, cron_schedule="*/15 * * * *")])
