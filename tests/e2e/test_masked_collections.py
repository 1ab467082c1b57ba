"""Documents that have what masks hide: no file of the state, and nothing that is said of them, shows it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raycdc.sandbox.servers import MongoDb
from tests.leaks import nothing_shows
from tests.support.jobs import CollectionJob, catch_up

pytestmark = pytest.mark.server

SECRETS: list[str | int] = ["planted-secret", 748_596_111]
MASKS = r"""
[[mask]]
columns = 'DB\.people\.(EMAIL|_rest)'
method = "mask"
length = 3

[[mask]]
columns = 'DB\..*\.Count.*'
method = "hash"
key = "hashed with it"

[[mask]]
columns = 'DB\..*\.phone'
method = "drop"

[[mask]]
columns = 'DB\..*\.gone'
method = "drop"
"""


def test_no_file_and_no_word_shows_what_masks_hide_in_documents(
    mongodb: MongoDb, mongodb_database: str, tmp_path: Path
) -> None:
    def document(number: int, **more: object) -> dict[str, object]:
        told = {"email": "planted-secret", "count": 748_596_111, "gone": {"in": ["planted-secret"]}, "shown": number}
        return {"_id": number, **told, **more}

    job = CollectionJob(
        tmp_path,
        None,  # type: ignore[arg-type]
        mongodb_database,
        ("[a-z]+",),
        local=True,
        sink="jsonl",
        write="changelog",
        uri=mongodb.uri,
        startup="initial",
        source='changelog = "full"',
        sections=MASKS.replace("DB", mongodb_database),
        pipeline='on_bad_record = "dead-letter"',
    )
    with mongodb.client() as client:
        people = client[mongodb_database].people
        people.insert_many([document(number) for number in range(30)])
        people.insert_one(document(30, email=["planted-secret"], count="planted-secret", late="seen"))
        killed = job.start("--until", "caught-up", failpoints="before_commit=kill@1")
        assert killed.wait() == -9, killed.story()
        nothing_shows(job, SECRETS, kinds=("manifests", "changelog"))
        catch_up(job)
        people.update_one({"_id": 1}, {"$set": {"email": {"x": "planted-secret"}, "count": 1.5, "later": "seen"}})
        people.update_one({"_id": 2}, {"$set": {"shown": "planted no more"}})
        people.delete_one({"_id": 3})
        people.insert_one(document(31))
        killed = job.start("--until", "caught-up", failpoints="after_known=kill@1")
        assert killed.wait() == -9, killed.story()
        nothing_shows(job, SECRETS, kinds=("known rows", "exact changes"))
        catch_up(job)
        people.replace_one({"_id": 5}, document(5, shown="now a text"))
        valid = {"email": {"$ne": "planted-secret"}}
        client[mongodb_database].command("collMod", "people", validator=valid, validationAction="warn")
        catch_up(job)
        nothing_shows(job, SECRETS, kinds=("commits", "generation"))
        # One that comes later, and of which a column would show it, waits beside the others, at each start.
        client[mongodb_database].later.insert_one({"_id": 1, "phone": ["planted-secret"]})
        people.insert_one(document(32))
        for _ in range(2):
            parked = job.run()
            assert parked.wait() == 4, parked.story()
            assert "later would be masked as a column only, and be readable in the column _rest" in parked.story()
    nothing_shows(job, SECRETS)
    lines = [json.loads(line) for path in job.lake.rglob("*.jsonl") for line in path.read_text().splitlines()]
    assert {line["_id"] for line in lines} == set(range(33))
    assert {line["email"] for line in lines if "email" in line} <= {"***", None}
