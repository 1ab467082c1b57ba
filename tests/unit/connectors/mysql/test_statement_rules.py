"""Every rule about a statement of the log has a statement that it decides, and everything ignored has a proof."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from raycdc.connectors.mysql.binlog.events import DdlItem, LoggedThread
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.connectors.mysql.binlog.session import NO_SESSION, SessionState
from raycdc.connectors.mysql.ddl.apply import AffectedTables, DdlDialect
from raycdc.connectors.mysql.ddl.follow import history
from raycdc.connectors.mysql.ddl.follow.followed_tables import SnapshotChunkKeys
from raycdc.connectors.mysql.ddl.follow.history import DdlHistory, RefusedStatementError
from raycdc.connectors.mysql.ddl.follow.history_state import HistoryState
from raycdc.connectors.mysql.ddl.follow.log_server import LogServer, Resolved
from raycdc.connectors.mysql.ddl.parse.statements import TemporaryTable
from raycdc.connectors.mysql.ddl.rules import facts as reasons
from raycdc.connectors.mysql.ddl.rules import part_rules
from raycdc.connectors.mysql.ddl.rules.facts import HistoryFacts, LoggedStatement
from raycdc.connectors.mysql.values.documents import Capture
from raycdc.errors import DataError
from raycdc.model import TableId
from raycdc.model.rules.mask import Mask, Masks
from raycdc.model.rules.selector import TableSelector
from raycdc.model.rules.transform import Transform, Transforms
from raycdc.source.snapshot.log.log_unit import ParkTableUpdate
from raycdc.source.tables.parked_tables import ParkingSetup
from raycdc.source.tables.table_life import Parked, ParkedPhase
from raycdc.source.tables.verdicts import Ignore, Park, judge
from raycdc.transform.target_rules import TargetRules
from tests.unit.connectors.mysql.test_mysql_ddl_tools import CREATED, GHOST, ORDERS, SWAP, Decoder, table_of

HERE = BinlogOffset("binlog.000001", 400)
FRESH, ITEMS = TableId("shop", "fresh"), TableId("shop", "items")
#: Where each tuple of rules is looked up when a statement is judged.
TUPLES: tuple[tuple[Any, str], ...] = (
    (history, "PARKED_RULES"),
    (history, "ROWS_RULES"),
    (history, "STATEMENT_RULES"),
    (history, "PART_RULES"),
    (part_rules, "TABLE_RULES"),
    (part_rules, "NAME_RULES"),
    (history, "EFFECT_RULES"),
)
PROOFS: Mapping[str, str] = {one.proof: name for name, one in vars(reasons).items() if isinstance(one, Ignore)}
#: Rules that ask others, which decide.
ASKS_OTHERS = "is_of_table"

UNKNOWN_SESSION = SessionState(unknown="a new thing")
ENDED = Parked(None, True, 1, ParkedPhase.ENDED, "it ended", HERE.sealed(), 0)
UNDECIDED = Parked(None, False, 1, ParkedPhase.PARKED, "it waits", HERE.sealed(), 0)


@dataclass(frozen=True)
class Setting:
    """The surroundings of a statement: what is `parked` and `dropped`, and what else is otherwise than usual.

    `orders` and `items` are followed, unless they are parked.
    """

    parked: Mapping[TableId, Parked] = field(default_factory=dict)
    server: Mapping[str, Any] = field(default_factory=dict)
    rules: TargetRules = field(default_factory=TargetRules)
    dropped: Mapping[TableId, str] = field(default_factory=dict)
    snapshots: Mapping[TableId, str] = field(default_factory=dict)
    session: SessionState = NO_SESSION
    thread_specific: bool = False
    captured: Mapping[TableId, Capture] = field(default_factory=dict)

    def history(self) -> DdlHistory:
        tables = {table: table_of(CREATED.replace("orders", table.table), table) for table in (ORDERS, ITEMS)}
        made = DdlHistory(
            {table: shape for table, shape in tables.items() if table not in self.parked},
            selector=TableSelector((r"shop\..*",), ("shop.other",)),
            server=LogServer(DdlDialect(), ("utf8mb4", ""), **self.server),
            terms=ParkingSetup(self.parked, rules=self.rules),
            state=HistoryState(dropped=self.dropped),
            snapshots=SnapshotChunkKeys(self.snapshots),
            captured=self.captured,
        )
        made.attach(Decoder())
        return made


def resolved(table: TableId, _: BinlogOffset) -> Resolved | str:
    return Resolved(table_of(CREATED.replace("orders", table.table), table), {})


ASKED = Setting(server={"resolve": resolved})
MASKED = Setting(rules=TargetRules(masks=Masks([Mask("shop.orders.b", "drop")])))

#: The rows and columns of orders that are captured.
BY_FILTER = Setting(captured={ORDERS: Capture("b = 'x' AND a IN (1, 2)")})
BY_LIST = Setting(captured={ORDERS: Capture(columns=("id", "a"))})
BY_CHUNKS = Setting(snapshots={ORDERS: "a"})
IGNORING = Setting(rules=TargetRules(upsert=True, ignored=True, fixed_columns=True))
COMPUTED = Setting(rules=TargetRules(Transforms([Transform(table="shop.orders", filter="cast(a as string) <> b")])))

#: By the rule and what it says of the last statement: the statements, and their surroundings.
DECIDED: tuple[tuple[str, Setting, tuple[str, ...]], ...] = (
    ("name_is_taken_again: Resnapshot", Setting({FRESH: ENDED}), ("CREATE TABLE fresh (id INT PRIMARY KEY)",)),
    ("leaves_nothing_to_decide: Resnapshot", Setting({FRESH: UNDECIDED}), ("DROP TABLE fresh",)),
    ("stays_parked: STAYS_PARKED", Setting({FRESH: UNDECIDED}), ("ALTER TABLE fresh ADD c INT",)),
    ("rows_of_parked: ROWS_OF_PARKED", Setting({FRESH: ENDED}), ("UPDATE fresh SET a = 1",)),
    ("rows_not_logged: Park", Setting(), ("UPDATE orders SET a = 1",)),
    ("rows_not_logged: Resnapshot", Setting(rules=TargetRules(lost_rows_again=True)), ("DELETE FROM orders",)),
    ("is_of_temporary_tables: OF_TEMPORARY", Setting(), ("CREATE TEMPORARY TABLE orders (id INT)",)),
    ("has_unreadable_names: Resnapshot", Setting(), ("ALTER TABLE (orders) ADD c INT",)),
    ("merges_tables: Resnapshot", Setting(), ("CREATE TABLE m (id INT) ENGINE=MERGE UNION=(orders, items)",)),
    ("repairs: Resnapshot", Setting(), ("REPAIR TABLE orders",)),
    ("repairs: REPAIRS_NONE", Setting(server={"repairs": lambda _: False}), ("REPAIR TABLE orders",)),
    ("names_nothing_captured: NAMES_NONE", Setting(), ("ALTER TABLE away.orders ADD c INT",)),
    ("names_nothing_captured: NAMES_NONE", Setting(), ("ANALYZE TABLE orders",)),
    ("may_mean_a_temporary_table: Resnapshot", Setting(thread_specific=True), ("ALTER TABLE orders ADD c INT",)),
    (
        "may_mean_a_temporary_table: OF_A_TOOL",
        Setting(thread_specific=True),
        ("ALTER TABLE _orders_gho ADD c INT",),
    ),
    (
        "adds_an_unlogged_cascade: Park",
        Setting(server={"cascades": False}),
        ("ALTER TABLE orders ADD FOREIGN KEY (a) REFERENCES p (id) ON DELETE CASCADE",),
    ),
    (
        "makes_an_unlogged_table: Park",
        Setting(server={"unlogged": lambda _: "it is not logged"}),
        ("ALTER TABLE orders ENGINE=X",),
    ),
    ("has_an_unknown_session: Park", Setting(session=UNKNOWN_SESSION), ("ALTER TABLE orders ADD c INT",)),
    (
        "has_an_unknown_session: OF_A_TOOL",
        Setting(session=UNKNOWN_SESSION),
        ("ALTER TABLE _orders_gho ADD c INT",),
    ),
    ("is_not_understood: Park", Setting(), ("ALTER TABLE orders FROBNICATE x",)),
    ("is_not_understood: Follow", ASKED, ("ALTER TABLE orders FROBNICATE x",)),
    ("is_not_understood: Resnapshot", Setting(), ("CREATE TABLE fresh AS SELECT 1 AS id",)),
    ("is_not_understood: OF_A_TOOL", Setting(), ("ALTER TABLE _orders_gho FROBNICATE x",)),
    ("is_of_database: OF_DEFAULTS", Setting(), ("CREATE DATABASE more",)),
    ("is_of_database: Follow", Setting(), ("DROP DATABASE shop",)),
    ("is_like_a_temporary_table: Resnapshot", Setting(thread_specific=True), ("CREATE TABLE fresh LIKE other",)),
    ("is_like_a_temporary_table: OF_A_TOOL", Setting(thread_specific=True), (GHOST,)),
    ("is_not_captured: OF_A_TOOL", Setting(), (GHOST,)),
    (
        "is_not_captured: Park",
        Setting(),
        (GHOST, "RENAME TABLE orders TO _orders_del", "DROP TABLE _orders_gho"),
    ),
    ("drops_what_nobody_followed: DROPS_NONE", Setting(), ("DROP TABLE fresh",)),
    (
        "may_have_been_there: Resnapshot",
        Setting(server={"was_there": lambda _, __: True}),
        ("CREATE TABLE IF NOT EXISTS fresh (id INT PRIMARY KEY)",),
    ),
    ("changes_the_table: Follow", Setting(), ("ALTER TABLE orders ADD c INT",)),
    ("changes_the_table: Park", Setting(), ("ALTER TABLE orders DROP COLUMN missing",)),
    ("changes_the_table: Resnapshot", Setting(), ("ALTER TABLE orders TRUNCATE PARTITION p",)),
    ("keeps_its_name: KEEPS_ITS_NAME", Setting(), ("RENAME TABLE orders TO tmp, tmp TO orders",)),
    ("is_another_name: OF_ANOTHER_NAME", Setting(), ("RENAME TABLE orders TO away.older",)),
    ("leaves_the_name: Park", Setting(), ("RENAME TABLE orders TO away.older",)),
    ("leaves_the_name: NOT_FOLLOWED", Setting(), ("RENAME TABLE fresh TO away.older",)),
    ("leaves_the_name: BETWEEN_RENAMES", Setting(), (GHOST, "RENAME TABLE orders TO _orders_del")),
    (
        "was_captured_before: Resnapshot",
        Setting(),
        ("RENAME TABLE orders TO tmp, items TO orders, tmp TO away.x",),
    ),
    ("was_not_captured_before: Resnapshot", Setting(), ("RENAME TABLE away.new TO orders",)),
    (
        "may_have_other_rows: Resnapshot",
        Setting(),
        (GHOST, SWAP, "RENAME TABLE orders TO x, _orders_del TO orders"),
    ),
    ("takes_over_name: Follow", Setting(), (GHOST, SWAP)),
    ("takes_over_name: Park", Setting(), ("RENAME TABLE _orders_gho TO orders",)),
    (
        "takes_over_name: Resnapshot",
        Setting(),
        (GHOST, "ALTER TABLE _orders_gho ADD UNIQUE KEY u (b)", "RENAME TABLE _orders_gho TO orders"),
    ),
    ("has_another_key_or_name: Park", Setting(), ("ALTER TABLE orders DROP PRIMARY KEY",)),
    (
        "is_logged_otherwise: Resnapshot",
        Setting(),
        ("CREATE TABLE fresh (id INT AUTO_INCREMENT PRIMARY KEY, v INT AS (id + 1) VIRTUAL)",),
    ),
    ("shows_what_is_masked: Resnapshot", MASKED, ("CREATE TABLE fresh LIKE orders",)),
    (
        "differs_from_the_dropped: Resnapshot",
        Setting(dropped={FRESH: "others"}),
        ("CREATE TABLE fresh (id INT PRIMARY KEY)",),
    ),
    ("has_a_reserved_column: Park", Setting(), ("ALTER TABLE orders ADD _seq INT",)),
    ("changes_what_is_captured: Park", BY_FILTER, ("ALTER TABLE orders DROP COLUMN b",)),
    (
        "changes_the_chunk_key: Resnapshot",
        Setting(snapshots={ORDERS: "id"}),
        ("ALTER TABLE orders MODIFY id BIGINT NOT NULL AUTO_INCREMENT",),
    ),
    ("is_not_for_targets: Resnapshot", Setting(rules=TargetRules(upsert=True)), ("CREATE TABLE fresh (id INT)",)),
    ("changes_nothing: CHANGES_NOTHING", Setting(), ("ALTER TABLE orders ADD INDEX i (a)",)),
    ("is_followed: Follow", Setting(), ("ALTER TABLE orders ADD c INT",)),
)

NO_CASCADES = {"cascades": False}
NOT_LOGGED = {"unlogged": lambda _: "it is not logged"}
CASCADE = "ADD FOREIGN KEY (a) REFERENCES p (id) ON DELETE CASCADE"
UNHIDABLE = TargetRules(masks=Masks([Mask("shop.orders.a", "truncate")]))
#: As `DECIDED`, of statements on which a later rule of the same tuple has another verdict.
FIRST: tuple[tuple[str, Setting, tuple[str, ...]], ...] = (
    (
        "is_of_temporary_tables: OF_TEMPORARY",
        Setting(),
        ("CREATE TEMPORARY TABLE m (id INT) ENGINE=MERGE UNION=(orders)",),
    ),
    ("has_unreadable_names: Resnapshot", Setting(), ("CREATE TABLE 'm' (id INT) ENGINE=MERGE UNION=(orders)",)),
    ("merges_tables: Resnapshot", Setting(), ("CREATE TABLE away.m (id INT) ENGINE=MERGE UNION=(shop.orders)",)),
    ("names_nothing_captured: NAMES_NONE", Setting(), ("REPAIR TABLE away.orders",)),
    ("names_nothing_captured: NAMES_NONE", Setting(thread_specific=True), ("ALTER TABLE away.orders ADD c INT",)),
    ("repairs: OF_A_TOOL", Setting(), ("REPAIR TABLE _orders_gho",)),
    (
        "may_mean_a_temporary_table: Resnapshot",
        Setting(server=NO_CASCADES, thread_specific=True),
        (f"ALTER TABLE orders {CASCADE}",),
    ),
    (
        "adds_an_unlogged_cascade: Park",
        Setting(server=NO_CASCADES | NOT_LOGGED),
        (f"ALTER TABLE orders ENGINE=X, {CASCADE}",),
    ),
    (
        "makes_an_unlogged_table: Park",
        Setting(server=NOT_LOGGED | {"resolve": resolved}, session=UNKNOWN_SESSION),
        ("ALTER TABLE orders ENGINE=X",),
    ),
    ("has_an_unknown_session: Park", Setting(session=UNKNOWN_SESSION), ("ALTER TABLE orders FROBNICATE x",)),
    (
        "keeps_its_name: KEEPS_ITS_NAME",
        Setting(),
        ("RENAME TABLE _orders_gho TO away.x, away.x TO _orders_gho",),
    ),
    ("is_another_name: OF_ANOTHER_NAME", Setting(), ("RENAME TABLE away.a TO shop.fresh",)),
    ("was_not_captured_before: Resnapshot", Setting(), ("RENAME TABLE _orders_old TO orders",)),
    (
        "shows_what_is_masked: Resnapshot",
        replace(MASKED, dropped={FRESH: "others"}),
        ("CREATE TABLE fresh LIKE orders",),
    ),
    (
        "differs_from_the_dropped: Resnapshot",
        Setting(dropped={FRESH: "others"}),
        ("CREATE TABLE fresh (id INT PRIMARY KEY, _seq INT)",),
    ),
    (
        "has_a_reserved_column: Park",
        Setting(snapshots={ORDERS: "id"}),
        ("ALTER TABLE orders ADD _seq INT, MODIFY id BIGINT NOT NULL AUTO_INCREMENT",),
    ),
    (
        "changes_what_is_captured: Park",
        replace(BY_FILTER, snapshots={ORDERS: "a"}),
        ("ALTER TABLE orders MODIFY a BIGINT, DROP COLUMN b",),
    ),
    (
        "changes_the_chunk_key: Resnapshot",
        Setting(snapshots={ORDERS: "a"}, rules=UNHIDABLE),
        ("ALTER TABLE orders MODIFY a BIGINT",),
    ),
    ("is_not_for_targets: Park", Setting(rules=UNHIDABLE), ("ALTER TABLE orders ADD INDEX i (a)",)),
)


CUT_AGAIN = "changes_the_chunk_key: Resnapshot"
PARKS, AGAIN, FOLLOWS = "changes_what_is_captured: Park", "changes_what_is_captured: Resnapshot", "is_followed: Follow"
#: The expected verdict about statements that change a column of orders, and the setting that names the column.
NAMED: tuple[tuple[str, Setting, tuple[str, ...]], ...] = (
    (PARKS, BY_FILTER, ("ALTER TABLE orders CHANGE b c VARCHAR(40)",)),
    # Its values are others, so that it begins again anyhow; the probe then finds that the filter does not fit it.
    ("changes_the_table: Resnapshot", BY_FILTER, ("ALTER TABLE orders MODIFY b JSON",)),
    ("changes_the_table: Resnapshot", BY_FILTER, ("ALTER TABLE orders MODIFY b SET('x', 'y')",)),
    (AGAIN, BY_FILTER, ("ALTER TABLE orders MODIFY b VARCHAR(40) COLLATE utf8mb4_bin",)),
    (AGAIN, BY_FILTER, ("ALTER TABLE orders MODIFY b VARCHAR(40) CHARACTER SET utf8mb3",)),
    (FOLLOWS, BY_FILTER, ("ALTER TABLE orders MODIFY b VARCHAR(400)",)),
    # Another column of the same name and type: its values are not those by which rows were chosen.
    (AGAIN, BY_FILTER, ("ALTER TABLE orders DROP COLUMN b, ADD COLUMN b VARCHAR(40)",)),
    (AGAIN, BY_FILTER, ("ALTER TABLE orders ADD c INT", "ALTER TABLE orders CHANGE a c INT, RENAME COLUMN c TO a")),
    (AGAIN, BY_FILTER, ("ALTER TABLE orders ADD c INT", "ALTER TABLE orders DROP COLUMN A, CHANGE c a INT")),
    (FOLLOWS, BY_FILTER, ("ALTER TABLE orders CHANGE b B VARCHAR(40)",)),
    (CUT_AGAIN, BY_CHUNKS, ("ALTER TABLE orders DROP COLUMN a, ADD COLUMN a INT",)),
    (CUT_AGAIN, BY_CHUNKS, ("ALTER TABLE orders ADD c INT", "ALTER TABLE orders RENAME COLUMN a TO c, CHANGE c a INT")),
    (FOLLOWS, BY_CHUNKS, ("ALTER TABLE orders DROP COLUMN b, ADD COLUMN b INT",)),
    (FOLLOWS, BY_FILTER, ("ALTER TABLE orders MODIFY a BIGINT",)),
    (FOLLOWS, BY_FILTER, ("ALTER TABLE orders ADD c INT",)),
    (PARKS, BY_LIST, ("ALTER TABLE orders DROP COLUMN a",)),
    (PARKS, BY_LIST, ("ALTER TABLE orders RENAME COLUMN a TO c",)),
    (PARKS, BY_LIST, ("ALTER TABLE orders RENAME COLUMN a TO c, RENAME COLUMN b TO a",)),
    (FOLLOWS, BY_LIST, ("ALTER TABLE orders MODIFY a BIGINT",)),
    (FOLLOWS, BY_LIST, ("ALTER TABLE orders DROP COLUMN b",)),
    ("is_not_for_targets: Resnapshot", IGNORING, ("ALTER TABLE orders DROP COLUMN a, ADD COLUMN a INT",)),
    (FOLLOWS, IGNORING, ("ALTER TABLE orders DROP COLUMN a",)),
    ("is_not_for_targets: Resnapshot", COMPUTED, ("ALTER TABLE orders MODIFY a BIGINT",)),
    ("is_not_for_targets: Park", COMPUTED, ("ALTER TABLE orders MODIFY a BIGINT, DROP COLUMN b",)),
    (FOLLOWS, COMPUTED, ("ALTER TABLE orders MODIFY b VARCHAR(400)",)),
    ("shows_what_is_masked: Park", MASKED, ("ALTER TABLE orders RENAME COLUMN b TO c",)),
    ("shows_what_is_masked: Park", MASKED, ("ALTER TABLE orders RENAME COLUMN b TO a, RENAME COLUMN a TO b",)),
    (FOLLOWS, MASKED, ("ALTER TABLE orders RENAME COLUMN b TO B",)),
    (FOLLOWS, MASKED, ("ALTER TABLE orders DROP COLUMN b, ADD b VARCHAR(9)",)),
)  # fmt: skip


@pytest.mark.parametrize(("decision", "world", "statements"), NAMED, ids=[f"{d} {s[-1]}" for d, _, s in NAMED])
def test_a_column_that_is_named_keeps_its_meaning(
    decision: str, world: Setting, statements: tuple[str, ...], decided: list[str]
) -> None:
    test_a_statement_is_decided_by_its_rule(decision, world, statements, decided)


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The rules that had a verdict on a statement, each with what it says."""
    names: list[str] = []

    def noting(rule: Callable[[Any, HistoryFacts], Any]) -> Callable[[Any, HistoryFacts], Any]:
        def noted(subject: Any, facts: HistoryFacts) -> Any:
            verdict = rule(subject, facts)
            if verdict is not None and rule.__name__ != ASKS_OTHERS:
                said = PROOFS[verdict.proof] if isinstance(verdict, Ignore) else type(verdict).__name__
                names.append(f"{rule.__name__}: {said}")
            return verdict

        return noted

    for module, name in TUPLES:
        monkeypatch.setattr(module, name, tuple(map(noting, getattr(module, name))))
    return names


