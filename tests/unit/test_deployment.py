"""The files of examples/deploy are what they say: valid, without privileges or secrets, and of this version."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import version
from pathlib import Path
from threading import Thread
from typing import Any

import kubernetes_validate
import pytest
import yaml

from raycdc import __version__
from raycdc.config import config_from_dict
from raycdc.errors import ExitCode
from raycdc.spark.session import DELTA_PACKAGE

DEPLOY = Path(__file__).resolve().parents[2] / "examples" / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
#: The oldest and the newest that the manifests are for.
KUBERNETES = ("1.29", "1.37")
SCHEDULERS = sorted((DEPLOY / "schedulers").glob("*.py"))


def documents(path: Path) -> list[Any]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def templates(document: Any) -> Iterator[Any]:
    """The templates of pods in a document, wherever they are."""
    match document:
        case {"template": {"spec": {"containers": _}} as found}:
            yield found
        case dict():
            for value in document.values():
                yield from templates(value)
        case list():
            for value in document:
                yield from templates(value)


ALL = [(path.name, document) for path in MANIFESTS for document in documents(path)]
PODS = [pod for _, document in ALL for pod in templates(document)]


def settings(document: Any) -> dict[str, str]:
    return dict(document["data"]) if document["kind"] == "ConfigMap" else {}


@pytest.mark.parametrize("of", KUBERNETES)
def test_each_object_is_as_kubernetes_wants_it(of: str) -> None:
    judged = [document for _, document in ALL if document["kind"] != "RayCluster"]
    # Nobody has the schema of KubeRay's own objects; their pods are pods.
    judged += [{"apiVersion": "v1", "kind": "Pod", **pod} for pod in PODS]
    judged += [yaml.safe_load(text) for _, each in ALL for name, text in settings(each).items() if "yaml" in name]
    assert len(judged) > 15
    for document in judged:
        kubernetes_validate.validate(document, of, strict=True)


@pytest.mark.parametrize("pod", PODS, ids=lambda pod: pod["metadata"]["labels"].get("raycdc/part", "alone"))
def test_a_pod_has_no_privileges_and_says_what_it_needs(pod: Any) -> None:
    security = pod["spec"]["securityContext"]
    assert (security["runAsNonRoot"], security["seccompProfile"]) == (True, {"type": "RuntimeDefault"})
    volumes = {each["name"] for each in pod["spec"]["volumes"]} | {"state"}
    for container in pod["spec"]["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert set(container["resources"]["requests"]) >= {"cpu", "memory"}
        assert "memory" in container["resources"]["limits"]
        assert container["image"] == f"registry.example/raycdc:{__version__}"
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        assert "livenessProbe" in container


def test_only_who_asks_kubernetes_may_and_only_who_reads_has_the_password() -> None:
    """Accounts, tokens and secrets of the cluster's pods; executors and the autoscaler are without privileges, too."""
    (cluster,) = [document for _, document in ALL if document["kind"] == "RayCluster"]
    (template,) = [
        yaml.safe_load(settings(each)["executor.yaml"]) for _, each in ALL if "executor.yaml" in settings(each)
    ]
    of = {pod["metadata"]["labels"]["raycdc/part"]: pod["spec"] for pod in templates(cluster)}
    of["executor"] = template["spec"]
    accounts = {part: (spec["serviceAccountName"], spec["automountServiceAccountToken"]) for part, spec in of.items()}
    assert accounts == {
        "head": ("raycdc-head", True),
        "readers": ("raycdc", False),
        "driver": ("raycdc-driver", False),
        "executor": ("raycdc", False),
    }
    made = {each["metadata"]["name"] for _, each in ALL if each["kind"] == "ServiceAccount"}
    assert made == {name for name, _ in accounts.values()}
    (bound,) = [each["subjects"] for _, each in ALL if each["kind"] == "RoleBinding"]
    assert [each["name"] for each in bound] == ["raycdc-driver"]
    mounted = {
        (part, container["name"], mount["name"])
        for part, spec in of.items()
        for container in spec["containers"]
        for mount in container["volumeMounts"]
        if mount["name"] in {"secrets", "account"}
    }
    assert mounted == {
        ("readers", "ray", "secrets"),
        ("driver", "ray", "secrets"),
        ("driver", "raycdc", "secrets"),
        ("driver", "raycdc", "account"),
    }
    assert {part for part, spec in of.items() for each in spec["volumes"] if each["name"] == "secrets"} == {
        "readers",
        "driver",
    }
    nothing = of["head"]["containers"][0]["securityContext"]
    autoscaler = cluster["spec"]["autoscalerOptions"]
    assert autoscaler["securityContext"] == template["spec"]["containers"][0]["securityContext"] == nothing
    for volumes, mounts in [
        (of["head"]["volumes"], autoscaler["volumeMounts"]),
        (template["spec"]["volumes"], template["spec"]["containers"][0]["volumeMounts"]),
    ]:
        assert {mount["name"] for mount in mounts} <= {volume["name"] for volume in volumes}


