"""The steps of the Dockerfile in Debians of their own, and what is then in the image, without Docker."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from raycdc import __version__
from tests.e2e.dockerfile import Stage, play

pytestmark = [
    pytest.mark.server,
    pytest.mark.long(suite="deploy"),
    pytest.mark.timeout(7200),
    pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root"),
    pytest.mark.skipif(not shutil.which("mmdebstrap"), reason="mmdebstrap is not here: apt-get install mmdebstrap"),
]

ROOT = Path(__file__).resolve().parents[2]
#: What the manual's `docker run` makes writable: folders of memory as it says, and a volume.
MANUAL = (ROOT / "raycdc" / "manual" / "deploy.md").read_text()
WRITABLE = (*re.findall(r"--tmpfs (\S+)", MANUAL), "/var/lib/raycdc:exec")
RAYCDC = "tini -s -- raycdc"
CONFIG = """
[pipeline]
name = "shop"
state = "/var/lib/raycdc/state"
[source]
type = "datagen"
tables = ["shop.orders"]
rows = 500
events = 20
per_second = 0
[sink]
type = "delta"
path = "/var/lib/raycdc/lake"
write = "changelog"
"""
#: An expression, which Spark computes.
EXPRESSION = """
[[transform]]
table = "shop.orders"
projection = "*, CAST(id AS STRING) AS text"
"""
ROWS = """
from deltalake import DeltaTable
rows = DeltaTable("lake/shop/orders").to_pyarrow_table().to_pylist()
print(len(rows), all(row.get("text", str(row["id"])) == str(row["id"]) for row in rows), "text" in rows[0])
"""
READ_ONLY = "import os; print(os.statvfs('/opt').f_flag & os.ST_RDONLY)"


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Stage]:
    folder = tmp_path_factory.mktemp("image")
    base = folder / "debian"
    subprocess.run(["mmdebstrap", "--variant=minbase", "bookworm", str(base)], check=True, capture_output=True)
    return play(ROOT / "examples" / "deploy" / "container" / "Dockerfile", ROOT, base, folder)


def in_one(image: Stage, config: str, *commands: str) -> list[str]:
    """Run commands of a shell in one container, whose folders are empty at first; the lines that they wrote."""
    (image.root / "etc" / "raycdc").mkdir(exist_ok=True)
    (image.root / "etc" / "raycdc" / "shop.toml").write_text(config)
    (image.root / "etc" / "raycdc" / "rows.py").write_text(ROWS)
    return image.run(["sh", "-euc", "\n".join(commands)], writable=WRITABLE).splitlines()


def test_the_image_runs_a_pipeline_as_a_user_who_can_write_nothing_else(stages: dict[str, Stage]) -> None:
    image = stages[""]
    assert (image.user, image.workdir, " ".join(image.entrypoint)) == ("10001:10001", "/var/lib/raycdc", RAYCDC)
    said = in_one(
        image,
        CONFIG,
        f"{RAYCDC} --version",
        f"{RAYCDC} check /etc/raycdc/shop.toml",
        f"{RAYCDC} run /etc/raycdc/shop.toml --local --until caught-up",
        "python /etc/raycdc/rows.py",
        "id -u",
        f'python -c "{READ_ONLY}"',
    )
    assert __version__ in said[0]
    rows, *rest = said[-3].split()
    assert (int(rows) >= 500, rest, said[-2:]) == (True, ["True", "False"], ["10001", "1"])


def test_ray_and_spark_start_in_the_image_with_what_is_in_it(stages: dict[str, Stage]) -> None:
    run = f"{RAYCDC} run /etc/raycdc/shop.toml --until caught-up --engines always"
    said = in_one(stages[""], CONFIG + EXPRESSION, run, "python /etc/raycdc/rows.py")
    rows, *rest = said[-1].split()
    assert (int(rows) >= 500, rest) == (True, ["True", "True"])
    (end,) = [line.partition("; ")[2] for line in said if "caught up after" in line]
    assert re.fullmatch(r"rows read: [\d,]+ by Ray's readers; rows written: [\d,]+ by Spark", end)
    assert not [line for line in said if "fetching" in line]


def test_the_executors_image_has_what_spark_asks_for(stages: dict[str, Stage]) -> None:
    image = stages["executor"]
    assert image.entrypoint == ("tini", "-s", "--", "/opt/executor.sh")
    given = {"SPARK_JAVA_OPT_0": "-Dplanted=yes", "SPARK_EXECUTOR_MEMORY": "64m", "SPARK_DRIVER_URL": "planted-url"}
    numbers = ("EXECUTOR_ID", "EXECUTOR_CORES", "APPLICATION_ID", "RESOURCE_PROFILE_ID")
    given |= {f"SPARK_{name}": "1" for name in numbers}
    given |= {"SPARK_EXECUTOR_POD_IP": "127.0.0.1", "SPARK_EXECUTOR_POD_NAME": "planted-pod"}
    exported = " ".join(f"{name}={value}" for name, value in given.items())
    # No driver answers at that address, and Spark's own class says so: it is there, and took its arguments.
    said = image.run(["sh", "-c", f"{exported} /opt/executor.sh executor 2>&1 || true"], writable=WRITABLE)
    assert "planted-url" in said
