"""The commands that README and manual show, and what becomes of each in a test.

A line of a ``bash`` block stands here once: it is `PLAYED` in the order in which the pages show it
(`tests/integration/test_manual_commands.py`), or it has the reason why it is not. A new line fails until it is in one
of the two.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MANUAL = ROOT / "raycdc" / "manual"


@dataclass(frozen=True, slots=True)
class Shown:
    """A command of a page, without the remark behind it."""

    page: str
    command: str


def shown_commands(language: str = "bash") -> list[Shown]:
    """Every command of README, then of the manual's pages by name, in the order in which they stand there."""
    pages = [ROOT / "README.md", *sorted(MANUAL.glob("*.md"))]
    pages = [page for page in pages if page.stem not in PAGES_ELSEWHERE]
    return [
        Shown(page.stem, line)
        for page in pages
        for block in re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
        for line in (re.sub(r"\s+# .*$", "", text).strip() for text in block.replace("\\\n", " ").splitlines())
        if line
    ]


#: Pages whose commands want what no test has here (Docker, systemd, two machines), and who tries what of them can be.
PAGES_ELSEWHERE = {"deploy": "tests/unit/test_deployment.py looks at the files; the page itself says what was tried"}

#: Commands that end by themselves, with the exit code that the story of `test_manual_commands` gives them.
PLAYED: dict[str, int] = {
    "raycdc check shop.toml": 0,
    "raycdc plan shop.toml": 0,
    "raycdc run shop.toml --until caught-up": 0,
    "raycdc run shop.toml --until caught-up --json": 0,
    "raycdc status shop.toml": 0,
    "raycdc status shop.toml --json": 0,
    "raycdc verify shop.toml": 0,
    "raycdc verify shop.toml shop.orders --show-keys": 0,
    "raycdc verify shop.toml --json": 0,
    "raycdc verify shop.toml --sample 5% --repair": 0,
    "raycdc tables list shop.toml": 0,
    "raycdc plan shop.toml --out plan.json": 0,
    "raycdc state backup shop.toml backup/before-upgrade": 0,
    "raycdc --version": 0,
    "raycdc state check shop.toml": 0,
    "raycdc state check shop.toml --json": 0,
    "raycdc state backup shop.toml backup/shop-1126": 0,
    "cp -a backup/shop-1126 state/shop": 0,
    "raycdc state move shop.toml other/shop": 0,
    # A script has no terminal: it is not asked.
    "raycdc tables resnapshot shop.toml shop.orders": 0,
    'raycdc tables resnapshot shop.toml shop.orders --where "id BETWEEN 1 AND 1000"': 0,
    "raycdc backfill shop.toml shop.orders --where \"created < '2024-01-01' AND status = 'open'\"": 0,
}

#: Commands that go on until they are stopped: the story stops them when they have written everything.
ENDLESS = (
    "raycdc run shop.toml",
    "raycdc run shop.toml --local",
    "raycdc run shop.toml --engines always",
    "raycdc run shop.toml --plan plan.json",
)

#: Commands that the story leaves out, and who plays them.
ELSEWHERE: dict[str, str] = {
    "pip install '.[iceberg,kafka,mongodb,postgresql]'": "tests/e2e/test_installed.py installs the wheel",
    "raycdc demo": "tests/e2e/test_demo.py plays the demo of every pair (make test-long SUITE=demos)",
    "export MYSQL_PASSWORD=secret": "the story sets it for its commands",
    "raycdc run shop.toml --standby": "tests/e2e/test_standby.py plays two drivers of one state",
    'raycdc backfill mongo.toml shop.orders --where \'{"status": "open"}\'': "tests/e2e/test_backfill.py",
    "export KAFKA=127.0.0.1:9092 TOPIC=maxwell LAKE=./lake": "tests/e2e/test_worked_example.py sets its own",
    "raycdc run examples/maxwell_to_lake.toml --until caught-up": "tests/e2e/test_worked_example.py",
    "python examples/maxwell_weights.py ./lake ./weights": "tests/e2e/test_worked_example.py",
}
