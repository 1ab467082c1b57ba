"""Stories of columns that come, go, move and are renamed, and of what a statement about them may look like."""

from __future__ import annotations

from tests.blackbox.story import AGAIN, TOLD, Lenient, Server, Sink, Story

MARIADB, MYSQL80 = (Server.MARIADB,), (Server.MYSQL80,)

STORIES = (
    Story(
        "add_column_last",
        """
        ALTER TABLE {t} ADD COLUMN c INT
        INSERT INTO {t} VALUES (7, 70, 'seven', 7)
        UPDATE {t} SET c = 8 WHERE id = 1
        """,
    ),
    Story(
        "add_column_first",
        """
        ALTER TABLE {t} ADD COLUMN c BIGINT UNSIGNED FIRST
        INSERT INTO {t} VALUES (18446744073709551615, 7, 70, 'seven')
        """,
    ),
    Story(
        "add_column_after",
        """
        ALTER TABLE {t} ADD c VARCHAR(10) NOT NULL DEFAULT 'it''s' AFTER id
        INSERT INTO {t} (id, a) VALUES (7, 70)
        UPDATE {t} SET c = 'other' WHERE id IN (1, 7)
        """,
    ),
    Story(
        "add_columns_in_brackets",
        """
        ALTER TABLE {t} ADD COLUMN (c INT NULL DEFAULT 5, d TEXT, e DECIMAL(10,2) NOT NULL DEFAULT '1.50')
        INSERT INTO {t} VALUES (7, 70, 'seven', NULL, 'text', -99999999.99)
        """,
    ),
    Story(
        "add_column_default_now",
        """
        ALTER TABLE {t} ADD COLUMN c DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP
        INSERT INTO {t} (id, a) VALUES (7, 70)
        """,
        AGAIN,
    ),
    Story(
        "add_column_default_expression",
        """
        ALTER TABLE {t} ADD COLUMN c VARCHAR(36) NOT NULL DEFAULT (CONCAT('id ', id))
        INSERT INTO {t} (id, a) VALUES (7, 70)
        """,
        AGAIN,
        servers=MARIADB,
    ),
    Story(
        "add_generated_virtual",
        """
        ALTER TABLE {t} ADD COLUMN c INT AS (a * 2) VIRTUAL
        INSERT INTO {t} (id, a) VALUES (7, 70)
        UPDATE {t} SET a = 11 WHERE id = 1
        """,
        AGAIN,
    ),
    Story(
        "add_generated_stored",
        """
        ALTER TABLE {t} ADD COLUMN c VARCHAR(80) AS (CONCAT(b, '-', id)) STORED AFTER id
        INSERT INTO {t} (id, a, b) VALUES (7, 70, 'seven')
        """,
        AGAIN,
    ),
    Story(
        "add_not_null_without_default",
        """
        ALTER TABLE {t} ADD COLUMN c INT NOT NULL, ADD COLUMN d VARCHAR(5) NOT NULL
        INSERT INTO {t} VALUES (7, 70, 'seven', 1, 'x')
        """,
    ),
    Story(
        "default_of_an_added_column_in_the_same_statement",
        """
        ALTER TABLE {t} ADD COLUMN c INT NOT NULL, ALTER COLUMN c DROP DEFAULT
        INSERT INTO {t} VALUES (7, 70, 'seven', 7)
        ALTER TABLE {t} ADD COLUMN d INT, ALTER COLUMN d SET DEFAULT 5, ALTER a SET DEFAULT 3
        INSERT INTO {t} (id, c) VALUES (8, 8)
        """,
        servers=MARIADB,
    ),
    Story(
        "drop_column",
        """
        UPDATE {t} SET a = 11 WHERE id = 1
        ALTER TABLE {t} DROP COLUMN a
        INSERT INTO {t} VALUES (7, 'seven')
        """,
        lenient=Lenient({"a": ("int", {1: 11, 4: 40, 105: 50})}),
    ),
    Story(
        "drop_and_add_in_one_statement",
        """
        ALTER TABLE {t} DROP COLUMN a, ADD COLUMN c INT DEFAULT 3 AFTER id
        INSERT INTO {t} VALUES (7, 4, 'seven')
        """,
        lenient=Lenient({"a": ("int", {1: 10, 4: 40, 105: 50})}),
    ),
    Story(
        "drop_and_add_the_same_name",
        """
        ALTER TABLE {t} DROP COLUMN a
        INSERT INTO {t} VALUES (7, 'seven')
        ALTER TABLE {t} ADD COLUMN a INT
        UPDATE {t} SET a = 1 WHERE id = 1
        """,
        where={Sink.JSONL: TOLD},
    ),
    Story(
        "rename_column",
        """
        ALTER TABLE {t} RENAME COLUMN a TO aa
        INSERT INTO {t} VALUES (7, 70, 'seven')
        UPDATE {t} SET aa = NULL WHERE id = 1
        """,
        lenient=Lenient({"a": ("int", {4: 40, 105: 50})}),
    ),
    Story(
        "change_column",
        """
        ALTER TABLE {t} CHANGE COLUMN a c INT COMMENT 'was a' AFTER b
        INSERT INTO {t} VALUES (7, 'seven', 70)
        """,
        lenient=Lenient({"a": ("int", {1: 10, 4: 40, 105: 50})}),
    ),
    Story(
        "swap_column_names",
        """
        ALTER TABLE {t} RENAME COLUMN a TO b, RENAME COLUMN b TO a
        UPDATE {t} SET b = 1 WHERE id = 1
        """,
        setup="""
        CREATE TABLE {t} (id INT PRIMARY KEY, a INT, b INT)
        INSERT INTO {t} VALUES (1, 10, 100), (2, 20, 200), (3, NULL, 300), (4, 40, 400), (5, 50, 500), (6, 60, 600)
        """,
        where={Sink.JSONL: TOLD},
    ),
    Story(
        "renamed_and_its_name_taken_again",
        """
        ALTER TABLE {t} RENAME COLUMN a TO c
        INSERT INTO {t} VALUES (7, 70, 'seven')
        ALTER TABLE {t} ADD COLUMN a INT DEFAULT 9, RENAME COLUMN b TO d
        INSERT INTO {t} VALUES (8, 80, 'eight', 8)
        ALTER TABLE {t} DROP COLUMN c, CHANGE a c INT
        UPDATE {t} SET d = 'one and a half' WHERE id = 1
        """,
        where={Sink.JSONL: TOLD},
        lenient=Lenient(
            {"a": ("int", {3: 9, 4: 9, 7: 9, 8: 8, 105: 9}), "b": ("varchar", {4: "four", 7: "seven", 105: "fünf"})}
        ),
    ),
    Story(
        "renamed_to_a_name_that_stayed",
        """
        ALTER TABLE {t} RENAME COLUMN a TO c
        UPDATE {t} SET c = 21 WHERE id = 2
        ALTER TABLE {t} RENAME COLUMN c TO a
        INSERT INTO {t} VALUES (7, 70, 'seven')
        """,
        where={Sink.JSONL: TOLD},
        lenient=Lenient({"c": ("int", {1: 10, 4: 40, 105: 50})}),
    ),
    Story(
        "renamed_and_made_wider",
        """
        ALTER TABLE {t} CHANGE a c BIGINT, CHANGE b d TEXT
        INSERT INTO {t} VALUES (7, 5000000000, 'seven')
        """,
        lenient=Lenient({"a": ("int", {1: 10, 4: 40, 105: 50}), "b": ("varchar", {1: "one", 4: "four", 105: "fünf"})}),
    ),
    Story(
        "renamed_made_anew_and_renamed_again",
        """
        ALTER TABLE {t} RENAME COLUMN a TO c
        INSERT INTO {t} VALUES (7, 70, 'seven')
        DROP TABLE {t}
        CREATE TABLE {t} (id INT PRIMARY KEY, a INT, b VARCHAR(40))
        INSERT INTO {t} VALUES (1, 11, 'new')
        ALTER TABLE {t} RENAME COLUMN a TO c
        INSERT INTO {t} VALUES (2, 22, 'newer')
        """,
        AGAIN,
        touch=False,
        lenient=Lenient({"a": ("int", {})}),
    ),
    Story(
        "added_with_a_default_and_renamed",
        """
        ALTER TABLE {t} ADD COLUMN c INT NOT NULL DEFAULT 5
        ALTER TABLE {t} RENAME COLUMN c TO d
        ALTER TABLE {t} MODIFY d BIGINT NOT NULL
        INSERT INTO {t} VALUES (7, 70, 'seven', 5000000000)
        """,
        lenient=Lenient({"c": ("int", {1: 5, 3: 5, 4: 5, 105: 5})}),
    ),
    Story(
        "moved_behind_a_column_in_another_case",
        """
        ALTER TABLE {t} MODIFY id INT AFTER A, ADD COLUMN c INT AFTER `ID`
        INSERT INTO {t} VALUES (70, 7, 1, 'seven')
        """,
    ),
    Story(
        "change_case_of_a_column",
        """
        ALTER TABLE {t} CHANGE a A INT
        INSERT INTO {t} VALUES (7, 70, 'seven')
        """,
        lenient=Lenient(
            # A lake has no two columns whose names differ in case only.
            {"a": ("int", {1: 10, 4: 40, 105: 50})},
            sinks=(Sink.POSTGRES,),
        ),
    ),
    Story(
        "move_columns",
        """
        ALTER TABLE {t} MODIFY b VARCHAR(40) FIRST
        INSERT INTO {t} VALUES ('seven', 7, 70)
        ALTER TABLE {t} MODIFY id INT AFTER a, MODIFY b VARCHAR(40) AFTER id
        INSERT INTO {t} VALUES (80, 8, 'eight')
        """,
    ),
    Story(
        "set_and_drop_defaults",
        """
        ALTER TABLE {t} ALTER a SET DEFAULT 5, ALTER COLUMN b SET DEFAULT 'default'
        INSERT INTO {t} (id) VALUES (7)
        ALTER TABLE {t} ALTER a DROP DEFAULT
        INSERT INTO {t} (id, a) VALUES (8, 80)
        """,
    ),
    Story(
        "not_null_and_null_again",
        """
        DELETE FROM {t} WHERE a IS NULL
        ALTER TABLE {t} MODIFY a INT NOT NULL
        INSERT INTO {t} VALUES (7, 70, 'seven')
        ALTER TABLE {t} MODIFY a INT NULL
        UPDATE {t} SET a = NULL WHERE id = 1
        """,
    ),
    Story(
        "invisible_column",
        """
        ALTER TABLE {t} ADD COLUMN c INT INVISIBLE DEFAULT 3
        INSERT INTO {t} (id, a, b, c) VALUES (7, 70, 'seven', 7)
        INSERT INTO {t} VALUES (8, 80, 'eight')
        """,
        servers=MARIADB,
    ),
    Story(
        "instant",
        """
        ALTER TABLE {t} ADD COLUMN c INT DEFAULT 3, ALGORITHM=INSTANT
        INSERT INTO {t} VALUES (7, 70, 'seven', 7)
        ALTER TABLE {t} DROP COLUMN a, ALGORITHM=INPLACE, LOCK=NONE
        INSERT INTO {t} VALUES (8, 'eight', 8)
        """,
        lenient=Lenient({"a": ("int", {1: 10, 4: 40, 7: 70, 105: 50})}),
    ),
    Story(
        "many_changes_in_one_statement",
        """
        ALTER TABLE {t} ADD c INT DEFAULT 1 AFTER id, DROP a, CHANGE b bb VARCHAR(60), ADD d DATE, ADD INDEX ix (c)
        INSERT INTO {t} VALUES (7, 70, 'seven', '2024-02-29')
        """,
        lenient=Lenient(
            {"a": ("int", {1: 10, 4: 40, 105: 50}), "b": ("varchar", {1: "one", 4: "four", 105: "fünf"})},
        ),
    ),
    Story(
        "comments_and_quotes_in_a_statement",
        """
        ALTER /* ' ; ` */ TABLE {t} ADD `c``d"` INT COMMENT 'it''s; "c" -- no' # the end ;
        INSERT INTO {t} VALUES (7, 70, 'seven; -- ''', 7)
        """,
    ),
    Story(
        "versioned_comments",
        """
        /*!50100 ALTER TABLE {t} ADD COLUMN c INT DEFAULT 5 */
        ALTER TABLE {t} /*!99999 DROP COLUMN a, */ ADD COLUMN d INT
        INSERT INTO {t} VALUES (7, 70, 'seven', 1, 2)
        """,
    ),
    Story(
        "mariadb_comments",
        """
        ALTER TABLE {t} /*M!100100 ADD COLUMN c INT DEFAULT 5, */ ADD COLUMN d INT
        INSERT INTO {t} VALUES (7, 70, 'seven', 1, 2)
        """,
        servers=MARIADB,
    ),
    Story(
        "if_exists",
        """
        ALTER TABLE IF EXISTS {t} ADD COLUMN IF NOT EXISTS c INT, ADD COLUMN IF NOT EXISTS a VARCHAR(9)
        ALTER TABLE {t} DROP COLUMN IF EXISTS nothing, DROP COLUMN IF EXISTS b
        INSERT INTO {t} VALUES (7, 70, 7)
        """,
        servers=MARIADB,
        lenient=Lenient({"b": ("varchar", {1: "one", 4: "four", 105: "fünf"})}),
    ),
    Story(
        "if_not_exists_of_what_the_statement_adds",
        """
        ALTER TABLE {t} ADD COLUMN c INT, ADD COLUMN IF NOT EXISTS c INT
        ALTER TABLE {t} ADD COLUMN IF NOT EXISTS d INT, ADD COLUMN IF NOT EXISTS d VARCHAR(9) DEFAULT 'x'
        INSERT INTO {t} VALUES (7, 70, 'seven', 7, 8)
        """,
        servers=MARIADB,
    ),
    Story(
        "if_exists_of_a_column",
        """
        ALTER TABLE {t} ALTER COLUMN IF EXISTS nothing SET DEFAULT 5, ALTER COLUMN IF EXISTS a SET DEFAULT 6
        ALTER TABLE {t} ALTER COLUMN IF EXISTS nothing DROP DEFAULT, MODIFY COLUMN IF EXISTS nothing INT
        ALTER TABLE {t} CHANGE COLUMN IF EXISTS nothing no INT, RENAME COLUMN IF EXISTS nothing TO no
        INSERT INTO {t} (id) VALUES (7)
        """,
        servers=MARIADB,
    ),
    Story(
        "ansi_quotes",
        """
        SET SESSION sql_mode = 'ANSI_QUOTES'
        ALTER TABLE {t} ADD COLUMN "select" INT, ADD COLUMN "a-b" VARCHAR(9) DEFAULT 'x'
        INSERT INTO {t} VALUES (7, 70, 'seven', 7, 'y')
        """,
    ),
    Story(
        "column_names_that_are_words",
        """
        ALTER TABLE {t} ADD COLUMN `table` INT, ADD `index` INT DEFAULT 4, ADD `first` INT FIRST, \
            ADD `after` INT AFTER a
        INSERT INTO {t} VALUES (1, 7, 70, 2, 'seven', 3, 4)
        """,
    ),
    Story(
        "column_name_of_other_letters",
        """
        ALTER TABLE {t} ADD COLUMN `größe` INT, ADD COLUMN `数` VARCHAR(9) DEFAULT '中'
        INSERT INTO {t} VALUES (7, 70, 'seven', 7, '文')
        """,
    ),
    Story(
        "column_names_that_a_lake_cannot_hold",
        """
        ALTER TABLE {t} ADD COLUMN `unit (SI)` VARCHAR(9) DEFAULT 'kg', ADD COLUMN `q;2` INT, ADD COLUMN `col x` INT
        INSERT INTO {t} VALUES (7, 70, 'seven', 'm', 2, 3)
        """,
        renamed={Sink.DELTA: {"unit (SI)": "unit__SI_", "q;2": "q_2", "col x": "col_x"}},
    ),
    Story(
        "columns_of_an_empty_table",
        """
        DELETE FROM {t}
        ALTER TABLE {t} ADD COLUMN c INT NOT NULL DEFAULT 1
        ALTER TABLE {t} DROP COLUMN b
        """,
        where={Sink.JSONL: TOLD},
        lenient=Lenient({"b": ("varchar", {})}),
    ),
)
