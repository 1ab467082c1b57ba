"""A Spark whose executors are elsewhere: they get raycdc by themselves, and rows over encrypted Arrow Flight."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest
from deltalake import DeltaTable

from raycdc.sandbox.servers import MariaDbServer, MongoDb, MotoServer
from raycdc.spark.executors import ARCHIVE_NAME
from raycdc.storage.settings import delta_options
from raycdc.storage.url import ObjectLocation, StoreKind
from tests.support.jobs import CollectionJob, require_engines
from tests.support.kubernetes import kubernetes
from tests.support.spark_cluster import SparkCluster, standalone
from tests.support.yarn import yarn

pytestmark = [pytest.mark.server, pytest.mark.spark]

ROOT = Path(__file__).resolve().parents[2]
FUNCTIONS = """
from pyspark.sql.functions import udf

@udf(returnType="string")
def shorten(text):
    return text[:4] if text else text
"""
SOURCE = """
changelog = "full"
schema = "declared"

[source.columns]
"%(db)s.views" = { _id = "long", code = "string", text = "string", mail = "string" }
"%(db)s.visits" = { _id = "long", who = "long" }
"""
SECTIONS = """
[[mask]]
columns = "%(db)s.views.mail"
method = "hash"
key = "k3y-of-a-test-of-masks"

[[transform]]
table = "%(db)s.views"
projection = "*, CAST(code AS INT) AS number, shorten(text) AS short"
filter = "code <> 'TEST'"
udf = { shorten = "elsewhere_functions:shorten" }

[[lookup]]
table = "%(db)s.visits"
uri = "%(uri)s"
collection = "%(db)s_users.users"
on = { who = "_id" }
columns = { name = "string" }

[spark]
master = "%(master)s"
"""


def view(number: int) -> dict[str, Any]:
    code = "none" if number == 7 else "TEST" if number == 8 else str(number)
    text = f"text {number} " + "x" * 300
    return {"_id": number, "code": code, "text": text, "mail": f"{number}@planted"}


def job_at(
    cluster: SparkCluster, mongodb: MongoDb, server: MariaDbServer, folder: Path, database: str, *, views: int
) -> CollectionJob:
    """A pipeline of `views` documents, of which one has a code that is no number, and the filter leaves one out."""
    (folder / "elsewhere_functions.py").write_text(FUNCTIONS)
    with mongodb.client() as client:
        client[f"{database}_users"]["users"].insert_many([{"_id": who, "name": f"user {who}"} for who in range(3)])
        client[database]["views"].insert_many([view(number) for number in range(1, views + 1)])
        client[database]["visits"].insert_many([{"_id": number, "who": number % 3} for number in range(1, 10)])
    words = {"db": database, "uri": mongodb.uri, "master": cluster.master}
    job = CollectionJob(folder, server, database, ("views", "visits"), write="changelog", readers=1, uri=mongodb.uri)
    job.startup, job.source, job.sections = "initial", SOURCE % words, SECTIONS % words
    job.pipeline = 'on_bad_record = "dead-letter"'
    return job


def changed(mongodb: MongoDb, database: str) -> None:
    with mongodb.client() as client:
        views = client[database]["views"]
        views.update_one({"_id": 1}, {"$set": {"text": "another text"}})
        views.update_one({"_id": 8}, {"$set": {"code": "8"}})
        views.delete_one({"_id": 2})
        client[database]["visits"].insert_one({"_id": 10, "who": 1})


def visits(lake: str, options: dict[str, str] | None = None) -> list[tuple[str, int, str]]:
    rows = DeltaTable(f"{lake}/visits", storage_options=options).to_pyarrow_table().to_pylist()
    return sorted((row["_op"], row["_id"], row["name"]) for row in rows)


def changes(lake: str, options: dict[str, str] | None = None) -> list[tuple[str, int, int, str]]:
    """Of the views, which hide a value."""
    rows = DeltaTable(f"{lake}/views", storage_options=options).to_pyarrow_table().to_pylist()
    found = sorted(rows, key=lambda row: int(row["_seq"]))
    assert all("planted" not in str(row) for row in rows)
    return [(row["_op"], row["_id"], row["number"], row["short"]) for row in found]


def caught_up(job: CollectionJob, cluster: SparkCluster) -> None:
    run = job.start("--until", "caught-up")
    # On a busy machine Ray, a JVM, two executors and their Pythons take minutes to begin.
    assert run.wait(timeout_s=800) == 0, run.story() + cluster.executors_said()[-3000:]
    require_engines(run)


@pytest.mark.long(suite="spark-elsewhere")
@pytest.mark.timeout(1800)
def test_all_that_rows_go_through_works_on_executors_that_have_no_raycdc(
    mariadb: MariaDbServer, mongodb: MongoDb, ray: str, tmp_path: Path
) -> None:
    with mongodb.fresh_database("near") as database, standalone() as cluster:
        job = job_at(cluster, mongodb, mariadb, tmp_path, database, views=9)
        job.sections += ray
        caught_up(job, cluster)
        lake = str(job.lake / database)
        assert changes(lake) == [("+I", number, number, "text") for number in (1, 2, 3, 4, 5, 6, 9)]
        assert visits(lake) == [("+I", number, f"user {number % 3}") for number in range(1, 10)]


@contextmanager
def reached(address: str) -> Iterator[MotoServer]:
    """An object store that executors reach at `address` of this machine."""
    store = MotoServer()
    store.host = address
    with store:
        yield store


@pytest.mark.long(suite="spark-elsewhere")
@pytest.mark.timeout(1800)
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_workers_without_a_shared_disk_write_what_a_spark_here_would(
    mariadb: MariaDbServer, mongodb: MongoDb, tmp_path: Path
) -> None:
    hidden = [ROOT / "raycdc", tmp_path]
    with (
        mongodb.fresh_database("far") as database,
        standalone(workers=2, hidden=hidden) as cluster,
        reached(cluster.address) as store,
    ):
        store.create_bucket("far")
        job = job_at(cluster, mongodb, mariadb, tmp_path, database, views=16_000)
        job.sink_keys = 'path = "s3://far/lake"'
        job.sections += store.section
        caught_up(job, cluster)
        changed(mongodb, database)
        caught_up(job, cluster)
        options = delta_options(ObjectLocation(StoreKind.S3, "far"), store.settings)
        lake = f"s3://far/lake/{database}"
        told = changes(lake, options)
        first = [number for number in range(1, 16_001) if number not in (7, 8)]
        assert sorted(told[: len(first)]) == [("+I", number, number, "text") for number in first]
        changed_to = [("-U", 1, 1, "text"), ("+U", 1, 1, "anot"), ("+I", 8, 8, "text"), ("-D", 2, 2, "text")]
        assert told[len(first) :] == changed_to
        assert visits(lake, options) == [("+I", number, f"user {number % 3}") for number in range(1, 11)]
        assert list((job.state / "dead_letters").rglob("*"))


ON_KUBERNETES = """
pipeline = {{ name = "pods", state = "state" }}
source = {{ type = "datagen", tables = ["shop.orders"], rows = 500 }}
sink = {{ type = "delta", path = "{folder}/lake", write = "changelog" }}