def tell(story: DdlHistory, world: Setting, *statements: str) -> None:
    """The log has these statements, all at one place."""
    for statement in statements:
        item = DdlItem("shop", statement, HERE, HERE, 0, in_transaction=False, thread=LoggedThread(1, 7))
        story.on_ddl(replace(item, session=world.session, thread_specific=world.thread_specific))


STATEMENTS = (*DECIDED, *FIRST)


@pytest.mark.parametrize(
    ("decision", "world", "statements"), STATEMENTS, ids=[f"{d} {s[-1]}" for d, _, s in STATEMENTS]
)
def test_a_statement_is_decided_by_its_rule(
    decision: str, world: Setting, statements: tuple[str, ...], decided: list[str]
) -> None:
    *before, last = statements
    story = world.history()
    tell(story, world, *before)
    story.take_updates()
    decided.clear()
    tell(story, world, last)
    updates, _ = story.take_updates()
    assert decision in decided
    is_parked = any(one.endswith((": Park", ": Resnapshot")) for one in decided)
    assert any(isinstance(update, ParkTableUpdate) for update in updates) == is_parked


def test_every_rule_and_every_proof_decides_one_of_these_statements() -> None:
    rules = {rule.__name__ for module, name in TUPLES for rule in getattr(module, name)}
    decisions = [decision.split(": ") for decision, _, _ in DECIDED]
    # Statements about temporary tables alone are decided as a whole, and never come to their parts.
    assert rules - {rule for rule, _ in decisions} == {ASKS_OTHERS, "is_of_temporary_table"}
    assert set(PROOFS.values()) - {said for _, said in decisions} == set()


