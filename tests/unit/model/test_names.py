"""Names that targets can hold, and what becomes of others: one table for all sinks."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raycdc.config import SinkConfig, config_from_dict
from raycdc.errors import SchemaError
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.model.evolution import AddColumnEvent, RenameColumnEvent
from raycdc.model.rules.names import NAMES, NameRules, claimed, topic_name
from raycdc.model.rules.routes import Route, Router
from raycdc.model.rules.transform import Transform, Transforms
from raycdc.plugins import PluginGroup, list_plugins
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.enumerator.snapshot_plan import StartPoint, TablePlan
from raycdc.state.opaque import Position
from raycdc.transform.naming import Naming, renamed_changes
from raycdc.transform.target_rules import TargetRules

T = TableId("shop", "t")
NUMBER = LogicalType(TypeKind.INT32)


@pytest.mark.parametrize(
    ("store", "name", "made"),
    [
        ("delta", "unit (SI)", "unit__SI_"),
        ("delta", "q;2", "q_2"),
        ("delta", "col x", "col_x"),
        ("delta", "a.b", "a.b"),
        ("postgresql", "n" * 63, "n" * 63),
        ("postgresql", "ü" * 32, "ü" * 27 + "_" + "18e2d438"),
        ("postgresql", "ctid", "ctid_"),
        ("mysql", "m" * 64, "m" * 64),
        ("mysql", "price ", "price_"),
        ("mariadb", "a\U0001f600b", "a_b"),
        ("mongodb", "a.b", "a_b"),
        ("mongodb", "$a", "_a"),
        ("mongodb", "_id", "_id_"),
        ("mongodb", "", "_"),
        ("jsonl", "a b;", "a b;"),
        ("iceberg", "a b;", "a b;"),
    ],
)
def test_what_becomes_of_a_columns_name(store: str, name: str, made: str) -> None:
    assert NAMES[store].column(name) == made


@pytest.mark.parametrize("character", " ,;{}()\n\t=")
def test_what_spark_refuses_in_a_delta_table_is_replaced_although_delta_rs_takes_it(character: str) -> None:
    assert NAMES["delta"].column(f"a{character}b") == "a_b"


@pytest.mark.parametrize("store", sorted(NAMES))
@given(name=st.text(max_size=90))
def test_every_name_becomes_one_that_the_target_can_hold_and_stays_that(store: str, name: str) -> None:
    rules = NAMES[store]
    made = rules.column(name)
    assert rules.no_column(made) == ""
    assert rules.column(made) == made
    assert (made == name) == (rules.no_column(name) == "")


@pytest.mark.parametrize(
    ("store", "table", "part"),
    [
        ("delta", "shop.../../evil", "cannot be a folder"),
        ("jsonl", "shop._hidden", "pass over it"),
        ("parquet", "...t", "another folder's name"),
        ("postgresql", f"shop.{'t' * 64}", "more than 63 bytes"),
        ("mysql", f"shop.{'t' * 65}", "more than 64 characters"),
        ("postgresql", "pg_toast.t", "keeps for itself"),
        ("postgresql", "information_schema.t", "keeps for itself"),
        ("mysql", "mysql.user", "keeps for itself"),
        ("mariadb", "SYS.t", "keeps for itself"),
        ("mongodb", f"{'d' * 63}.{'t' * 192}", "more than the 255 bytes"),
        ("mongodb", "admin.t", "keeps for itself"),
        ("mongodb", "shop.system.t", "keeps for itself"),
        ("mongodb", "a b.t", "contains ' '"),
        ("mongodb", "shop...", "has nothing before, behind or between its dots"),
        ("mongodb", "shop..a", "has nothing before, behind or between its dots"),
        ("mongodb", "shop.a.", "has nothing before, behind or between its dots"),
    ],
)
def test_a_tables_name_that_no_target_can_have_is_refused_with_a_way_out(store: str, table: str, part: str) -> None:
    db, _, name = table.partition(".") if not table.startswith("...") else ("..", "", "t")
    why = NAMES[store].no_table(TableId(db, name))
    assert part in why
    assert "[[route]]" in why


def test_a_topics_name_is_made_of_the_tables() -> None:
    rules = NameRules("a topic", topic="cdc.{db}.{table}")
    assert rules.no_table(T) == ""
    assert 'makes "cdc.shop.a b"' in rules.no_table(TableId("shop", "a b"))
    assert "cannot be a topic" in rules.no_table(TableId("shop", "t" * 241))
    assert rules.no_table(TableId("shop", "t" * 240)) == ""


def test_a_table_is_none_of_the_brokers_topics_nor_that_of_statements() -> None:
    rules = replace(NAMES["kafka"], topic="{table}", topics=NAMES["kafka"].topics | {"ddl"})
    for name in ("__consumer_offsets", "__transaction_state", "ddl"):
        assert "the topic of something else" in rules.no_table(TableId("shop", name))
    assert "cannot be a topic" in rules.no_table(TableId("shop", ".."))


def test_two_targets_cannot_have_one_topic_unless_it_is_for_several() -> None:
    dotted, namesake, other = TableId("sec.x", "t"), TableId("sec", "x.t"), TableId("sec", "t")
    own = NameRules("a topic", topic="{db}.{table}")
    assert list(claimed(own, [namesake, dotted, other])) == [dotted]
    assert claimed(own, [namesake, other], held=[dotted]) == {
        namesake: "it cannot have the topic sec.x.t, because that is `sec.x`.t's. Give the target another name by a "
        "[[route]]"
    }
    assert claimed(own, [dotted], held=[dotted]) == {}
    for shared in ("changes", "{db}"):
        assert claimed(NameRules("a topic", topic=shared), [namesake, dotted, other]) == {}


def test_a_name_is_put_into_a_topics_as_it_is() -> None:
    assert topic_name("{db}.{table}", TableId("{table}", "a")) == "{table}.a"


def test_databases_of_mongodb_differ_in_more_than_case() -> None:
    shop, upper, more = TableId("shop", "t"), TableId("Shop", "u"), TableId("shop", "u")
    assert list(claimed(NAMES["mongodb"], [shop, upper, more])) == [upper]
    assert claimed(NAMES["postgresql"], [shop, upper, more]) == {}


def test_no_target_is_called_as_kept_rows_are() -> None:
    assert "rows that it keeps" in NAMES["jsonl"].no_table(TableId("known rows of shop", "t"))


def rules(store: str = "delta", *, replaces: bool = True, upsert: bool = True, **more: object) -> TargetRules:
    found = TargetRules(upsert=upsert, naming=Naming(NAMES[store], replaces, upsert), **more)  # type: ignore[arg-type]
    restored = pickle.loads(pickle.dumps(found))
    assert isinstance(restored, TargetRules)
    return restored


def shape(*names: str, key: tuple[str, ...] = ("id",)) -> TableSchema:
    return TableSchema(tuple(Column(name, NUMBER) for name in names), key)


def test_a_table_is_refused_where_its_target_cannot_hold_it() -> None:
    assert rules().refusal(T, shape("id", "a b")) == ""
    assert "would both be 'A_B'" in rules().refusal(T, shape("id", "a b", "A_B"))
    assert 'sink.invalid_names = "replace"' in rules(replaces=False).refusal(T, shape("id", "a b"))
    assert "has no primary key" in rules().refusal(T, shape("id", key=()))
    assert rules(upsert=False).refusal(T, shape("id", key=())) == ""


def test_routes_and_transforms_are_ways_out() -> None:
    assert rules(router=Router([Route(r"shop\..*", "lake.t")])).refusal(TableId("shop", "../x"), shape("id")) == ""
    chosen = rules(transforms=Transforms([Transform(table="shop.t", projection="id, `a b` AS c, a_b")]))
    assert chosen.refusal(T, shape("id", "a b", "a_b")) == ""
    keyed = rules(transforms=Transforms([Transform(table="shop.t", primary_keys=("id",))]))
    assert keyed.refusal(T, shape("id", key=())) == ""


def test_a_column_that_is_added_may_make_a_collision() -> None:
    before, after = shape("id", "a b"), shape("id", "a b", "a_b")
    event = AddColumnEvent(T, Column("a_b", NUMBER))
    assert "would both be" in rules().objection(T, before, after, [event], [T])
    assert "would both be" in rules().objection(T, before, before, [event], [T])


@pytest.mark.parametrize(
    ("renames", "ends"),
    [
        ({"x": "a_b", "a b": "y"}, {"x": "a_b", "a_b": "y"}),
        ({"x": "a_b", "a b": "x"}, {"x": "a_b", "a_b": "x"}),
        ({"x": "A_b", "c": "x", "a b": "c"}, {"x": "A_b", "a_b": "c", "c": "x"}),
        ({"a b": "a b^", "x": "a b", "a b^": "x"}, {"x": "a_b", "a_b": "x"}),
        ({"a b": "a_b", "c": "d"}, {"a_b": "a_b", "c": "d"}),
        ({"x": "y", "a b": "z"}, {"x": "y", "a_b": "z"}),
    ],
)
def test_columns_that_get_names_of_others_keep_their_values(renames: dict[str, str], ends: dict[str, str]) -> None:
    events = [RenameColumnEvent(T, name, new_name) for name, new_name in renames.items()]
    columns = {name: name for name in ("x", "a_b", "c")}
    for event in renamed_changes(events, {"a b": "a_b", "a b^": "a_b^"}):
        assert isinstance(event, RenameColumnEvent)
        assert event.new_name.casefold() not in {name.casefold() for name in columns} - {event.name.casefold()}
        columns[event.new_name] = columns.pop(event.name)
    assert {origin: name for name, origin in columns.items() if origin in ends} == ends


def test_names_of_the_state_hold_even_where_none_is_replaced_any_more() -> None:
    kept = Naming(NAMES["delta"], replaces=False, upsert=True, known={"shop.t": {"a b": "other"}})
    assert kept.names(T, ["id", "a b"], ["id"]) == {"a b": "other"}
    with pytest.raises(SchemaError, match="contains ' '"):
        kept.names(T, ["id", "a b", "c d"], ["id"])


def test_every_sink_says_which_names_it_holds() -> None:
    """A sink of raycdc's own that is in no table would let any name through, and end the run at the target."""
    told = {}
    for name in [one.type for one in list_plugins() if one.group is PluginGroup.SINKS]:
        sections: dict[str, dict[str, object]] = {
            "jdbc": {"url": "jdbc:postgresql://h/d", "user": "u"},
            "kafka": {"bootstrap_servers": "h:1", "topic": "{db}", "format": {"type": "debezium-json"}},
            "iceberg": {"path": "/x"},
            "mongodb": {"uri": "mongodb://h"},
        }
        section = sections.get(name, {"path": "/x"} if name != "console" else {})
        sink = config_from_dict(
            {
                "pipeline": {"name": "n"},
                "source": {"type": "mysql", "user": "u", "tables": ["a.b"]},
                "sink": {"type": name, "write": "changelog", **section},
            }
        ).sink
        assert isinstance(sink, SinkConfig)
        told[name] = sink.names.store
    assert "the target" not in told.values(), told


