"""The sections ``[readers]``, ``[ray]`` and ``[spark]``: the processes that read and write, and the machines on
which they run.
"""

from __future__ import annotations

import re
from typing import Any, Literal, Self

from pydantic import field_validator, model_validator

from raycdc.config.fields import Folder, Options, Size, flattened_texts, option

#: Spark's own forms of a master (org.apache.spark.SparkContext, `SparkMasterRegex`).
_MASTER = re.compile(
    r"local(\[(\*|[1-9]\d*)(\s*,\s*[1-9]\d*)?\])?|local-cluster\[.+\]|spark://[^\s,]+:\d+(,[^\s,]+:\d+)*|yarn|k8s://\S+"
)


class ReaderOptions(Options):
    """The number of reader processes for the snapshot, and the resources that each needs."""

    min: int = option(1, help="Readers that are always running.", ge=1, le=1024)
    max: int | None = option(
        None,
        help="Readers while there are chunks to read, and the maximum number for a backlog. Default: the number of "
        "cores, in a Ray cluster those of its nodes. An autoscaler sees a demand for readers that the cluster "
        "has no room for.",
        example=4,
        ge=1,
        le=1024,
    )
    cpus: float = option(
        1.0,
        help="CPUs that Ray reserves on a node for each reader, in a cluster that was joined. 0: none, so that Ray "
        "places readers anywhere and an autoscaler sees no demand.",
        ge=0,
    )
    resources: dict[str, float] = option(
        {}, help="Other Ray resources that each reader takes from its node.", example={"reader": 1}
    )
    labels: dict[str, str] = option(
        {},
        help="Labels that a Ray node must have to get readers (`ray start --labels`).",
        example={"pool": "cdc"},
    )
    fetchers: int = option(
        1,
        help="Chunks that one reader reads at the same time, each over its own connection. A source that limits "
        "its own connections (snapshot.connections, snapshot.rows_per_second) has one per reader. Kafka's "
        "partitions always share one consumer per reader. See raycdc docs snapshots.",
        example=2,
        ge=1,
        le=64,
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max is not None and self.min > self.max:
            raise ValueError(f"min = {self.min} is more than max = {self.max}")
        return self


class RayOptions(Options):
    """The Ray that the source side runs on."""

    address: str = option("local", help='"local" (a private Ray), "auto" (the Ray of this machine) or "HOST:PORT".')
    spool: Folder = option(
        "", help="Folder for segments on nodes other than this one. Empty: a folder of the user in /var/tmp."
    )
    flight: Literal["auto", "loopback", "network"] = option(
        "auto",
        help="Where nodes serve segments. loopback: to this machine only. network: on the node's address in the "
        "cluster, so that readers and Spark's executors can run on other machines; calls carry a token and "
        "are encrypted, with certificates made for the run. auto: network if a Ray cluster is joined or Spark "
        "runs elsewhere.",
    )

    @field_validator("address")
    @classmethod
    def _check_address(cls, address: str) -> str:
        # A Ray Client server is refused where Ray is needed, with the reason (`raycdc.driver.startup_checks`).
        if address not in ("local", "auto") and (":" not in address or address.startswith(("http://", "https://"))):
            raise ValueError(f'must be "local", "auto" or "HOST:PORT", got "{address}"')
        return address


class SparkOptions(Options):
    """The Spark that the data side runs on.

    Values of `conf` are never shown, because they often hold credentials.
    """

    master: str = option("local[*]", help="Spark master URL.")
    from_bytes: Size | None = option(
        None,
        help="Spark writes epochs from this size on (Arrow, without compression); the driver's process writes "
        "smaller ones, because a Spark job costs about as much time as writing 4 MiB. Rows that an expression "
        'of a transform computes always go through Spark. Default: 4MiB; 0 with pipeline.engines = "always".',
        example="4MiB",
    )
    conf: dict[str, str] = option({}, help="Further Spark settings.", example={"spark.driver.memory": "4g"}, repr=False)

    @property
    def is_here(self) -> bool:
        """Return True if Spark's tasks run on the machine that has the state, that is, on this node."""
        return self.master.startswith("local")

    @field_validator("master")
    @classmethod
    def _check_master(cls, master: str) -> str:
        if master.startswith("sc://"):
            raise ValueError(
                f'"{master}" is a Spark Connect server, which gives its clients no tasks to run and no JVM to commit '
                "with. Name the master itself, such as spark://HOST:7077, or local[*] for a Spark of this process"
            )
        if not _MASTER.fullmatch(master):
            raise ValueError(f'must be local[*], local[N], spark://HOST:PORT, yarn or k8s://…, got "{master}"')
        return master

    @field_validator("conf", mode="before")
    @classmethod
    def _texts(cls, conf: Any) -> Any:
        return flattened_texts(conf) if isinstance(conf, dict) else conf

    @field_validator("conf")
    @classmethod
    def _no_other_master(cls, conf: dict[str, str]) -> dict[str, str]:
        for key in ("spark.master", "spark.remote"):
            if key in conf:
                raise ValueError(f"{key} is not set here; write it as spark.master, beside conf")
        return conf
