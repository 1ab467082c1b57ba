"""Store × deed of another writer × reaction: what a pipeline does about whatever others do to one of its targets.

`TABLE` has it as data, and the manual says the same in words. Each cell is played twice: the deed happens between two
epochs of a running driver, and between two drivers. `tests.epochs.deeds` has the deeds; what is more than a cell has a
story of its own: rows of others that must survive (`test_touched_targets`, `test_jdbc_others`, `test_mongodb_others`),
deeds in the middle of a commit (`test_targets_that_go`, `test_iceberg_neighbours`, `test_kafka_others`), tables that
were there first (`test_demanding_targets`), stores that are away (`test_away_targets`) or full (`test_full_target`).
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from raycdc.core.retry import RetryPolicy
from raycdc.delivery.epoch_loop import EpochLoop
from raycdc.delivery.targets.parked_targets import ParkingPolicy, SinkOutagePolicy
from raycdc.errors import ParkReason, SinkError, StateError
from raycdc.model.evolution import CreateTableEvent, TruncateTableEvent
from raycdc.state.parked import ParkedTarget
from raycdc.testing.epochs import Row, ScriptedTable
from tests.epochs import deeds
from tests.epochs import test_damaged_lakes as damaged
from tests.epochs import test_demanding_targets as demanding
from tests.epochs import test_iceberg_neighbours as neighbours
from tests.epochs import test_staged_files as staged
from tests.epochs import test_touched_targets as touched
from tests.epochs.deeds import Deed, collection, session, shop, sql, undone, validator
from tests.epochs.sink_world import HOME, World, as_messages, commit, world_of

GONE, TOUCHED, TAKEN, VALUE, KEY, BLOCKED = (
    ParkReason.MISSING,
    ParkReason.MODIFIED,
    ParkReason.TAKEN,
    ParkReason.VALUE,
    ParkReason.KEY,
    ParkReason.BLOCKED,
)
#: A value that fits into few types, and that no other text has.
LARGE = 918_273


class WayOut(StrEnum):
    """What people do about a parked target before they ask for a new snapshot of its table."""

    NOTHING = "a new snapshot is enough"
    UNDO = "the deed is undone"
    DROP = "the target is deleted"


NOTHING, UNDO, DROP = WayOut


@dataclass(frozen=True, slots=True)
class Parked:
    """The table is parked alone, and nothing was written since the deed; `text` is a pattern of what people read.

    `way_out` is one of those that the text names, or a deed that it asks for. `quiet`: a start notices it, too, where
    no row is to come. `stays`: what a commit wrote until it noticed is not taken back. `partly`: the text says that
    this may be so.
    """

    reason: ParkReason
    text: str
    way_out: WayOut | Deed = WayOut.NOTHING
    quiet: bool = False
    stays: bool = False
    partly: bool = False


@dataclass(frozen=True, slots=True)
class Harmless:
    """Nothing is parked, and the target has each row as the source has it, but for rows `kept` as others left them."""

    kept: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Ends:
    """The next start ends with an error like `text`, and nothing is parked: it happened to all targets."""

    text: str


HARMLESS = Harmless()
Reaction = Parked | Harmless | Ends
BENDS = (
    "CREATE FUNCTION shop.bend() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.qty := 0; RETURN NEW; END'",
    "CREATE TRIGGER bends BEFORE INSERT OR UPDATE ON shop.items FOR EACH ROW EXECUTE FUNCTION shop.bend()",
)
LOSES = (
    "CREATE FUNCTION shop.lose() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
    "CREATE TRIGGER loses BEFORE DELETE ON shop.items FOR EACH ROW EXECUTE FUNCTION shop.lose()",
)
WRITE = "CREATE FUNCTION shop.write() RETURNS trigger LANGUAGE plpgsql AS "
WRITES_AFTER = (
    f"{WRITE} 'BEGIN UPDATE shop.\"items\" SET qty = 0 WHERE id = NEW.id AND qty <> 0; RETURN NULL; END'",
    "CREATE TRIGGER writes AFTER INSERT OR UPDATE ON shop.items FOR EACH ROW EXECUTE FUNCTION shop.write()",
)
WRITES_BY_NAME = (
    f"{WRITE} 'BEGIN EXECUTE format(''UPDATE shop.%I SET qty = 0 WHERE qty <> 0'', TG_TABLE_NAME); RETURN NULL; END'",
    "CREATE TRIGGER writes AFTER INSERT OR UPDATE ON shop.items FOR EACH STATEMENT EXECUTE FUNCTION shop.write()",
)
COMPUTED = "ALTER TABLE shop.items DROP COLUMN qty, ADD COLUMN qty int GENERATED ALWAYS AS (id + 1) STORED"
REFERS = (
    "CREATE TABLE shop.other (id int PRIMARY KEY)",
    "INSERT INTO shop.other VALUES (1), (2), (3), (4)",
    "ALTER TABLE shop.items ADD CONSTRAINT kept FOREIGN KEY (qty) REFERENCES shop.other (id)",
)
#: A privilege for the database counts for each of its tables.
OF_EACH_TABLE = (
    "GRANT ALL ON shop.orders TO loader",
    "GRANT ALL ON shop.items TO loader",
    "REVOKE ALL ON shop.* FROM loader",
)
UNIQUE = "CREATE UNIQUE INDEX theirs ON shop.items (qty)"
ITS_RECORD = "SELECT 1 FROM raycdc_commit WHERE target = 'shop.items' FOR UPDATE"
#: A commit has the server's words, and a start our own.
COMPUTED_BY_SERVER = "non-DEFAULT value|specified for generated column"
#: While a driver runs, and at a start.
OTHER_TABLE = "made it anew|holds (nothing of this pipeline|less than before)"
LOCKED = "It is locked by .*session"

#: Store, deed of another writer, reaction.
TABLE: Mapping[str, Mapping[str, tuple[Deed, Reaction]]] = {
    "delta-upsert": {
        "deletes the folder": (deeds.delete_folder, Parked(GONE, "The target is made anew")),
        "makes the table again": (deeds.delta_made_again, Parked(GONE, OTHER_TABLE, DROP)),
        "makes another table there": (deeds.delta_made_otherwise, Parked(GONE, OTHER_TABLE, DROP)),
        "restores the version before": (deeds.delta_restore_before, Parked(GONE, "Delete the folder, and read", DROP)),
        "deletes a row": (deeds.delta_delete, Parked(TOUCHED, "deleted or overwrote them", DROP)),
        "overwrites all rows": (deeds.delta_overwrite, Parked(TOUCHED, "deleted or overwrote them", DROP)),
        "deletes a row, and restores it when told": (
            deeds.delta_delete,
            Parked(TOUCHED, "Restore the version before that", UNDO),
        ),
        "overwrites all rows, and restores them when told": (
            deeds.delta_overwrite,
            Parked(TOUCHED, "Restore the version before that", UNDO),
        ),
        "changes a row": (deeds.delta_update, Parked(TOUCHED, r"changed them \(UPDATE\)", UNDO)),
        "changes a row beside a column of theirs": (
            deeds.delta_note_and_update,
            Parked(TOUCHED, r"changed them \(UPDATE\)", UNDO),
        ),
        "adds a constraint that rows break": (
            deeds.delta_constraint("qty IS NULL OR qty < 1000"),
            Parked(TOUCHED, r"sound \(qty IS NULL OR qty < 1000\)", DROP),
        ),
        "adds a constraint that rows keep": (deeds.delta_constraint("qty IS NULL OR qty >= 0"), HARMLESS),
        "adds a column with values": (deeds.delta_note, HARMLESS),
        "adds a row": (deeds.delta_append, HARMLESS),
        "deletes a row and restores it": (deeds.delta_delete_and_restore, HARMLESS),
        "changes a row and restores it": (deeds.delta_update_and_restore, HARMLESS),
        "compacts": (deeds.delta_compact, HARMLESS),
        "vacuums": (deeds.delta_vacuum, HARMLESS),
    },
    "delta-adopted-upsert": {
        "deletes a row": (deeds.delta_delete, Harmless(kept=frozenset({3}))),
    },
    "delta-tasks-upsert": {
        "makes the table again": (deeds.delta_made_again, Parked(GONE, OTHER_TABLE, DROP)),
    },
    "delta-changelog": {
        "deletes a row": (deeds.delta_delete, Harmless(kept=frozenset({3}))),
        "deletes the folder": (deeds.delete_folder, Parked(GONE, "The target is made anew")),
        "makes another table there": (deeds.delta_made_otherwise, Parked(GONE, OTHER_TABLE, DROP)),
        "restores the version before": (deeds.delta_restore_before, Parked(GONE, "Delete the folder, and read", DROP)),
        "adds a constraint that rows break": (
            deeds.delta_constraint("qty IS NULL OR qty < 1000"),
            Parked(TOUCHED, r"sound \(qty IS NULL OR qty < 1000\)", DROP),
        ),
    },
    "delta-partitioned-changelog": {
        "adds a constraint that rows break": (
            deeds.delta_constraint("qty IS NULL OR qty < 1000"),
            Parked(TOUCHED, r"sound \(qty IS NULL OR qty < 1000\)", DROP),
        ),
    },
    "iceberg-upsert": {
        "deletes the folder": (deeds.delete_folder, Parked(GONE, "The target is made anew")),
        "makes the table again": (deeds.iceberg_made_again, Parked(GONE, OTHER_TABLE, DROP)),
        "rolls back": (deeds.iceberg_roll_back, Parked(GONE, r"delete its folder\) and read its", DROP)),
        "rolls back, and forward when told": (deeds.iceberg_roll_back, Parked(GONE, "Roll it forward again", UNDO)),
        "rolls back and compacts": (
            deeds.iceberg_roll_back_and_compact,
            Parked(GONE, "was rolled back or replaced", DROP),
        ),
        "rolls back and maintains": (
            deeds.iceberg_roll_back_and_maintain,
            Parked(TOUCHED, "whether the table was rolled back meanwhile cannot be seen", DROP),
        ),
        "deletes a row": (
            deeds.iceberg_delete,
            Parked(TOUCHED, "deleted, changed or overwrote", deeds.iceberg_confirm),
        ),
        "changes rows": (
            deeds.iceberg_update,
            Parked(TOUCHED, "deleted, changed or overwrote", deeds.iceberg_confirm),
        ),
        "overwrites with fewer rows": (
            deeds.iceberg_overwrite,
            Parked(TOUCHED, "deleted, changed or overwrote", deeds.iceberg_confirm),
        ),
        "deletes a row and expires the snapshots": (
            deeds.iceberg_delete_and_expire,
            Parked(TOUCHED, "deleted, changed or overwrote", deeds.iceberg_confirm),
        ),
        "adds a file without field ids": (deeds.iceberg_add_file, Parked(TOUCHED, "theirs.parquet has no field", DROP)),
        "requires values in a column that rows have": (deeds.iceberg_require("qty"), HARMLESS),
        "makes the key the identifier field": (deeds.iceberg_require("id", identify=True), HARMLESS),
        "makes another column the identifier field": (
            deeds.iceberg_require("name", identify=True),
            Parked(TOUCHED, r"identifier fields \(name\), and its rows are unique by \(id\) only", UNDO),
        ),
        "compacts": (deeds.iceberg_compact, HARMLESS),
        "compacts and expires some snapshots": (deeds.iceberg_compact_and_expire_some, HARMLESS),
        "compacts often and expires all snapshots": (deeds.iceberg_maintain, HARMLESS),
        "adds a row": (deeds.iceberg_append, HARMLESS),
        "adds a row and deletes it": (deeds.iceberg_append_and_delete, HARMLESS),
        "deletes a row and rolls back": (deeds.iceberg_delete_and_roll_back, HARMLESS),
        "adds a column with values": (deeds.iceberg_note, HARMLESS),
    },
    "iceberg-adopted-upsert": {
        "deletes a row": (deeds.iceberg_delete, Harmless(kept=frozenset({3}))),
    },
    "iceberg-changelog": {
        "makes the key the identifier field": (
            deeds.iceberg_require("id", identify=True),
            Parked(TOUCHED, r"identifier fields \(id\), and a changelog has a row many times", UNDO),
        ),
        "deletes a row": (deeds.iceberg_delete, Harmless(kept=frozenset({3}))),
        "deletes the folder": (deeds.delete_folder, Parked(GONE, "The target is made anew")),
        "rolls back": (deeds.iceberg_roll_back, Parked(GONE, r"delete its folder\) and read its", DROP)),
    },
    "parquet": {
        "deletes the folder": (deeds.delete_folder, Parked(GONE, "The target is made anew")),
        "takes the files away": (deeds.take_files_away, HARMLESS),
    },
    "jsonl": {
        "deletes the folder": (deeds.delete_folder, Parked(GONE, "The target is made anew")),
        "makes the folder again": (deeds.files_made_again, Parked(GONE, OTHER_TABLE, DROP)),
        "adds a file": (deeds.files_append, HARMLESS),
        "changes values in files": (deeds.files_change, Harmless(kept=frozenset({1, 2, 3, 4}))),
        "takes the files away": (deeds.take_files_away, HARMLESS),
    },
    "postgres-upsert": {
        "drops the table": (sql("DROP TABLE shop.items"), Parked(GONE, "The target is made anew")),
        "makes the table again": (
            sql("DROP TABLE shop.items", "CREATE TABLE shop.items (id bigint PRIMARY KEY, name text, qty int)"),
            Parked(GONE, OTHER_TABLE, DROP),
        ),
        "renames the table": (sql("ALTER TABLE shop.items RENAME TO other"), Parked(GONE, "The target is made anew")),
        "renames the schema": (
            undone(("ALTER SCHEMA shop RENAME TO elsewhere",), ("ALTER SCHEMA elsewhere RENAME TO shop",)),
            Ends(r"shop\.(orders|items)"),
        ),
        "drops a column": (sql("ALTER TABLE shop.items DROP COLUMN name"), Parked(TOUCHED, r"\bname\b", DROP)),
        "renames a column": (
            sql("ALTER TABLE shop.items RENAME COLUMN name TO theirs"),
            Parked(TOUCHED, r"\bname\b", DROP),
        ),
        "has a column computed": (sql(COMPUTED), Parked(TOUCHED, f"computes|{COMPUTED_BY_SERVER}", DROP)),
        "makes a column narrower": (
            sql("ALTER TABLE shop.items ALTER qty TYPE smallint"),
            Parked(VALUE, "smallint out of range", DROP),
        ),
        "makes a column wider": (sql("ALTER TABLE shop.items ALTER qty TYPE numeric(30,0)"), HARMLESS),
        "makes a column round": (
            undone(
                ("ALTER TABLE shop.items ALTER qty TYPE numeric(30,-1)",),
                ("ALTER TABLE shop.items ALTER qty TYPE int",),
            ),
            Parked(TOUCHED, r"column qty as numeric\(30,-1\), and the pipeline made it integer", UNDO, quiet=True),
        ),
        "makes a column inexact": (
            undone(("ALTER TABLE shop.items ALTER qty TYPE real",), ("ALTER TABLE shop.items ALTER qty TYPE int",)),
            Parked(TOUCHED, "column qty as real, and the pipeline made it integer", UNDO, quiet=True),
        ),
        "makes a column pad": (
            undone(
                ("ALTER TABLE shop.items ALTER name TYPE char(20)",), ("ALTER TABLE shop.items ALTER name TYPE text",)
            ),
            Parked(TOUCHED, r"column name as character\(20\), and the pipeline made it text", UNDO, quiet=True),
        ),
        "makes a column cut": (
            undone(
                ("ALTER TABLE shop.items ALTER name TYPE varchar(40)",),
                ("ALTER TABLE shop.items ALTER name TYPE text",),
            ),
            Parked(TOUCHED, r"column name as character varying\(40\)", UNDO, quiet=True),
        ),
        "drops the key": (
            undone(
                ("ALTER TABLE shop.items DROP CONSTRAINT items_pkey",), ("ALTER TABLE shop.items ADD PRIMARY KEY (id)",)
            ),
            Parked(TOUCHED, r"has no primary key or unique index on \(id\)", UNDO, quiet=True),
        ),
        "adds a trigger after the row that writes to the table": (
            undone(WRITES_AFTER, ("DROP TRIGGER writes ON shop.items", "DROP FUNCTION shop.write()")),
            Parked(TOUCHED, r"has a trigger \(writes\) whose function writes to the table itself", UNDO, quiet=True),
        ),
        "adds a trigger after the statement that writes to the table": (
            undone(WRITES_BY_NAME, ("DROP TRIGGER writes ON shop.items", "DROP FUNCTION shop.write()")),
            Parked(TOUCHED, r"has a trigger \(writes\) whose function writes to the table itself", UNDO, quiet=True),
        ),
        "adds a trigger after the row that writes elsewhere": (
            sql(
                "CREATE TABLE shop.audit (what text)",
                f"{WRITE} 'BEGIN INSERT INTO shop.audit VALUES (''update items''); RETURN NULL; END'",
                "CREATE TRIGGER writes AFTER INSERT OR UPDATE ON shop.items FOR EACH ROW EXECUTE FUNCTION shop.write()",
            ),
            HARMLESS,
        ),
        "has row-level security that does not apply to its owner": (
            sql("ALTER TABLE shop.items ENABLE ROW LEVEL SECURITY"),
            HARMLESS,
        ),
        "adds a CHECK that rows break": (
            undone(
                ("ALTER TABLE shop.items ADD CONSTRAINT theirs CHECK (qty < 1000)",),
                ("ALTER TABLE shop.items DROP CONSTRAINT theirs",),
            ),
            Parked(VALUE, "theirs", UNDO),
        ),
        "adds a CHECK that rows keep": (
            sql("ALTER TABLE shop.items ADD CONSTRAINT theirs CHECK (qty < 1000000)"),
            HARMLESS,
        ),
        "adds a unique index that rows break": (
            undone((UNIQUE,), ("DROP INDEX shop.theirs",)),
            Parked(KEY, "theirs", UNDO),
        ),
        "adds a foreign key that rows break": (
            undone(REFERS, ("ALTER TABLE shop.items DROP CONSTRAINT kept",)),
            Parked(VALUE, "kept.*Drop the foreign keys of and to this table there", UNDO),
        ),
        "adds a trigger that bends rows": (
            undone(BENDS, ("DROP TRIGGER bends ON shop.items",)),
            Parked(TOUCHED, r"has a trigger \(bends\) before each row", UNDO, quiet=True),
        ),
        "adds a trigger that loses rows": (
            undone(LOSES, ("DROP TRIGGER loses ON shop.items",)),
            Parked(TOUCHED, r"has a trigger \(loses\) before each row", UNDO, quiet=True),
        ),
        "adds a rule": (
            undone(
                ("CREATE RULE away AS ON DELETE TO shop.items DO INSTEAD NOTHING",), ("DROP RULE away ON shop.items",)
            ),
            Parked(TOUCHED, r"has rewrite rules \(away\)", UNDO, quiet=True),
        ),
        "adds a child": (
            undone(("CREATE TABLE shop.child () INHERITS (shop.items)",), ("DROP TABLE shop.child",)),
            Parked(TOUCHED, r"has a child by INHERITS \(shop.child\)", UNDO, quiet=True),
        ),
        "makes it UNLOGGED": (
            undone(("ALTER TABLE shop.items SET UNLOGGED",), ("ALTER TABLE shop.items SET LOGGED",)),
            Parked(TOUCHED, "is UNLOGGED", UNDO, quiet=True),
        ),
        "locks the table": (
            session("BEGIN", "LOCK TABLE shop.items IN ACCESS EXCLUSIVE MODE"),
            Parked(BLOCKED, f"{LOCKED}.*pg_terminate_backend", UNDO),
        ),
        "has a row of the next epoch in a transaction": (
            session("BEGIN", "INSERT INTO shop.items VALUES (12, 'theirs', 1)"),
            Parked(BLOCKED, f"{LOCKED}.*pg_terminate_backend", UNDO),
        ),
        "locks its record": (
            session("BEGIN", ITS_RECORD),
            Parked(BLOCKED, f"{LOCKED}.*pg_terminate_backend", UNDO),
        ),
        "changes and deletes rows": (
            sql("UPDATE shop.items SET qty = 9 WHERE id = 2", "DELETE FROM shop.items WHERE id = 3"),
            Harmless(kept=frozenset({3})),
        ),
        "adds an index and a view": (
            sql("CREATE INDEX theirs ON shop.items (qty)", "CREATE VIEW shop.seen AS SELECT id FROM shop.items"),
            HARMLESS,
        ),
        "comments": (sql("COMMENT ON TABLE shop.items IS 'theirs'"), HARMLESS),
        "vacuums": (sql("VACUUM FULL shop.items"), HARMLESS),
    },
    "postgres-loader-upsert": {
        "takes UPDATE away": (
            undone(("REVOKE UPDATE ON shop.items FROM loader",), ("GRANT UPDATE ON shop.items TO loader",)),
            Parked(TOUCHED, "permission denied for table items", UNDO),
        ),
        "takes SELECT away": (
            undone(("REVOKE SELECT ON shop.items FROM loader",), ("GRANT SELECT ON shop.items TO loader",)),
            Parked(TOUCHED, "permission denied for table items", UNDO),
        ),
        "hides rows": (
            undone(
                (
                    "ALTER TABLE shop.items ENABLE ROW LEVEL SECURITY",
                    "ALTER TABLE shop.items FORCE ROW LEVEL SECURITY",
                ),
                (
                    "ALTER TABLE shop.items NO FORCE ROW LEVEL SECURITY",
                    "ALTER TABLE shop.items DISABLE ROW LEVEL SECURITY",
                ),
            ),
            Parked(TOUCHED, "row-level security", UNDO),
        ),
    },
    "postgres-changelog": {
        "locks the table": (
            session("BEGIN", "LOCK TABLE shop.items IN ACCESS EXCLUSIVE MODE"),
            Parked(BLOCKED, f"{LOCKED}.*pg_terminate_backend", UNDO),
        ),
    },
    "mysql-upsert": {
        "drops the table": (sql("DROP TABLE shop.items"), Parked(GONE, "The target is made anew")),
        "makes the table again": (
            sql("DROP TABLE shop.items", "CREATE TABLE shop.items (id bigint PRIMARY KEY, name text, qty int)"),
            Parked(GONE, OTHER_TABLE, DROP),
        ),
        "drops the database": (sql("DROP DATABASE shop"), Ends(r"shop\.(orders|items)")),
        "renames the table": (
            sql("RENAME TABLE shop.items TO shop.other"),
            Parked(GONE, "The target is made anew"),
        ),
        "changes the comment that tells it": (
            sql("ALTER TABLE shop.items COMMENT = 'theirs'"),
            Parked(GONE, r"shop\.items .*holds nothing of this pipeline", DROP),
        ),
        "drops a column": (sql("ALTER TABLE shop.items DROP COLUMN name"), Parked(TOUCHED, r"\bname\b", DROP)),
        "renames a column": (
            sql("ALTER TABLE shop.items RENAME COLUMN name TO theirs"),
            Parked(TOUCHED, r"\bname\b", DROP),
        ),
        "has a column computed": (sql(COMPUTED), Parked(TOUCHED, f"computes|{COMPUTED_BY_SERVER}", DROP)),
        "makes a column narrower": (
            sql("ALTER TABLE shop.items MODIFY qty smallint"),
            Parked(VALUE, "Out of range", DROP),
        ),
        "makes a column wider": (sql("ALTER TABLE shop.items MODIFY qty decimal(30,0)"), HARMLESS),
        "makes a column inexact": (
            undone(("ALTER TABLE shop.items MODIFY qty float",), ("ALTER TABLE shop.items MODIFY qty int",)),
            Parked(TOUCHED, "column qty as float, and the pipeline made it int", UNDO, quiet=True),
        ),
        "makes a column cut": (
            undone(
                ("ALTER TABLE shop.items MODIFY name varchar(40)",), ("ALTER TABLE shop.items MODIFY name longtext",)
            ),
            Parked(TOUCHED, r"column name as varchar\(40\), and the pipeline made it longtext", UNDO, quiet=True),
        ),
        "drops the key": (
            undone(("ALTER TABLE shop.items DROP PRIMARY KEY",), ("ALTER TABLE shop.items ADD PRIMARY KEY (id)",)),
            Parked(TOUCHED, r"has no primary key or unique index on \(id\)", UNDO, quiet=True),
        ),
        "adds a CHECK that rows break": (
            undone(
                ("ALTER TABLE shop.items ADD CONSTRAINT theirs CHECK (qty < 1000)",),
                ("ALTER TABLE shop.items DROP CONSTRAINT theirs",),
            ),
            Parked(VALUE, "theirs", UNDO),
        ),
        "adds a CHECK that rows keep": (
            sql("ALTER TABLE shop.items ADD CONSTRAINT theirs CHECK (qty < 1000000)"),
            HARMLESS,
        ),
        "adds a unique index that rows break": (
            undone((UNIQUE,), ("DROP INDEX theirs ON shop.items",)),
            Parked(KEY, "theirs", UNDO),
        ),
        "adds a foreign key that rows break": (
            undone(REFERS, ("ALTER TABLE shop.items DROP FOREIGN KEY kept",)),
            Parked(VALUE, "kept.*Drop the foreign keys of and to this table there", UNDO),
        ),
        "adds a trigger that bends rows": (
            undone(
                ("CREATE TRIGGER shop.bends BEFORE UPDATE ON shop.items FOR EACH ROW SET NEW.qty = 0",),
                ("DROP TRIGGER shop.bends",),
            ),
            Parked(TOUCHED, r"has a trigger \(bends\) before each row", UNDO, quiet=True),
        ),
        "gives it another engine": (
            undone(("ALTER TABLE shop.items ENGINE=MyISAM",), ("ALTER TABLE shop.items ENGINE=InnoDB",)),
            Parked(TOUCHED, "is a table of MyISAM", UNDO, quiet=True, stays=True),
        ),
        "locks its record": (
            session(f"USE {HOME}", "SET TRANSACTION ISOLATION LEVEL READ COMMITTED", "BEGIN", ITS_RECORD),
            Parked(BLOCKED, LOCKED, UNDO),
        ),
        "locks the table for writing": (session("LOCK TABLES shop.items WRITE"), Parked(BLOCKED, LOCKED, UNDO)),
        "locks the table for reading": (session("LOCK TABLES shop.items READ"), Parked(BLOCKED, LOCKED, UNDO)),
        "changes and deletes rows": (
            sql("UPDATE shop.items SET qty = 9 WHERE id = 2", "DELETE FROM shop.items WHERE id = 3"),
            Harmless(kept=frozenset({3})),
        ),
        "adds an index and a view": (
            sql("CREATE INDEX theirs ON shop.items (qty)", "CREATE VIEW shop.seen AS SELECT id FROM shop.items"),
            HARMLESS,
        ),
        "optimizes": (sql("OPTIMIZE TABLE shop.items"), HARMLESS),
    },
    "mysql-loader-upsert": {
        "takes UPDATE away": (
            undone(
                (*OF_EACH_TABLE, "REVOKE UPDATE ON shop.items FROM loader"), ("GRANT UPDATE ON shop.items TO loader",)
            ),
            Parked(TOUCHED, "UPDATE command denied", UNDO),
        ),
        "takes INSERT away": (
            undone(
                (*OF_EACH_TABLE, "REVOKE INSERT ON shop.items FROM loader"), ("GRANT INSERT ON shop.items TO loader",)
            ),
            Parked(TOUCHED, "INSERT command denied", UNDO),
        ),
    },
    "mongodb-upsert": {
        "drops the collection": (
            shop(lambda database: database.drop_collection("items")),
            Parked(GONE, "The target is made anew"),
        ),
        "makes the collection again": (shop(deeds.made_again), Parked(GONE, "Drop the collection and read its", DROP)),
        "drops the database": (
            shop(lambda database: database.client.drop_database("shop")),
            Ends(r"shop\.(orders|items)"),
        ),
        "renames the collection": (
            collection(lambda items: items.rename("other")),
            Parked(GONE, "The target is made anew"),
        ),
        "sets a validator that documents break": (
            validator({"$or": [{"qty": {"$lt": 1000}}, {"_id": 2}]}),
            Parked(VALUE, "Document failed validation", UNDO),
        ),
        "sets a validator that documents keep": (validator({"qty": {"$gte": 0}}), HARMLESS),
        "adds a unique index that documents break": (
            collection(lambda items: items.create_index("qty", unique=True, name="theirs")),
            Parked(KEY, r"E11000.*shop\.items", collection(lambda items: items.drop_index("theirs"))),
        ),
        "takes the rights away": (
            deeds.deny,
            Parked(TOUCHED, r"not authorized on shop to execute command \w+\. Grant it, as with", UNDO),
        ),
        "adds an index": (collection(lambda items: items.create_index("qty")), HARMLESS),
        "changes a document": (
            collection(lambda items: items.update_one({"_id": 2}, {"$set": {"qty": 9}})),
            HARMLESS,
        ),
        "deletes a document": (
            collection(lambda items: items.delete_one({"_id": 3})),
            Harmless(kept=frozenset({3})),
        ),
    },
    "mongodb-parts-upsert": {
        # Each part is a transaction of its own.
        "adds a unique index that documents break": (
            collection(lambda items: items.create_index("qty", unique=True, name="theirs")),
            Parked(KEY, r"E11000.*shop\.items", collection(lambda items: items.drop_index("theirs")), stays=True),
        ),
        "takes the rights away": (
            deeds.deny,
            Parked(TOUCHED, r"not authorized on shop to execute command \w+\. Grant it, as with", UNDO, partly=True),
        ),
    },
    "mongodb-changelog": {
        "drops the collection": (
            shop(lambda database: database.drop_collection("items")),
            Parked(GONE, "The target is made anew"),
        ),
    },
    "kafka": {
        "deletes the topic": (deeds.topic_delete, Parked(GONE, "holds nothing of this pipeline")),
        "makes the topic again": (deeds.topic_made_again, Parked(GONE, "holds nothing of this pipeline")),
        "deletes its records": (deeds.topic_forget, Parked(GONE, "holds nothing of this pipeline", DROP)),
        "adds a message": (deeds.topic_message, HARMLESS),
    },
    "kafka-parts": {
        "makes the topic again": (deeds.topic_made_again, Parked(GONE, "holds nothing of this pipeline")),
    },
}


DELTA, ICEBERG, FILES = "Delta", "Iceberg", "Parquet, JSON Lines"
DELETED = "delete rows of a changelog, or of a table that was adopted"
#: The cells that play each one of the manual's table of lakes ("Others touch a target").
MANUAL: Mapping[tuple[str, str], Sequence[tuple[str, str]]] = {
    ("set identifier fields without the key, or any for a changelog", ICEBERG): [
        ("iceberg-upsert", "makes another column the identifier field"),
        ("iceberg-changelog", "makes the key the identifier field"),
    ],
    ("append rows", DELTA): [("delta-upsert", "adds a row")],
    ("append rows", ICEBERG): [("iceberg-upsert", "adds a row")],
    ("append rows", FILES): [("jsonl", "adds a file")],
    ("compact, expire, vacuum", DELTA): [("delta-upsert", "compacts"), ("delta-upsert", "vacuums")],
    ("compact, expire, vacuum", ICEBERG): [
        ("iceberg-upsert", "compacts"),
        ("iceberg-upsert", "compacts often and expires all snapshots"),
    ],
    ("take files of rows away", FILES): [("jsonl", "takes the files away"), ("parquet", "takes the files away")],
    ("delete or overwrite rows of an upsert target that raycdc made", DELTA): [
        ("delta-upsert", "deletes a row"),
        ("delta-upsert", "overwrites all rows"),
    ],
    ("delete or overwrite rows of an upsert target that raycdc made", ICEBERG): [
        ("iceberg-upsert", "deletes a row"),
        ("iceberg-upsert", "overwrites with fewer rows"),
    ],
    ("change values in such rows (UPDATE, MERGE)", DELTA): [("delta-upsert", "changes a row")],
    ("change values in such rows (UPDATE, MERGE)", ICEBERG): [("iceberg-upsert", "changes rows")],
    ("change values in such rows (UPDATE, MERGE)", FILES): [("jsonl", "changes values in files")],
    (DELETED, DELTA): [("delta-changelog", "deletes a row"), ("delta-adopted-upsert", "deletes a row")],
    (DELETED, ICEBERG): [("iceberg-changelog", "deletes a row"), ("iceberg-adopted-upsert", "deletes a row")],
    (DELETED, FILES): [("jsonl", "takes the files away")],
    ("restore or roll back to before the last epoch", DELTA): [("delta-upsert", "restores the version before")],
    ("restore or roll back to before the last epoch", ICEBERG): [("iceberg-upsert", "rolls back")],
    ("restore or roll back to before the last epoch", FILES): [("jsonl", "takes the files away")],
    ("restore to the last epoch", DELTA): [("delta-upsert", "deletes a row and restores it")],
    ("restore to the last epoch", ICEBERG): [("iceberg-upsert", "deletes a row and rolls back")],
    ("delete the target", DELTA): [("delta-upsert", "deletes the folder")],
    ("delete the target", ICEBERG): [("iceberg-upsert", "deletes the folder")],
    ("delete the target", FILES): [("jsonl", "deletes the folder"), ("parquet", "deletes the folder")],
    ("delete it and create it again", DELTA): [("delta-upsert", "makes the table again")],
    ("delete it and create it again", ICEBERG): [("iceberg-upsert", "makes the table again")],
    ("delete it and create it again", FILES): [("jsonl", "makes the folder again")],
}
#: Rows of the manual's table that are no deed between two epochs, or have a longer story.
TOLD_BY = {
    "add a column and give it values": touched.test_a_column_of_others_keeps_its_values_when_rows_are_updated,
    "drop a column and add it again": neighbours.test_a_column_that_others_dropped_and_added_again_is_another_one,
    "give a column another type (a rewrite with `overwriteSchema`, a wider type)": (
        demanding.test_a_column_that_others_gave_another_type_parks_the_table
    ),
    "delete or damage a file of the log or of the metadata": damaged.test_a_damaged_file_parks_its_table,
    "vacuum or clean up files that are staged": staged.test_staged_files_that_a_cleaning_tool_took_are_staged_again,
    'replace it by another pipeline (`on_existing = "replace"`)': (
        touched.test_a_pipeline_whose_target_another_one_replaced_writes_no_more
    ),
    "add CHECK or NOT NULL": demanding.test_not_null_of_an_adopted_delta_table_holds_for_every_commit,
    "make it with a generated column": (
        demanding.test_a_generated_column_of_an_adopted_delta_table_is_computed_or_refused
    ),
    "make it with an identity column": demanding.test_an_identity_column_of_a_delta_table_is_refused_by_name,
}


class Moment(StrEnum):
    """When the deed happens."""

    RUNNING = "running"
    START = "between drivers"
    QUIET = "before a start without rows"


@dataclass
class Play:
    """Two tables with a few epochs; the target of shop.items is what others do something to."""

    world: World
    moment: Moment
    #: What people were told of: targets that were parked, and what was waited for.
    parked: dict[str, ParkedTarget] = field(default_factory=dict)
    waited: list[str] = field(default_factory=list)
    beginnings: dict[str, int] = field(default_factory=lambda: {"shop.orders": 0, "shop.items": 0})

    def __post_init__(self) -> None:
        self.orders, self.items = self.world.script.table("shop.orders"), self.world.script.table("shop.items")
        self.loop = self._loop()
        for table in (self.orders, self.items):
            table.read([{"id": key, "name": "read", "qty": key} for key in range(1, 5)])
        self.epoch()
        for table in (self.orders, self.items):
            table.update((1,), name="changed")
        self.epoch()

    def _loop(self) -> EpochLoop:
        waiting = SinkOutagePolicy("", self.waited.append, RetryPolicy(retry_s=2.0))
        sink = self.world.sink(
            on_existing="merge" if "-adopted-" in self.world.kind else "fail",
            # No message of these topics says that all rows are gone.
            left_out=frozenset({"truncate_table"} if self.world.kafka is not None else ()),
        )
        return self.world.loop(sink, parking=ParkingPolicy(on_parked=self.parked.update, waiting=waiting))

    def epoch(self) -> None:
        """Seal what the tables did, and commit it: in the driver that runs, or in the next one."""
        manifest = self.world.script.seal(incarnations=self.beginnings)
        if self.moment is Moment.RUNNING:
            commit(self.loop, manifest)
        else:
            self.starts()

    def starts(self) -> None:
        self.world.script.generation = self.world.store.generations.next()
        self._loop().recover()

    def changes(self) -> None:
        """One more epoch, whose values fit into few types and under few rules."""
        for table in (self.orders, self.items):
            table.update((2,), name="changed", qty=LARGE)
            table.delete((4,))
            for key in (10, 11, 12):
                table.insert({"id": key, "name": "new", "qty": LARGE})
        self.epoch()

    def resnapshot_requested(self) -> None:
        """The source reads shop.items again, as somebody asked for it."""
        rows = self.items.contents()
        if self.world.kafka is None:
            self.items.truncate()
        self.items.rows.clear()
        self.items.changelog.clear()
        self.items.changes += [
            TruncateTableEvent(self.items.id),
            CreateTableEvent(self.items.id, self.items.schema),
        ]
        self.beginnings["shop.items"] += 1
        self.epoch()
        self.items.read(rows)
        self.epoch()
        for table in (self.orders, self.items):
            table.delete((12,))
        self.epoch()

    def entry(self) -> ParkedTarget | None:
        """What the newest record says of shop.items; of others it says nothing."""
        record = self.world.store.last_commit()
        assert record is not None
        assert set(record.parked) <= {"shop.items"}
        return record.parked.get("shop.items")

    def rows(self) -> list[Row] | None:
        """Of shop.items, in some order; None if they cannot be read, as the target or a lock does not let anybody."""
        try:
            rows = self.world.rows(self.items)
        except deeds.NOT_THERE:
            return None
        return sorted(rows, key=repr)

    def require_whole(self, table: ScriptedTable, *, kept: frozenset[int] = frozenset()) -> None:
        """The target has what `table` has, but for rows of others, and those that are `kept` as others left them."""
        names = [column.name for column in table.schema.columns]
        rows = self.world.rows(table)
        if self.world.write == "upsert":
            found = sorted(({name: row[name] for name in names} for row in rows if row["id"] != 50), key=table.key)
            assert [row for row in found if row["id"] not in kept] == [
                row for row in table.contents() if row["id"] not in kept
            ]
            return
        # Behind what there was before a new beginning, and without what a loader took away.
        wanted = list(table.changelog if self.world.kafka is None else as_messages(table))
        got = sorted(rows, key=lambda row: row["_seq"])
        if self.world.kind == "kafka-parts":
            got, wanted = sorted(got, key=lambda row: row["id"]), sorted(wanted, key=lambda change: change[1]["id"])
        kept = kept | {50}
        told = [
            (row["_op"], {name: row[name] for name in names})
            for row in got
            if row["_op"] != "T" and row["id"] not in kept
        ]
        wanted = [(op, row) for op, row in wanted if row["id"] not in kept]
        assert told
        count = min(len(told), len(wanted))
        assert told[-count:] == wanted[-count:]


def require(play: Play, reaction: Reaction, before: list[Row] | None, undo: ExitStack) -> None:
    """The deed is done. What follows is the `reaction`, and the way out that people are told mends it; `before` has the
    rows of shop.items before the deed.
    """
    if isinstance(reaction, Ends):
        with pytest.raises((SinkError, StateError), match=reaction.text):
            play.changes()
        assert (play.entry(), play.parked) == (None, {})
        return
    is_locked = isinstance(reaction, Parked) and reaction.reason is BLOCKED
    if not is_locked:
        before = play.rows()
    play.changes()
    play.require_whole(play.orders)
    entry = play.entry()
    match reaction:
        case Harmless(kept=kept):
            assert entry is None, entry
            play.require_whole(play.items, kept=kept)
            return
        case Parked():
            assert entry is not None, "it was not noticed"
    text = entry.text
    assert entry.reason is reaction.reason, text
    assert re.search(reaction.text, text, re.DOTALL), text
    assert "raycdc tables resnapshot CONFIG shop.items" in text
    assert str(LARGE) not in text, "values of rows are nobody's business"
    assert list(play.parked) == ["shop.items"]
    assert ("may have some rows of epoch" in text) is (reaction.stays or reaction.partly), text
    assert ("Nothing of shop.items was written" in text) is not (reaction.stays or reaction.partly), text
    if not is_locked and not reaction.stays:
        assert play.rows() == before, "something was written since the deed"
    # It stays so at the next start, which waits for nothing.
    play.waited.clear()
    play.orders.insert({"id": 20, "name": "new", "qty": 20})
    play.epoch()
    play.require_whole(play.orders)
    assert (play.entry(), play.waited) == (entry, [])
    match reaction.way_out:
        case WayOut.NOTHING:
            pass
        case WayOut.UNDO:
            undo.close()
            assert not is_locked or play.rows() == before
        case WayOut.DROP:
            undo.pop_all()
            play.world.lose(play.items)
        case mend:
            mend(play.world)
    play.resnapshot_requested()
    again = play.entry()
    assert again is None, again.text
    for table in (play.orders, play.items):
        play.require_whole(table)


def cells() -> Iterator[Any]:
    for kind, row in TABLE.items():
        marks = [] if kind.partition("-")[0] in ("delta", "iceberg", "parquet", "jsonl") else [pytest.mark.server]
        for deed, (_, reaction) in row.items():
            moments = {Moment.RUNNING, Moment.START}
            if isinstance(reaction, Ends):
                moments -= {Moment.RUNNING}
            if isinstance(reaction, Parked) and reaction.quiet:
                moments |= {Moment.QUIET}
            for moment in sorted(moments):
                yield pytest.param(kind, deed, moment, marks=marks, id=f"{kind}: {deed}, {moment}")


@pytest.fixture
def play(
    request: pytest.FixtureRequest, kind: str, moment: Moment, tmp_path: Path, brief_waits: None
) -> Iterator[Play]:
    """Where the kind says so, of a pipeline whose user of a database is `loader`, or whose targets were there first."""
    world = world_of(request, kind, tmp_path)
    if "-adopted-" in kind:
        (tmp_path / "earlier").mkdir()
        Play(world_of(request, kind, tmp_path / "earlier"), moment)
        shutil.copytree(tmp_path / "earlier" / "lake", tmp_path / "lake")
    if "-loader-" not in kind:
        yield Play(world, moment)
        return
    assert world.server is not None
    with deeds.loader(world.server):
        yield Play(world, moment)


@pytest.mark.parametrize(("kind", "deed", "moment"), list(cells()))
def test_the_reaction_to_what_another_writer_does(play: Play, kind: str, deed: str, moment: Moment) -> None:
    act, reaction = TABLE[kind][deed]
    before = play.rows()
    with ExitStack() as undo:
        if (undoes := act(play.world)) is not None:
            undo.callback(undoes)
        if moment is not Moment.QUIET:
            require(play, reaction, before, undo)
            return
        assert isinstance(reaction, Parked)
        play.starts()
        assert [(name, entry.reason) for name, entry in play.parked.items()] == [("shop.items", reaction.reason)]
        assert re.search(reaction.text, play.parked["shop.items"].text)


@pytest.mark.parametrize("moment", [Moment.RUNNING, Moment.START])
@pytest.mark.parametrize(
    ("kind", "deed", "wrong"),
    [
        ("delta-upsert", "changes a row", HARMLESS),
        ("delta-upsert", "changes a row", Parked(GONE, "", UNDO)),
        ("delta-upsert", "changes a row", Parked(TOUCHED, "other words", UNDO)),
        ("delta-upsert", "adds a row", Parked(TOUCHED, "")),
        ("delta-adopted-upsert", "deletes a row", HARMLESS),
        ("jsonl", "changes values in files", HARMLESS),
    ],
)
def test_a_wrong_reaction_in_the_table_would_be_noticed(
    play: Play, kind: str, deed: str, wrong: Reaction, moment: Moment
) -> None:
    before = play.rows()
    TABLE[kind][deed][0](play.world)
    with ExitStack() as undo, pytest.raises(AssertionError):
        require(play, wrong, before, undo)


def outcomes_of_the_manual() -> dict[tuple[str, str], str]:
    """The outcome in each cell of the manual's table, by row and store."""
    manual = Path(__file__).parents[2] / "raycdc" / "manual" / "targets.md"
    text = manual.read_text().partition("## Others touch a target")[2].partition("\n## ")[0]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:2] == "| "]
    stores = lines[0][1:]
    cells = ((row[0], store, outcome) for row in lines[1:] for store, outcome in zip(stores, row[1:], strict=True))
    return {(row, store): outcome for row, store, outcome in cells if outcome != "–"}


def test_each_cell_of_the_manual_is_played_and_has_that_outcome() -> None:
    said = outcomes_of_the_manual()
    assert {row for row, _ in said} >= TOLD_BY.keys()
    assert {cell for cell in said if cell[0] not in TOLD_BY} == MANUAL.keys()
    for cell, played in MANUAL.items():
        parks = {isinstance(TABLE[kind][deed][1], Parked) for kind, deed in played}
        assert parks == {said[cell] == "parks"}, cell
        assert said[cell] in ("parks", "harmless", "not noticed")
