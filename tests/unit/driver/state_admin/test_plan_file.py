"""`raycdc plan --out` seals what a run would do; `run --plan` begins where all is so, and else names what is not."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from raycdc.cli.planning.plan_file import (
    NO_STATE,
    NOTHING,
    OWN,
    VERSION,
    PlannedColumn,
    differences,
    read_plan,
    write_plan,
)
from raycdc.driver import resolve
from raycdc.errors import ConfigError, ExitCode
from raycdc.state import codec
from raycdc.transform.target_rules import TargetRules
from tests.unit.driver.state_admin.small_pipeline import MORE, configured, require_exact, run, told


@pytest.fixture
def planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The plan of a pipeline that never ran."""
    plan = tmp_path / "plan.json"
    code, said = told(capsys, "plan", str(configured(tmp_path)), "--out", str(plan))
    assert code == ExitCode.DONE, said
    assert "A snapshot of 2 tables reads about 100 rows in 2 chunks: " in said
    assert "  from shop.a: about 50 rows in 1 chunk, as it is\n" in said
    assert f"Sealed as {plan}" in said
    assert plan.stat().st_mode & 0o777 == 0o600
    return plan


def test_a_run_begins_where_all_is_as_planned_and_again_after_it_ended(planned: Path) -> None:
    config = configured(planned.parent)
    for _ in range(2):
        assert run(config, "--plan", str(planned)) == ExitCode.DONE
    require_exact(planned.parent)