def test_a_part_about_a_temporary_table_is_ignored() -> None:
    item = DdlItem("shop", "", HERE, HERE, 0, in_transaction=False)
    statement = LoggedStatement(item, DdlDialect(), AffectedTables())
    part = part_rules.StatementPart(statement, TemporaryTable(ORDERS, created=True))
    assert judge(part_rules.PART_RULES, part, Setting().history()._facts) == reasons.OF_TEMPORARY


def test_the_last_rule_of_each_tuple_has_always_a_verdict_but_for_whole_statements() -> None:
    """So that nothing is passed over in silence."""
    tuples = {name: getattr(module, name) for module, name in TUPLES}
    optional = {name for name, rules in tuples.items() if "None" in str(rules[-1].__annotations__["return"])}
    assert optional == {"STATEMENT_RULES"}


def test_a_statement_of_which_nobody_knows_the_tables_ends_the_run() -> None:
    with pytest.raises(RefusedStatementError, match="this statement cannot be followed"):
        tell(Setting().history(), Setting(), "ALTER DATABASE shop CHARACTER SET = (")


def test_where_nothing_may_be_parked_the_run_ends_and_says_once_what_to_do() -> None:
    story = DdlHistory(
        {ORDERS: table_of(CREATED, ORDERS)},
        selector=TableSelector(("shop.orders",)),
        server=LogServer(DdlDialect(), ("utf8mb4", "")),
    )
    story.attach(Decoder())
    for statement in ("ALTER TABLE orders DROP PRIMARY KEY", "RENAME TABLE away.new TO orders"):
        with pytest.raises(RefusedStatementError) as refused:
            story.on_ddl(DdlItem("shop", statement, HERE, HERE, 0, in_transaction=False))
        assert str(refused.value).count("Nothing after it was passed on") == 1
    with pytest.raises(DataError, match=r'startup\.mode = "initial"'):
        story.on_ddl(DdlItem("shop", "UPDATE orders SET a = 1", HERE, HERE, 0, in_transaction=False))


def test_a_verdict_is_the_first_one_of_the_rules() -> None:
    def no(_: str, __: None) -> None:
        return None

    def yes(_: str, __: None) -> Ignore:
        return Ignore("it is known")

    def too_late(_: str, __: None) -> Park:
        return Park("late", (ORDERS,))

    assert judge((no, yes, too_late), "a subject", None) == Ignore("it is known")
    assert judge((no, too_late, yes), "a subject", None) == Park("late", (ORDERS,))
    with pytest.raises(AssertionError, match="no rule has a verdict on a subject"):
        judge((no,), "a subject", None)