def test_a_run_is_asked_at_the_doors_that_it_has() -> None:
    runs = [each for pod in PODS for each in pod["spec"]["containers"] if "run /etc" in " ".join(each.get("args", []))]
    assert len(runs) == len(MANIFESTS)
    for container in runs:
        assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "metrics"}
        assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}
        assert container["ports"] == [{"name": "metrics", "containerPort": 9464}]


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.name)
def test_the_configuration_in_a_manifest_loads_and_has_no_secret(manifest: Path, tmp_path: Path) -> None:
    (text,) = [text for each in documents(manifest) for name, text in settings(each).items() if name == "shop.toml"]
    assert tomllib.loads(text)["metrics"]["address"] == "0.0.0.0:9464"
    (tmp_path / "mysql-password").write_text("planted")
    read = tomllib.loads(text.replace("/run/secrets/raycdc", str(tmp_path)))
    config = config_from_dict(read, environment={"POD_IP": "10.1.2.3", "POD_NAME": "shop-drivers-1"})
    assert config.warnings == ()
    assert "kind: Secret" not in manifest.read_text()


def test_the_versions_are_those_of_the_package() -> None:
    dockerfile = (DEPLOY / "container" / "Dockerfile").read_text()
    assert f" {DELTA_PACKAGE} " in dockerfile
    clusters = [document for _, document in ALL if document["kind"] == "RayCluster"]
    assert {each["spec"]["rayVersion"] for each in clusters} == {version("ray")}


def test_the_image_keeps_what_the_package_needs_and_nothing_of_its_development() -> None:
    script = f"import sys; sys.path.insert(0, {str(DEPLOY / 'container')!r}); import only_needed; "
    script += "print(*sorted(only_needed.needed('raycdc', frozenset({'iceberg', 'kafka', 'mongodb', 'postgresql'}))))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    kept = set(done.stdout.split())
    wanted = {"raycdc", "ray", "pyspark", "delta-spark", "pyiceberg", "pyiceberg-core", "sqlalchemy", "confluent-kafka"}
    assert wanted <= kept
    assert kept & {"mypy", "pytest", "ruff", "moto", "plotly", "uv", "hatchling", "kubernetes-validate"} == set()


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1), (None, 1)])
def test_the_health_check_says_what_the_run_says(status: int | None, code: int) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if status and self.path == "/healthz" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        port = server.server_port
        if status is not None:
            Thread(target=server.handle_request, daemon=True).start()
        else:
            server.server_close()
        command = [sys.executable, str(DEPLOY / "container" / "healthy.py")]
        asked = subprocess.run(
            command, env={"RAYCDC_HEALTH": f"127.0.0.1:{port}"}, capture_output=True, text=True, check=False
        )
    assert asked.returncode == code
    assert ("does not answer" in asked.stderr) == (status is None)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not here")
def test_systemd_takes_its_units(tmp_path: Path) -> None:
    for unit in (DEPLOY / "systemd").iterdir():
        text = unit.read_text().replace("/opt/raycdc/bin/raycdc", "/bin/true")
        (tmp_path / unit.name.replace("@", "@shop")).write_text(text)
    units = [str(path) for path in sorted(tmp_path.iterdir())]
    assert len(units) == 3
    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
    assert [line for line in done.stderr.splitlines() if "@shop" in line] == []


@pytest.mark.parametrize("path", SCHEDULERS, ids=lambda path: path.name)
@pytest.mark.parametrize("code", list(ExitCode), ids=lambda code: code.name)
def test_a_scheduler_tries_again_what_may_pass_and_nothing_else(path: Path, code: ExitCode) -> None:
    """Its part that reacts to exit codes, without the scheduler, whose packages are not ours."""
    tree = ast.parse(path.read_text())
    kept: list[ast.stmt] = [
        node
        for node in tree.body
        if (isinstance(node, ast.FunctionDef) and node.name == "react")
        or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "RETRIED")
    ]
    assert len(kept) == 2

    class AgainError(Exception):
        again = True

        def __init__(self, text: str, *, allow_retries: bool = True) -> None:
            super().__init__(text)
            self.again = self.again and allow_retries

    class FailError(AgainError):
        again = False

    names: dict[str, Any] = {"AirflowException": AgainError, "AirflowFailException": FailError, "Failure": AgainError}
    exec(compile(ast.Module(kept, []), str(path), "exec"), names)
    if code is ExitCode.DONE:
        names["react"](int(code), "")
        return
    with pytest.raises(AgainError, match=rf"exit code {int(code)}: it said why") as raised:
        names["react"](int(code), "it said why")
    assert raised.value.again == (code in (ExitCode.SOURCE, ExitCode.SINK, ExitCode.CLUSTER))


def test_the_versions_of_python_are_those_that_are_promised() -> None:
    project = tomllib.loads((DEPLOY.parents[1] / "pyproject.toml").read_text())["project"]
    promised = re.findall(r"Python :: (3\.\d+)", json.dumps(project["classifiers"]))
    assert (project["requires-python"], promised) == (">=3.11", ["3.11", "3.12", "3.13"])
