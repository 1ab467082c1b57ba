"""The part of Kubernetes that Spark's driver needs: an API server whose pods are processes of this machine.

It keeps pods and config maps as they are posted, and starts each executor's pod as Spark's image would: Java with the
pod's environment, in an empty folder, and with nothing of ours on its path. No container separates it from this
machine, so a test with it shows that settings arrive and executors run, and nothing of networks.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from raycdc.core.typed_codec import Json
from raycdc.spark.artifacts import java_command

_PODS = re.compile(r"/api/v1/namespaces/([^/]+)/pods(?:/([^/]+))?$")
_MAPS = re.compile(r"/api/v1/namespaces/([^/]+)/(configmaps|persistentvolumeclaims|services)(?:/([^/]+))?$")
_MAIN = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod; `document` is its complete description as it was posted."""

    namespace: str
    name: str
    labels: Mapping[str, str]
    image: str
    environment: Mapping[str, str]
    document: Mapping[str, Json]

    @classmethod
    def of(cls, namespace: str, posted: Any) -> Pod:
        metadata, (container,) = posted["metadata"], posted["spec"]["containers"]
        # The address of the pod has no value: it is that of this machine.
        environment = {each["name"]: each.get("value", "127.0.0.1") for each in container["env"]}
        return cls(namespace, metadata["name"], metadata["labels"], container["image"], environment, posted)

    def shown(self, phase: str) -> Mapping[str, Json]:
        """Return the pod as the API server shows it."""
        known: Any = self.document["metadata"]
        metadata = {**known, "uid": self.name, "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}
        status = {"phase": phase, "podIP": "127.0.0.1", "containerStatuses": []}
        return {**self.document, "metadata": metadata, "status": status}

    def command(self, home: Path) -> list[str]:
        """Return the command that the image of the Spark in `home` runs for an executor."""
        given = self.environment
        options = [given[key] for key in sorted(given) if key.startswith("SPARK_JAVA_OPT_")]
        arguments = {
            "--driver-url": given["SPARK_DRIVER_URL"],
            "--executor-id": given["SPARK_EXECUTOR_ID"],
            "--cores": given["SPARK_EXECUTOR_CORES"],
            "--app-id": given["SPARK_APPLICATION_ID"],
            "--hostname": "127.0.0.1",
            "--resourceProfileId": given["SPARK_RESOURCE_PROFILE_ID"],
            "--podName": self.name,
        }
        java = [java_command(), *options, "-Xmx512m", "-cp", f"{home / 'jars'}/*", _MAIN]
        return [*java, *(word for pair in arguments.items() for word in pair)]


class Pods:
    """The requested pods, each with its process. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._there: dict[str, tuple[Pod, subprocess.Popen[bytes]]] = {}
        #: All pods that were ever requested.
        self.asked: list[Pod] = []

    def create(self, pod: Pod) -> Mapping[str, Json]:
        """Start the pod's executor."""
        with self._lock:
            self.asked.append(pod)
            self._there[pod.name] = pod, self._started(pod)
        return pod.shown("Pending")

    def list(self) -> list[Mapping[str, Json]]:
        """Return all pods that were not deleted, as the API server shows them."""
        with self._lock:
            return [pod.shown(_phase(process)) for pod, process in self._there.values()]

    def delete(self, name: str | None) -> None:
        """End the pod; all pods if no name is given."""
        with self._lock:
            for each in [name] if name else list(self._there):
                if (found := self._there.pop(each, None)) is not None:
                    found[1].kill()
                    found[1].wait()

    def said(self) -> str:
        """Return the logs of the executors."""
        return "\n".join(path.read_text(errors="replace") for path in sorted(self._folder.glob("*.log")))

    def _started(self, pod: Pod) -> subprocess.Popen[bytes]:
        import pyspark

        home, work = Path(pyspark.__file__).parent, self._folder / pod.name
        work.mkdir()
        path = os.pathsep.join([str(Path(sys.base_prefix) / "bin"), os.environ["PATH"]])
        environment = {"PATH": path, "SPARK_HOME": str(home), "HOME": str(work), **pod.environment}
        with (self._folder / f"{pod.name}.log").open("wb") as log:
            return subprocess.Popen(
                pod.command(home),
                cwd=work,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )


def _phase(process: subprocess.Popen[bytes]) -> str:
    ended = process.poll()
    return "Running" if ended is None else "Failed" if ended else "Succeeded"


@contextmanager
def kubernetes() -> Iterator[tuple[str, Pods]]:
    """Run the API server while the block runs; yield its URL and its pods."""
    with tempfile.TemporaryDirectory(prefix="raycdc-pods-") as folder:
        pods = Pods(Path(folder))

        class Api(_Api):
            there = pods

        server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", pods
        finally:
            server.shutdown()
            server.server_close()
            pods.delete(None)


class _Api(BaseHTTPRequestHandler):
    there: Pods
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer requests for lists of pods; there are no others."""
        found = _PODS.match(urlsplit(self.path).path)
        if found is not None and found[2] is None:
            self._answer({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": self.there.list()})
        elif _MAPS.match(urlsplit(self.path).path):
            self._answer({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": []})
        else:
            self._refuse()

    def do_POST(self) -> None:
        posted = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        path = urlsplit(self.path).path
        if found := _PODS.match(path):
            self._answer(self.there.create(Pod.of(found[1], posted)), code=201)
        elif _MAPS.match(path):
            self._answer(posted, code=201)
        else:
            self._refuse()

    def do_DELETE(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if found := _PODS.match(urlsplit(self.path).path):
            self.there.delete(found[2])
        self._answer({"kind": "Status", "apiVersion": "v1", "status": "Success"})

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
        """Print nothing."""

    def _refuse(self) -> None:
        self._answer({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404}, code=404)

    def _answer(self, document: Mapping[str, Json], *, code: int = 200) -> None:
        data = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
