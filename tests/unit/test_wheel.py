"""What `pip install raycdc` brings: the package with its manual and examples, and nothing of the tests."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from raycdc import __version__

ROOT = Path(__file__).resolve().parents[2]
BUILD = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    folder = tmp_path_factory.mktemp("wheel")
    done = subprocess.run([sys.executable, "-c", BUILD, folder], cwd=ROOT, capture_output=True, text=True, check=True)
    with zipfile.ZipFile(folder / done.stdout.strip()) as wheel:
        return set(wheel.namelist())


def test_the_wheel_has_all_that_the_package_has_in_a_checkout(inside: set[str]) -> None:
    folders = ROOT / "raycdc", ROOT / "examples"
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    wanted = {path for path in files if "__pycache__" not in path.parts}
    names = {path.relative_to(ROOT).as_posix() for path in wanted}
    assert {name if name.startswith("raycdc/") else f"raycdc/{name}" for name in names} <= inside
    assert {"raycdc/manual/start.md", "raycdc/examples/quickstart.toml", "raycdc/spark/artifacts.lock"} <= inside


def test_the_wheel_has_nothing_else(inside: set[str]) -> None:
    assert {name.partition("/")[0] for name in inside} == {"raycdc", f"raycdc-{__version__}.dist-info"}


#: Runs a program as where no extra is installed.
PLAIN = """
import sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1].split():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Nothing())
import raycdc.cli.demo, raycdc.cli.sandbox
from raycdc.sandbox.trials import KINDS, SOURCES
from raycdc.sandbox.trials.targets import SandboxFolder
print(SandboxFolder is not None, len(KINDS) > len(SOURCES) > 3)
"""
EXTRAS = "adbc_driver_manager adbc_driver_postgresql pymongo bson pymongoarrow confluent_kafka pyiceberg sqlalchemy"


def test_the_demo_and_trial_servers_need_no_extra_of_another_kind(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PLAIN, f"{EXTRAS} moto flask psutil pytest hypothesis plotly"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("True True\n", "")