def test_a_run_by_a_plan_makes_its_decisions_once(planned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules of targets and the source are those that the plan was compared with."""
    made: list[TargetRules] = []

    def counted(*values: Any, **named: Any) -> TargetRules:
        made.append(TargetRules(*values, **named))
        return made[-1]

    monkeypatch.setattr(resolve, "TargetRules", counted)
    config = configured(planned.parent)
    assert run(config, "--plan", str(planned)) == ExitCode.DONE
    assert len(made) == 1
    assert run(config, "--plan", str(planned), "--engines", "never") == ExitCode.DONE
    assert len(made) == 2
    require_exact(planned.parent)


def test_each_key_that_differs_is_named_before_anything_is_done(
    planned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = planned.parent
    config = configured(folder, state=str(folder / "elsewhere"), events=MORE)
    config.write_text(config.read_text().replace('"shop.b"', '"shop.c"').replace('"500ms"', '"600ms"'))
    code, said = told(capsys, "run", str(config), "--local", "--until", "caught-up", "--plan", str(planned))
    assert code == ExitCode.CONFIG
    for text in (
        "pipeline.epoch_interval is another than was planned.",
        "pipeline.state is another than was planned.",
        f"source.events is {MORE}, and 20 was planned.",
        'source.tables is ["shop.a", "shop.c"], and ["shop.a", "shop.b"] was planned.',
        "Table shop.c is captured, and was not planned.",
        "Table shop.b was planned, and is not there.",
        "Target shop.b was planned, and nothing makes it.",
    ):
        assert f"  {text}\n" in said
    assert sorted(path.name for path in folder.iterdir()) == ["plan.json", "small.toml"]


def test_what_somebody_put_at_the_place_of_a_target_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, plan = configured(tmp_path), tmp_path / "plan.json"
    text = config.read_text().replace('"jsonl"', '"delta"').replace('"changelog"', '"upsert"')
    # A run without a plan would take it.
    config.write_text(text.replace("[source]", 'on_existing = "replace"\n[source]'))
    assert told(capsys, "plan", str(config), "--out", str(plan))[0] == ExitCode.DONE
    assert read_plan(plan).locations == {"shop.a": NOTHING, "shop.b": NOTHING}
    write_deltalake(str(tmp_path / "lake" / "shop" / "b"), pa.table({"mine": [1]}))
    code, said = told(capsys, "run", str(config), "--local", "--until", "caught-up", "--plan", str(plan))
    text = "  At the location of target shop.b lies something else; planned was nothing.\n"
    assert (code, text in said, "shop.a" in said) == (ExitCode.CONFIG, True, False), said
    assert DeltaTable(str(tmp_path / "lake" / "shop" / "b")).to_pyarrow_table().column_names == ["mine"]


def test_a_plan_that_was_changed_or_is_of_another_version_is_none(
    planned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("run", str(configured(planned.parent)), "--local", "--until", "caught-up", "--plan", str(planned))
    document = json.loads(planned.read_text())
    planned.write_text(json.dumps({**document, "pipeline": "another"}))
    code, said = told(capsys, *words)
    assert (code, "is no plan as it was sealed: its checksum" in said) == (ExitCode.CONFIG, True), said
    del document["sha"]
    planned.write_bytes(codec.encode({**document, "version": VERSION + 1}))
    code, said = told(capsys, *words)
    assert (code, f"is a plan of version {VERSION + 1}; this raycdc reads {VERSION}" in said) == (
        ExitCode.CONFIG,
        True,
    ), said
    del document["targets"]
    planned.write_bytes(codec.encode(document))
    code, said = told(capsys, *words)
    assert (code, "is no plan: 1 of its fields" in said) == (ExitCode.CONFIG, True), said
    planned.unlink()
    code, said = told(capsys, *words)
    assert (code, "cannot be read" in said) == (ExitCode.CONFIG, True), said


def test_a_plan_that_no_run_would_begin_with_is_not_sealed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, plan = configured(tmp_path), tmp_path / "plan.json"
    assert run(config) == ExitCode.DONE
    config.write_text(config.read_text().replace("rows = 50", "rows = 51"))
    code, said = told(capsys, "plan", str(config), "--out", str(plan))
    assert (code, "State: A run refuses this. source.rows is 51" in said) == (ExitCode.CONFIG, True), said
    assert ("The plan is not sealed" in said, plan.exists()) == (True, False), said


def test_an_effect_on_the_state_that_was_not_planned_is_named(
    planned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = planned.parent
    assert run(configured(folder, sections='invalid_names = "park"')) == ExitCode.DONE
    words = ("--local", "--until", "caught-up", "--plan", str(planned))
    code, said = told(capsys, "run", str(configured(folder)), *words)
    text = '  Not planned was: sink.invalid_names is "replace", and was "park" when the state was made: it applies to'
    assert (code, text in said) == (ExitCode.CONFIG, True), said
    code, said = told(capsys, "plan", str(configured(folder)), "--out", str(planned))
    assert code == ExitCode.DONE, said
    # What was planned may happen, and happens once.
    for _ in range(2):
        assert run(configured(folder), "--plan", str(planned)) == ExitCode.DONE


def test_another_state_than_was_planned_with_is_named(planned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = planned.parent
    config = configured(folder)
    assert run(config) == ExitCode.DONE
    begun = read_plan(planned)
    code, said = told(capsys, "plan", str(config), "--out", str(planned))
    assert code == ExitCode.DONE, said
    plan = read_plan(planned)
    assert begun.state == NO_STATE != plan.state
    assert [differences(begun, replace(begun, state=plan.state)), differences(plan, plan)] == [[], []]
    assert differences(plan, replace(plan, state="1f")) == ["The state is another one than was planned with."]
    shutil.rmtree(folder / "state")
    code, said = told(capsys, "run", str(config), "--local", "--until", "caught-up", "--plan", str(planned))
    text = "  There is no state, and the plan was made with one.\n"
    assert (code, text in said, (folder / "state").exists()) == (ExitCode.CONFIG, True, False), said


def test_columns_and_keys_that_differ_are_named(planned: Path) -> None:
    plan = read_plan(planned)
    table, target = plan.tables[0], plan.targets[0]
    first, second, *rest = table.columns
    columns = (replace(first, type="int"), *rest, PlannedColumn("new", "string", True))
    now = replace(
        plan,
        tables=(replace(table, columns=columns, primary_key=("id", "new")), *plan.tables[1:]),
        targets=(replace(target, columns=tuple(reversed(target.columns))), *plan.targets[1:]),
        locations={**plan.locations, "shop.a": OWN},
    )
    assert differences(plan, now) == [
        "Table shop.a has a column new that was not planned.",
        f"Table shop.a lacks the column {second.name} that was planned.",
        "Table shop.a: column id is int not null, and bigint not null was planned.",
        "Table shop.a has the key (id, new), and (id) was planned.",
        "Target shop.a has its columns in another order than was planned.",
    ]
    assert differences(plan, replace(plan, pipeline="x")) == ["The plan is of pipeline 'small', and this is 'x'."]


def test_a_plan_is_written_into_a_new_file_of_its_user_or_not_at_all(planned: Path) -> None:
    folder, plan = planned.parent, read_plan(planned)
    others = folder / "others"
    others.write_text("mine")
    # Somebody guesses the name of the file that is written first.
    (folder / f".plan.json.{os.getpid()}.tmp").symlink_to(others)
    mask = os.umask(0o277)
    try:
        write_plan(planned, plan)
    finally:
        os.umask(mask)
    assert (others.read_text(), planned.is_symlink(), read_plan(planned)) == ("mine", False, plan)
    assert planned.stat().st_mode & 0o777 == 0o600
    there = folder / "there"
    there.mkdir()
    before = sorted(folder.iterdir())
    with pytest.raises(ConfigError, match="there cannot be written"):
        write_plan(there, plan)
    assert sorted(folder.iterdir()) == before
