"""`pip install raycdc` outside a checkout: the wheel in an environment of its own, far from any file of the project."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from raycdc.sandbox.servers.private import free_port

pytestmark = [pytest.mark.server, pytest.mark.long(suite="deploy"), pytest.mark.timeout(3600)]

ROOT = Path(__file__).resolve().parents[2]
BUILD = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"
CONFIG = """
[pipeline]
name = "spark"
[source]
type = "datagen"
tables = ["shop.orders"]
rows = 500
events = 0
[sink]
type = "delta"
path = "lake"
write = "changelog"
# An expression, which Spark computes.
[[transform]]
table = "shop.orders"
projection = "*, CAST(id AS STRING) AS text"
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an environment that has the wheel, installed with its locked dependencies, and nothing else."""
    folder = tmp_path_factory.mktemp("outside")
    subprocess.run([sys.executable, "-c", BUILD, folder], cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    uv = [sys.executable, "-m", "uv", "pip", "install", "-q", "--python", str(folder / "venv" / "bin" / "python")]
    trust = ["--system-certs"] if Path("/etc/ssl/certs/ca-certificates.crt").exists() else []
    locked = folder / "locked.txt"
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    locked.write_text("\n".join(line.rstrip("\\") for line in lines if "==" in line))
    subprocess.run([*uv, *trust, "-c", str(locked), str(wheel)], check=True)
    return folder


def raycdc(home: Path, *words: str, **environment: str) -> tuple[int, str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "RAYCDC_JARS")}
    command = [str(home / "venv" / "bin" / "raycdc"), *words]
    done = subprocess.run(
        command, cwd=home, env=kept | environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    return done.returncode, done.stdout, done.stderr


def test_manual_and_examples_are_in_the_package(home: Path) -> None:
    code, pages, _ = raycdc(home, "docs")
    assert code == 0
    assert "deploy " in pages
    code, listed, _ = raycdc(home, "docs", "examples")
    assert str(home / "venv") in listed
    code, example, _ = raycdc(home, "docs", "examples/quickstart.toml")
    (home / "quickstart.toml").write_text(example)
    code, _, said = raycdc(home, "check", "quickstart.toml", MYSQL_PASSWORD="x", MYSQL_PORT=str(free_port()))
    assert code == 3, said


def test_init_writes_a_configuration_that_loads(home: Path) -> None:
    code, said, error = raycdc(home, "init", "made.toml", "--source", "datagen", "--sink", "jsonl", "--table", "a.b")
    assert code == 0, said + error
    code, said, error = raycdc(home, "check", "made.toml", "--local")
    assert code == 0, said + error


def test_the_demo_goes_through(home: Path) -> None:
    code, said, error = raycdc(home, "demo", "--local")
    assert code == 0, said + error
    assert (home / "demo-lake" / "demo.toml").exists()


def test_the_first_start_of_spark_fetches_its_jars_and_says_so_and_the_second_does_not(home: Path) -> None:
    (home / "spark.toml").write_text(CONFIG)
    cache = {"XDG_CACHE_HOME": str(home / "cache")}
    code, said, error = raycdc(home, "run", "spark.toml", "--until", "caught-up", **cache)
    assert code == 0, said + error
    lines = [line for line in error.splitlines() if line.startswith("raycdc: ")]
    assert [line.split()[1] for line in lines] == ["fetching", "11"]
    assert "with the SHA-256 that they should have" in lines[-1]
    (home / "spark.toml").write_text(CONFIG.replace('name = "spark"', 'name = "again"').replace('"lake"', '"lake2"'))
    code, said, error = raycdc(home, "run", "spark.toml", "--until", "caught-up", **cache)
    assert (code, [line for line in error.splitlines() if line.startswith("raycdc: ")]) == (0, [])
