"""Stories of whole tables: keys, partitions, renames and swaps, tables that come and go."""

from __future__ import annotations

from tests.blackbox.story import ABSENT, AGAIN, EQUAL, GONE, PLAIN, WHOLE, Kept, Lenient, Parked, Server, Story

MARIADB, MYSQL80 = (Server.MARIADB,), (Server.MYSQL80,)

PARTITIONED = """
    CREATE TABLE {t} (id INT PRIMARY KEY, a INT) PARTITION BY RANGE (id) \
        (PARTITION p0 VALUES LESS THAN (3), PARTITION p1 VALUES LESS THAN (5), PARTITION p2 VALUES LESS THAN (1000))
    INSERT INTO {t} VALUES (1, 10), (2, 20), (3, NULL), (4, 40), (5, 50), (6, 60)
"""
NOTHING = ""

STORIES = (
    # Keys and indexes
    Story(
        "primary_key_of_other_columns",
        """
        ALTER TABLE {t} DROP PRIMARY KEY, ADD PRIMARY KEY (id, k)
        INSERT INTO {t} VALUES (1, 2, 'second')
        """,
        Parked("primary_key"),
        setup="""
        CREATE TABLE {t} (id INT NOT NULL, k INT NOT NULL, b VARCHAR(20), PRIMARY KEY (id))
        INSERT INTO {t} VALUES (1, 1, 'one'), (2, 1, 'two'), (3, 1, NULL), (4, 1, 'four'), (5, 1, 'five')
        """,
        key=("id", "k"),
    ),
    Story(
        "primary_key_dropped",
        """
        ALTER TABLE {t} DROP PRIMARY KEY
        INSERT INTO {t} VALUES (7, 70, 'seven')
        """,
        Parked("primary_key", mend="ALTER TABLE {t} ADD PRIMARY KEY (id)"),
    ),
    Story(
        "primary_key_dropped_with_a_column",
        """
        ALTER TABLE {t} DROP PRIMARY KEY, DROP COLUMN a, RENAME COLUMN b TO c
        INSERT INTO {t} VALUES (7, 'seven')
        """,
        Parked("primary_key", mend="ALTER TABLE {t} ADD PRIMARY KEY (id)"),
        lenient=Lenient({"a": ("int", {}), "b": ("varchar", {})}),
    ),
    Story(
        "unique_index_added_and_dropped",
        """
        ALTER TABLE {t} ADD UNIQUE KEY u (a)
        INSERT INTO {t} VALUES (7, 70, 'seven')
        DROP INDEX u ON {t}
        INSERT INTO {t} VALUES (8, 70, 'eight')
        """,
    ),
    Story(
        "indexes",
        """
        CREATE INDEX i1 ON {t} (b(3), a DESC)
        ALTER TABLE {t} ADD FULLTEXT INDEX f (b), RENAME INDEX i1 TO i2, ALGORITHM=COPY
        INSERT INTO {t} VALUES (7, 70, 'seven')
        ALTER TABLE {t} DROP INDEX i2
        """,
    ),
    Story(
        "check_constraint",
        """
        ALTER TABLE {t} ADD CONSTRAINT positive CHECK (a > 0)
        INSERT INTO {t} VALUES (7, 70, 'seven')
        INSERT INTO {t} VALUES (8, 80, 'eight')
        """,
    ),
    Story(
        "foreign_key",
        """
        ALTER TABLE {t} ADD COLUMN p INT DEFAULT 1, ADD CONSTRAINT fk_plain FOREIGN KEY (p) REFERENCES {x} (id)
        INSERT INTO {t} VALUES (7, 70, 'seven', 2)
        """,
        setup=PLAIN
        + """
        CREATE TABLE {x} (id INT PRIMARY KEY)
        INSERT INTO {x} VALUES (1), (2)
        """,
    ),
    Story(
        "auto_increment_and_options",
        """
        ALTER TABLE {t} MODIFY id INT AUTO_INCREMENT
        ALTER TABLE {t} AUTO_INCREMENT = 500, COMMENT = 'it''s a table', ROW_FORMAT = COMPRESSED
        INSERT INTO {t} (a) VALUES (70)
        ALTER TABLE {t} ENGINE = InnoDB, STATS_PERSISTENT = 0
        """,
        AGAIN,
    ),
    Story(
        "rebuilds",
        """
        ALTER TABLE {t} FORCE
        OPTIMIZE TABLE {t}
        ANALYZE TABLE {t}
        ALTER TABLE {t} ORDER BY b
        INSERT INTO {t} VALUES (7, 70, 'seven')
        """,
    ),
    Story(
        "comments",
        """
        ALTER TABLE {t} COMMENT 'Größe; "x"', MODIFY b VARCHAR(40) COMMENT 'b''s'
        INSERT INTO {t} VALUES (7, 70, 'seven')
        """,
    ),
    # Partitions
    Story(
        "partitioned",
        """
        ALTER TABLE {t} PARTITION BY HASH (id) PARTITIONS 4
        INSERT INTO {t} VALUES (7, 70, 'seven')
        ALTER TABLE {t} COALESCE PARTITION 2
        ALTER TABLE {t} REMOVE PARTITIONING
        INSERT INTO {t} VALUES (8, 80, 'eight')
        """,
    ),
    Story(
        "partition_added_and_reorganized",
        """
        ALTER TABLE {t} ADD PARTITION (PARTITION p3 VALUES LESS THAN MAXVALUE)
        INSERT INTO {t} VALUES (1007, 70)
        ALTER TABLE {t} REORGANIZE PARTITION p0, p1 INTO (PARTITION p01 VALUES LESS THAN (5))
        INSERT INTO {t} VALUES (7, 70)
        """,
        setup=PARTITIONED,
    ),
    Story(
        "partition_dropped",
        """
        ALTER TABLE {t} DROP PARTITION p0
        INSERT INTO {t} VALUES (1, 11)
        """,
        AGAIN,
        setup=PARTITIONED,
    ),
    Story(
        "partition_truncated",
        """
        ALTER TABLE {t} TRUNCATE PARTITION p1
        INSERT INTO {t} VALUES (3, 33)
        """,
        AGAIN,
        setup=PARTITIONED,
    ),
    Story(
        "partition_exchanged",
        """
        ALTER TABLE {t} EXCHANGE PARTITION p0 WITH TABLE {x}
        INSERT INTO {t} VALUES (7, 70)
        """,
        AGAIN,
        setup=PARTITIONED
        + """
        CREATE TABLE {x} (id INT PRIMARY KEY, a INT)
        INSERT INTO {x} VALUES (0, 77)
        """,
    ),
    # Names
    Story(
        "renamed_away_and_back",
        """
        RENAME TABLE {t} TO {x}
        INSERT INTO {x} VALUES (7, 70, 'seven')
        ALTER TABLE {x} RENAME TO {t}
        INSERT INTO {t} VALUES (8, 80, 'eight')
        """,
        AGAIN,
    ),
    Story(
        "renamed_away",
        """
        INSERT INTO {t} VALUES (7, 70, 'seven')
        ALTER TABLE {t} RENAME {x}
        INSERT INTO {x} VALUES (8, 80, 'eight')
        """,
        Kept(rows=6),
    ),
    Story(
        "renamed_into_the_pattern",
        """
        RENAME TABLE {x} TO {t}
        INSERT INTO {t} VALUES (7, 70, 'seven')
        """,
        AGAIN,
        setup=PLAIN.replace("{t}", "{x}"),
        touch=False,
    ),
    Story(
        "swapped_as_gh_ost_does",
        """
        CREATE TABLE {gho} LIKE {t}
        ALTER TABLE {gho} ADD COLUMN c INT DEFAULT 3
        INSERT INTO {gho} (id, a, b) SELECT id, a, b FROM {t}
        UPDATE {t} SET a = 11 WHERE id = 1
        REPLACE INTO {gho} (id, a, b) SELECT id, a, b FROM {t} WHERE id = 1
        RENAME TABLE {t} TO {del}, {gho} TO {t}
        INSERT INTO {t} VALUES (7, 70, 'seven', 7)
        DROP TABLE {del}
        """,
        EQUAL,
    ),
    Story(
        "swapped_as_pt_osc_does",
        """
        CREATE TABLE {new} LIKE {t}
        ALTER TABLE {new} ADD COLUMN c VARCHAR(5) DEFAULT 'x'
        CREATE TRIGGER pt_ins AFTER INSERT ON {t} FOR EACH ROW \
            REPLACE INTO {new} (id, a, b) VALUES (NEW.id, NEW.a, NEW.b)
        CREATE TRIGGER pt_upd AFTER UPDATE ON {t} FOR EACH ROW \
            REPLACE INTO {new} (id, a, b) VALUES (NEW.id, NEW.a, NEW.b)
        INSERT LOW_PRIORITY IGNORE INTO {new} (id, a, b) SELECT id, a, b FROM {t} \
            FORCE INDEX (`PRIMARY`) LOCK IN SHARE MODE
        UPDATE {t} SET a = 11 WHERE id = 1
        RENAME TABLE {t} TO {old}, {new} TO {t}
        INSERT INTO {t} VALUES (7, 70, 'seven', 'y')
        DROP TRIGGER pt_ins
        DROP TRIGGER pt_upd
        DROP TABLE IF EXISTS {old}
        """,
        EQUAL,
    ),
    Story(
        "swapped_with_other_rows",
        """
        RENAME TABLE {t} TO `x_swap`, {x} TO {t}, `x_swap` TO {x}
        INSERT INTO {t} VALUES (7, 70, 'seven')
        """,
        AGAIN,
        setup=PLAIN
        + """
        CREATE TABLE {x} LIKE {t}
        INSERT INTO {x} VALUES (1, 1, 'other'), (2, 2, 'rows'), (9, 9, 'nine')
        """,
    ),
    Story(
        "name_with_a_blank_and_a_semicolon",
        """
        ALTER TABLE {t} ADD COLUMN c INT DEFAULT 3
        INSERT INTO {t} VALUES (7, 70, 'seven', 7)
        """,
        table="odd name; x",
        pattern="odd .*",
    ),
    # Coming and going
    Story(
        "truncated",
        """
        TRUNCATE TABLE {t}
        INSERT INTO {t} VALUES (1, 11, 'new')
        TRUNCATE {t}
        INSERT INTO {t} VALUES (2, 22, 'newer')
        """,
    ),
    Story("dropped", "DROP TABLE {t}", GONE),
    Story(
        "dropped_and_made_again",
        """
        DROP TABLE {t}
        CREATE TABLE {t} (id INT PRIMARY KEY, a INT, b VARCHAR(40))
        INSERT INTO {t} VALUES (1, 11, 'new'), (2, 22, 'newer')
        """,
    ),
    Story(
        "dropped_and_made_again_with_more_columns",
        """
        DROP TABLE {t}
        CREATE TABLE {t} (id INT PRIMARY KEY, c DATE, a INT, b VARCHAR(40))
        INSERT INTO {t} VALUES (1, '2024-02-29', 11, 'new'), (2, NULL, 22, 'newer')
        """,
        AGAIN,
    ),
    Story(
        "dropped_and_made_again_with_other_types",
        """
        DROP TABLE {t}
        CREATE TABLE {t} (id INT PRIMARY KEY, a DATE, b INT)
        INSERT INTO {t} VALUES (1, '2024-02-29', 1), (2, NULL, 2)
        """,
        AGAIN,
    ),
    Story(
        "dropped_and_made_again_with_fewer_columns",
        """
        DROP TABLE {t}
        CREATE TABLE {t} (id INT PRIMARY KEY, c DATE)
        INSERT INTO {t} VALUES (1, '2024-02-29'), (2, NULL)
        """,
        AGAIN,
        lenient=Lenient({"a": ("int", {}), "b": ("varchar", {})}),
    ),
    Story(
        "replaced",
        """
        CREATE OR REPLACE TABLE {t} (id INT PRIMARY KEY, a INT, b VARCHAR(40), c INT)
        INSERT INTO {t} VALUES (1, 11, 'new', 1)
        """,
        servers=MARIADB,
    ),
    Story(
        "replaced_with_a_period",
        """
        CREATE OR REPLACE TABLE {t} (id INT PRIMARY KEY, a INT, b VARCHAR(40), \
            s TIMESTAMP(6) GENERATED ALWAYS AS ROW START, e TIMESTAMP(6) GENERATED ALWAYS AS ROW END, \
            PERIOD FOR SYSTEM_TIME (s, e)) WITH SYSTEM VERSIONING
        INSERT INTO {t} (id, a, b) VALUES (1, 11, 'new'), (2, 22, 'newer')
        UPDATE {t} SET a = 12 WHERE id = 1
        """,
        servers=MARIADB,
        touch=False,
    ),
    Story(
        "replaced_with_an_application_period",
        """
        CREATE OR REPLACE TABLE {t} (id INT PRIMARY KEY, a INT, s DATE, e DATE, PERIOD FOR p (s, e))
        INSERT INTO {t} VALUES (1, 11, '2024-01-01', '2025-01-01'), (2, 22, '2024-01-01', '2024-05-05')
        DELETE FROM {t} FOR PORTION OF p FROM '2024-04-01' TO '2026-01-01'
        ALTER TABLE {t} DROP PERIOD FOR p, ADD COLUMN b DATE NOT NULL DEFAULT '2030-01-01'
        ALTER TABLE {t} ADD PERIOD FOR q (s, b)
        UPDATE {t} SET a = 12 WHERE id = 1
        """,
        servers=MARIADB,
        touch=False,
    ),
    Story(
        "created",
        """
        CREATE TABLE {t} (id INT PRIMARY KEY, a INT, b VARCHAR(40))
        INSERT INTO {t} VALUES (1, 11, 'new'), (4, 22, 'newer')
        UPDATE {t} SET a = 3 WHERE id = 1
        """,
        WHOLE,
        setup=NOTHING,
    ),
    Story(
        "created_like_another",
        """
        CREATE TABLE {t} LIKE {x}
        INSERT INTO {t} VALUES (1, 11, 'new'), (4, 22, 'newer')
        """,
        WHOLE,
        setup="CREATE TABLE {x} (id INT PRIMARY KEY, a INT, b VARCHAR(40))",
        touch=False,
    ),
    Story(
        "created_from_a_query",
        """
        CREATE TABLE {t} (PRIMARY KEY (id)) SELECT id, a, b FROM {x}
        INSERT INTO {t} VALUES (7, 70, 'seven')
        """,
        WHOLE,
        servers=MARIADB,
        setup=PLAIN.replace("{t}", "{x}"),
        touch=False,
    ),
    Story(
        "created_if_not_there",
        """
        CREATE TABLE IF NOT EXISTS {t} (id INT PRIMARY KEY, a INT, b VARCHAR(40))
        INSERT INTO {t} VALUES (1, 11, 'new'), (4, 22, 'newer')
        DELETE FROM {t} WHERE id = 1
        """,
        WHOLE,
        setup=NOTHING,
        touch=False,
    ),
    Story(
        "created_and_renamed_here",
        """
        CREATE TABLE {x} (id INT PRIMARY KEY, a INT, b VARCHAR(40))
        INSERT INTO {x} VALUES (1, 11, 'new'), (4, 22, 'newer')
        RENAME TABLE {x} TO {t}
        INSERT INTO {t} VALUES (7, 70, 'seven')
        """,
        AGAIN,
        setup=NOTHING,
        touch=False,
    ),
    Story(
        "created_under_another_name_and_again",
        """
        CREATE TABLE {t} (id INT PRIMARY KEY, a INT)
        INSERT INTO {t} VALUES (1, 11)
        RENAME TABLE {t} TO {x}
        CREATE TABLE {t} (id INT PRIMARY KEY, a INT, b VARCHAR(40))
        INSERT INTO {t} VALUES (1, 12, 'new'), (4, 22, 'newer')
        """,
        AGAIN,
        setup=NOTHING,
        touch=False,
    ),
    Story(
        "created_from_a_query_that_is_logged",
        """
        SET SESSION binlog_format = 'STATEMENT'
        CREATE TABLE {t} (PRIMARY KEY (id)) SELECT id, a, b FROM {x}
        SET SESSION binlog_format = 'ROW'
        INSERT INTO {t} VALUES (7, 70, 'seven')
        """,
        AGAIN,
        servers=MARIADB,
        setup=PLAIN.replace("{t}", "{x}"),
        touch=False,
    ),
    Story(
        "created_and_changed",
        """
        CREATE TABLE {t} (id INT PRIMARY KEY, a INT)
        INSERT INTO {t} VALUES (1, 11), (4, 22)
        ALTER TABLE {t} ADD COLUMN b VARCHAR(40) DEFAULT 'x'
        UPDATE {t} SET a = 3 WHERE id = 1
        """,
        WHOLE,
        setup=NOTHING,
        touch=False,
    ),
    Story(
        "created_and_dropped",
        """
        CREATE TABLE {t} (id INT PRIMARY KEY)
        INSERT INTO {t} VALUES (1)
        DROP TABLE {t}
        """,
        GONE,
        setup=NOTHING,
    ),
    Story(
        "sequence",
        """
        CREATE SEQUENCE {t} START WITH 5
        SELECT NEXT VALUE FOR {t}
        DROP SEQUENCE {t}
        """,
        ABSENT,
        setup=NOTHING,
        servers=MARIADB,
    ),
    Story(
        "versioned",
        """
        ALTER TABLE {t} ADD SYSTEM VERSIONING
        UPDATE {t} SET a = 11 WHERE id = 1
        DELETE FROM {t} WHERE id = 3
        INSERT INTO {t} VALUES (7, 70, 'seven')
        ALTER TABLE {t} DROP SYSTEM VERSIONING
        UPDATE {t} SET a = 12 WHERE id = 1
        """,
        servers=MARIADB,
    ),
    Story(
        "repaired",
        """
        INSERT INTO {t} VALUES (7, 70, 'seven')
        REPAIR TABLE {t} USE_FRM
        INSERT INTO {t} VALUES (8, 80, 'eight')
        """,
        AGAIN,
        setup=PLAIN.replace("b VARCHAR(40))", "b VARCHAR(40)) ENGINE = MyISAM"),
    ),
    Story(
        "repaired_where_nothing_is_to_repair",
        """
        INSERT INTO {t} VALUES (7, 70, 'seven')
        REPAIR TABLE {t}
        """,
    ),
    Story(
        "made_anew_with_a_character_set_that_is_not_known",
        """
        DROP TABLE {t}
        CREATE TABLE {t} (id INT PRIMARY KEY, c VARCHAR(9) CHARACTER SET filename)
        INSERT INTO {t} VALUES (1, 'x')
        """,
        Parked(
            "has the character set 'filename', which is not supported",
            mend="ALTER TABLE {t} MODIFY c VARCHAR(9) CHARACTER SET latin1",
        ),
        touch=False,
        servers=MARIADB,
        lenient=Lenient({"a": ("int", {}), "b": ("varchar", {})}),
    ),
)
