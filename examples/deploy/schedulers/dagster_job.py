"""A pipeline as a job of Dagster: every quarter of an hour it is brought to the log's present end, then it ends.

``dagster dev -f dagster_job.py``. The source must keep its log for longer than the longest pause between two passes.
"""

# Dagster looks at the annotation of `context` itself: no `from __future__ import annotations` here.
import json
import os
import subprocess

from dagster import Definitions, Failure, OpExecutionContext, Output, RetryPolicy, ScheduleDefinition, job, op

RAYCDC = os.environ.get("RAYCDC_COMMAND", "/opt/raycdc/bin/raycdc")
CONFIG = os.environ.get("RAYCDC_CONFIG", "/etc/raycdc/shop.toml")

#: Exit codes behind which the next try may succeed without anybody: the source, the sink or the Ray cluster was away.
#: After each of them the same command goes on from what was sealed. The others want a person (README, "Exit codes").
RETRIED = frozenset({3, 5, 7})


def react(code: int, said: str) -> None:
    """Nothing for 0; else the failure that lets Dagster try again, or not."""
    if code:
        raise Failure(f"raycdc ended with exit code {code}: {said}", allow_retries=code in RETRIED)


@op(retry_policy=RetryPolicy(max_retries=5, delay=120))
def caught_up(context: OpExecutionContext) -> Output[None]:
    """One pass; the rows that it wrote of each table are shown beside the run."""
    words = [RAYCDC, "run", CONFIG, "--local", "--until", "caught-up", "--json"]
    rows: dict[str, int] = {}
    said = ""
    # What it says to a person, and the lines for programs, in one stream, so that neither waits for the other.
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
            # It still runs only where Dagster ends this op: it commits what is sealed, and leaves.
            process.terminate()
    react(process.returncode, said)
    return Output(None, metadata=dict(rows))


# Two runs of one state exclude each other, and the second would fail with 6: let the tag have one run at a time
# (`concurrency: { runs: { tag_concurrency_limits: … } }` of the instance).
@job(tags={"raycdc": "shop"})
def raycdc_shop() -> None:
    """The pass, and behind it whatever reads the lake."""
    caught_up()


defs = Definitions(jobs=[raycdc_shop], schedules=[ScheduleDefinition(job=raycdc_shop, cron_schedule="*/15 * * * *")])