def test_rows_that_are_kept_beside_the_state_lie_in_tables_of_deltas() -> None:
    kept = rules("jsonl", upsert=False, keeps_rows=True)
    assert "kept in Delta tables" in kept.refusal(T, shape("id", "a b"))
    assert rules("jsonl", upsert=False).refusal(T, shape("id", "a b")) == ""


def test_a_start_parks_what_is_refused_or_ends_where_nothing_is_parked() -> None:
    here = Position.from_json({"at": 1})
    fine, odd = (
        TablePlan(T, "f1", SchemaDocument({}), None),
        TablePlan(TableId("shop", "odd"), "", SchemaDocument({}), None, "it has no key"),
    )
    assert StartPoint(here, 1, (fine, odd)).tables[1].parked(here).to_json() == {
        "schema": None,
        "announced": False,
        "incarnation": 0,
        "again": False,
        "phase": "parked",
        "reason": "it has no key",
        "position": {"at": 1},
        "ts_ms": 0,
    }
    with pytest.raises(SchemaError, match="it has no key"):
        StartPoint(here, 1, (fine, odd), parks=False)


@pytest.mark.parametrize(("path", "odd"), [("/data/my%20lake", "%20"), ("/data/a\\b", "\\"), ("/data/100%/lake", "")])
def test_a_lake_in_a_folder_that_is_read_as_another_is_refused(path: str, odd: str) -> None:
    config = config_from_dict(
        {
            "pipeline": {"name": "x"},
            "source": {"type": "datagen", "tables": ["shop.t"]},
            "sink": {"type": "delta", "path": path},
        }
    )
    problems = list(config.sink.problems(config.pipeline, local=True))
    assert [repr(odd) in problem for problem in problems] == [True] * bool(odd)
