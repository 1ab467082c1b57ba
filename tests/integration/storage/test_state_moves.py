"""A state that is copied and moved between folders and an object store, with rows that wait and a kill."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from raycdc.errors import ExitCode
from raycdc.sandbox.servers import MotoServer
from tests.support.servers.store_proxy import StoreProxy
from tests.unit.driver.state_admin.small_pipeline import MORE, MOST, command, configured, require_exact, run, told

pytestmark = pytest.mark.server


@pytest.fixture
def store(moto: MotoServer) -> Iterator[StoreProxy]:
    with StoreProxy(moto) as started:
        yield started


@pytest.mark.parametrize(
    "failpoint", ["after_copied=kill", pytest.param("before_root=kill@3", marks=pytest.mark.long(suite="stores"))]
)
def test_a_pipeline_goes_to_a_store_and_back_with_the_rows_that_wait(
    store: StoreProxy, tmp_path: Path, failpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket = store.create_bucket(f"moves-{failpoint[:5]}")
    url, section = f"s3://{bucket}/state", store.section
    config = configured(tmp_path, sections=section)
    words = ("run", str(config), "--local", "--until", "caught-up")
    assert command(config, *words, failpoints="after_manifest=kill@2")[0] == -signal.SIGKILL
    moves = ("state", "move", str(config), url)
    code, said = command(config, *moves)
    assert (code, "set pipeline.work_dir" in said) == (ExitCode.STATE, True), said
    # There, killed on the way.
    work = tmp_path / "work"
    config.write_text(config.read_text().replace("[pipeline]", f'[pipeline]\nwork_dir = "{work}"'))
    assert command(config, *moves, failpoints=failpoint)[0] == -signal.SIGKILL
    code, said = command(config, *moves)
    assert (code, f'pipeline.work_dir = "{work}"' in said) == (ExitCode.DONE, True), said
    assert f"No run can use {tmp_path / 'state'} any more; after a successful run it can be removed." in said
    shutil.rmtree(tmp_path / "state")
    there = configured(tmp_path, state=url, sections=section, events=MORE)
    code, said = told(capsys, "state", "check", str(there))
    assert (code, "is whole" in said) == (ExitCode.DONE, True), said
    assert run(there) == ExitCode.DONE
    require_exact(tmp_path, MORE)
    # A copy on the store, which its target leaves behind.
    copy = f"s3://{bucket}/copy"
    assert told(capsys, "state", "backup", str(there), copy)[0] == ExitCode.DONE
    # And back.
    back = tmp_path / "back"
    code, said = told(capsys, "state", "move", str(there), str(back))
    assert (code, "Remove pipeline.work_dir:" in said) == (ExitCode.DONE, True), said
    code, said = told(capsys, "run", str(there), "--local")
    assert (code, f"was moved from {url} to {back}" in said) == (ExitCode.STATE, True), said
    assert run(configured(tmp_path, state=str(back), sections=section, events=MOST)) == ExitCode.DONE
    require_exact(tmp_path, MOST)
    older = configured(tmp_path, state=copy, sections=section, events=MOST)
    code, said = told(capsys, "run", str(older), "--local", "--until", "caught-up")
    assert (code, "the state was restored from an older copy" in said) == (ExitCode.SINK, True), said