[[transform]]
table = "shop.orders"
projection = "*, CAST(id AS STRING) AS text"

[spark]
master = "k8s://{url}"

[spark.conf]
"spark.driver.host" = "127.0.0.1"
"spark.executor.instances" = "1"
"spark.executor.cores" = "1"
"spark.executor.memory" = "512m"
"spark.kubernetes.container.image" = "example.com/spark:4.1"
"spark.kubernetes.namespace" = "streams"
"spark.kubernetes.executor.label.team" = "data"
"spark.kubernetes.executor.enableApiWatcher" = "false"
"spark.kubernetes.executor.apiPollingInterval" = "1s"
"""


@pytest.mark.long(suite="spark-elsewhere")
@pytest.mark.timeout(1800)
def test_pods_of_kubernetes_are_as_the_configuration_says_and_get_raycdc_by_themselves(
    ray: str, tmp_path: Path
) -> None:
    with kubernetes() as (url, pods):
        (tmp_path / "pods.toml").write_text(ON_KUBERNETES.format(folder=tmp_path, url=url) + ray)
        command = [sys.executable, "-m", "raycdc.cli", "run", "pods.toml", "--until", "caught-up"]
        run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=800, check=False)
        assert run.returncode == 0, run.stdout + run.stderr + pods.said()[-3000:]
        (pod,) = pods.asked
    assert (pod.namespace, pod.labels["team"], pod.image) == ("streams", "data", "example.com/spark:4.1")
    rows = DeltaTable(str(tmp_path / "lake" / "shop" / "orders")).to_pyarrow_table().to_pylist()
    assert len(rows) >= 500
    assert all(row["text"] == str(row["id"]) for row in rows)


#: It tells where the task that computes a row has its raycdc from.
WHERE = """
from pyspark.sql.functions import udf

@udf(returnType="string")
def where(number):
    import raycdc
    return raycdc.__file__
"""
ON_YARN = """
pipeline = {{ name = "containers", state = "state" }}
source = {{ type = "datagen", tables = ["shop.orders"], rows = 500, events = 0 }}
sink = {{ type = "delta", path = "{folder}/lake", write = "changelog" }}

[[transform]]
table = "shop.orders"
projection = "*, `where`(id) AS place"
udf = {{ where = "elsewhere_places:where" }}

[spark]
master = "yarn"

[spark.conf]
"spark.driver.host" = "127.0.0.1"
"spark.executor.instances" = "1"
"spark.executor.cores" = "1"
"spark.executor.memory" = "512m"
"spark.yarn.am.memory" = "512m"
"spark.yarn.stagingDir" = "file://{folder}/staging"
"spark.yarn.jars" = "local:{jars}/*"
"""


@pytest.mark.long(suite="spark-elsewhere")
@pytest.mark.timeout(1800)
def test_containers_of_yarn_get_raycdc_by_themselves(ray: str, tmp_path: Path) -> None:
    jars = Path(pyspark.__file__).with_name("jars")
    (tmp_path / "elsewhere_places.py").write_text(WHERE)
    (tmp_path / "containers.toml").write_text(ON_YARN.format(folder=tmp_path, jars=jars) + ray)
    with yarn() as cluster:
        command = [sys.executable, "-m", "raycdc.cli", "run", "containers.toml", "--until", "caught-up"]
        surroundings = {**os.environ, "HADOOP_CONF_DIR": str(cluster.configuration)}
        run = subprocess.run(
            command, cwd=tmp_path, env=surroundings, capture_output=True, text=True, timeout=800, check=False
        )
        assert run.returncode == 0, run.stdout + run.stderr + cluster.said()
        rows = DeltaTable(str(tmp_path / "lake" / "shop" / "orders")).to_pyarrow_table().to_pylist()
        assert len(rows) == 500
        # The archive, as YARN has unpacked it for the container.
        assert {Path(row["place"]).parts[-3] for row in rows} == {ARCHIVE_NAME}
        assert all(Path(row["place"]).is_relative_to(cluster.folder / "local") for row in rows)
