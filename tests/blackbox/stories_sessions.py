"""Stories of how rows are changed: by sessions with settings of their own, triggers, views, XA transactions."""

from __future__ import annotations

from tests.blackbox.story import PLAIN, TOLD, Ends, Lenient, Parked, Server, Sink, Story

MARIADB, MYSQL80 = (Server.MARIADB,), (Server.MYSQL80,)

STORIES = (
    Story(
        "statement_format",
        """
        SET SESSION binlog_format = 'STATEMENT'
        UPDATE {t} SET a = a + 1 WHERE id < 4
        SET SESSION binlog_format = 'ROW'
        """,
        Parked("logged as a statement"),
    ),
    Story(
        "mixed_format",
        """
        SET SESSION binlog_format = 'MIXED'
        UPDATE {t} SET a = a + 1 WHERE id < 4
        SET SESSION binlog_format = 'ROW'
        """,
        Parked("logged as a statement"),
    ),
    Story(
        "minimal_row_image",
        """
        SET SESSION binlog_row_image = 'MINIMAL'
        UPDATE {t} SET a = 77 WHERE id = 1
        SET SESSION binlog_row_image = 'FULL'
        """,
        Parked("binlog_row_image"),
    ),
    Story(
        "rows_that_are_not_logged",
        """
        SET SESSION sql_log_bin = 0
        ALTER TABLE {t} ADD COLUMN c INT
        SET SESSION sql_log_bin = 1
        UPDATE {t} SET c = 1 WHERE id = 1
        """,
        Parked("columns"),
    ),
    Story(
        "labels_that_are_not_logged",
        """
        SET GLOBAL binlog_row_metadata = 'MINIMAL'
        SET SESSION sql_mode = '', sql_log_bin = 0
        ALTER TABLE {t} MODIFY e ENUM('low', 'high', 'top'), MODIFY s SET('a', 'b', 'c')
        SET SESSION sql_log_bin = 1
        INSERT INTO {t} VALUES (7, 'no label', 'b')
        INSERT INTO {t} VALUES (8, 'top', 'a')
        SET GLOBAL binlog_row_metadata = 'FULL'
        """,
        Parked("holds a label"),
        setup="""
        CREATE TABLE {t} (id INT PRIMARY KEY, e ENUM('low', 'high'), s SET('a', 'b'))
        INSERT INTO {t} VALUES (1, 'low', 'a'), (2, NULL, ''), (4, 'high', 'a,b'), (5, 'low', ''), (6, 'low', 'b')
        """,
        touch=False,
    ),
    Story(
        "bits_of_a_set_that_are_not_logged",
        """
        SET GLOBAL binlog_row_metadata = 'MINIMAL'
        SET SESSION sql_log_bin = 0
        ALTER TABLE {t} MODIFY s SET('a', 'b', 'c')
        SET SESSION sql_log_bin = 1
        UPDATE {t} SET s = 'a,c' WHERE id = 4
        SET GLOBAL binlog_row_metadata = 'FULL'
        """,
        Parked("holds a label"),
        setup="""
        CREATE TABLE {t} (id INT PRIMARY KEY, s SET('a', 'b'))
        INSERT INTO {t} VALUES (1, 'a'), (2, ''), (4, 'a,b'), (5, ''), (6, 'b')
        """,
        touch=False,
    ),
    Story(
        "temporary_table_of_the_same_name",
        """
        CREATE TEMPORARY TABLE {t} (other INT, a DATE)
        INSERT INTO {t} VALUES (1, '2024-01-01')
        ALTER TABLE {t} ADD COLUMN c INT
        DROP TEMPORARY TABLE {t}
        INSERT INTO {t} VALUES (7, 70, 'seven')
        """,
    ),
    Story(
        "view",
        """
        CREATE VIEW {x} AS SELECT id, a, b FROM {t} WHERE a > 0
        UPDATE {x} SET b = 'through the view' WHERE id = 1
        INSERT INTO {x} VALUES (7, 70, 'seven')
        DROP VIEW {x}
        """,
    ),
    Story(
        "trigger",
        """
        CREATE TRIGGER tr_bb AFTER INSERT ON {x} FOR EACH ROW INSERT INTO {t} VALUES (NEW.id + 10, 1, 'by a trigger')
        INSERT INTO {x} VALUES (1), (2)
        DROP TRIGGER tr_bb
        """,
        setup=PLAIN + "CREATE TABLE {x} (id INT PRIMARY KEY)",
    ),
    Story(
        "procedure",
        """
        CREATE PROCEDURE {x} (n INT) BEGIN INSERT INTO {t} VALUES (n, n, 'by a procedure'); \
            UPDATE {t} SET a = 0 WHERE id = 1; END
        CALL {x} (7)
        DROP PROCEDURE {x}
        """,
    ),
    Story(
        "xa",
        """
        XA START 'bb', 'branch', 7
        INSERT INTO {t} VALUES (7, 70, 'seven')
        UPDATE {t} SET a = 11 WHERE id = 1
        XA END 'bb', 'branch', 7
        XA PREPARE 'bb', 'branch', 7
        XA COMMIT 'bb', 'branch', 7
        XA START 'bb2'
        INSERT INTO {t} VALUES (8, 80, 'eight')
        XA END 'bb2'
        XA PREPARE 'bb2'
        XA ROLLBACK 'bb2'
        """,
    ),
    Story(
        "savepoints_and_rollback",
        """
        START TRANSACTION
        INSERT INTO {t} VALUES (7, 70, 'seven')
        SAVEPOINT s
        INSERT INTO {t} VALUES (8, 80, 'eight')
        ROLLBACK TO SAVEPOINT s
        UPDATE {t} SET a = 71 WHERE id = 7
        COMMIT
        BEGIN
        DELETE FROM {t}
        ROLLBACK
        """,
    ),
    Story(
        "rollback_beside_a_temporary_table",
        """
        START TRANSACTION
        INSERT INTO {t} VALUES (7, 70, 'never was')
        UPDATE {t} SET b = 'never' WHERE id = 1
        CREATE TEMPORARY TABLE {x} (i INT)
        ROLLBACK
        START TRANSACTION
        INSERT INTO {t} VALUES (8, 80, 'kept')
        SAVEPOINT a
        INSERT INTO {t} VALUES (9, 90, 'never was')
        UPDATE {t} SET b = 'never' WHERE id = 8
        DROP TEMPORARY TABLE {x}
        ROLLBACK TO a
        UPDATE {t} SET a = 81 WHERE id = 8
        COMMIT
        XA START 'taken back'
        INSERT INTO {t} VALUES (10, 100, 'never was')
        XA END 'taken back'
        XA ROLLBACK 'taken back'
        INSERT INTO {t} VALUES (11, 110, 'is')
        """,
        servers=MARIADB,
    ),
    Story(
        "savepoint_beside_an_audit_table",
        """
        START TRANSACTION
        INSERT INTO {t} VALUES (7, 70, 'a')
        SAVEPOINT `nested 1`
        INSERT INTO {t} VALUES (8, 80, 'never was')
        ROLLBACK TO SAVEPOINT `nested 1`
        INSERT INTO {t} VALUES (9, 90, 'b')
        COMMIT
        XA START 'bb3'
        INSERT INTO {t} VALUES (10, 100, 'a')
        SAVEPOINT b
        INSERT INTO {t} VALUES (11, 110, 'never was')
        ROLLBACK TO b
        XA END 'bb3'
        XA PREPARE 'bb3'
        XA COMMIT 'bb3'
        """,
        setup=PLAIN
        + """
        CREATE TABLE {x} (id INT AUTO_INCREMENT PRIMARY KEY, what VARCHAR(40)) ENGINE = MyISAM
        CREATE TRIGGER tr_audit AFTER INSERT ON {t} FOR EACH ROW INSERT INTO {x} (what) VALUES (NEW.b)
        """,
        servers=MARIADB,
    ),
    Story(
        "comments_of_every_form_before_statements",
        """
        #nightly job{newline}TRUNCATE TABLE {t}
        #nightly job{newline}-- and more{newline}/* of it */ ALTER TABLE {t} MODIFY e ENUM('none', 'low', 'high')
        INSERT INTO {t} VALUES (2, 'low')
        /*!40000 ALTER TABLE {t} ADD COLUMN c INT */
        INSERT INTO {t} VALUES (3, 'high', 3)
        """,
        setup="""
        CREATE TABLE {t} (id INT PRIMARY KEY, e ENUM('none', 'high', 'low'))
        INSERT INTO {t} VALUES (1, 'low'), (4, 'none'), (5, 'none'), (6, 'none')
        """,
        touch=False,
    ),
    Story(
        "alter_in_two_phases",
        """
        SET SESSION binlog_alter_two_phase = ON
        ALTER TABLE {t} ADD COLUMN n INT
        INSERT INTO {t} VALUES (7, 11, 'x', 31)
        BEGIN NOT ATOMIC DECLARE CONTINUE HANDLER FOR SQLEXCEPTION BEGIN END; \
            ALTER TABLE {t} DROP COLUMN n, ADD UNIQUE (a); END
        BEGIN NOT ATOMIC DECLARE CONTINUE HANDLER FOR SQLEXCEPTION BEGIN END; \
            ALTER TABLE {t} DROP COLUMN n, ADD UNIQUE (a), ALGORITHM = COPY; END
        ALTER TABLE {t} CHANGE a z INT, CHANGE n a INT
        INSERT INTO {t} VALUES (8, 10, 'y', 8)
        ALTER TABLE {t} ADD COLUMN m INT DEFAULT 5, ALGORITHM = COPY
        INSERT INTO {t} VALUES (9, 10, 'y', 8, 9)
        SET SESSION binlog_alter_two_phase = OFF
        """,
        setup=PLAIN + "INSERT INTO {t} VALUES (20, 10, 'one')",
        # A name is taken again: lines from before have other values under it.
        where={Sink.JSONL: TOLD},
        servers=MARIADB,
        lenient=Lenient({"n": ("int", {7: 31})}),
    ),
    Story(
        "lock_tables",
        """
        LOCK TABLES {t} WRITE
        INSERT INTO {t} VALUES (7, 70, 'seven')
        ALTER TABLE {t} ADD COLUMN c INT DEFAULT 3
        UPDATE {t} SET c = 4 WHERE id = 1
        UNLOCK TABLES
        """,
    ),
    Story(
        "replace_and_on_duplicate_key",
        """
        REPLACE INTO {t} VALUES (1, 11, 'replaced'), (7, 70, 'new')
        INSERT INTO {t} VALUES (1, 12, 'x'), (8, 80, 'eight') ON DUPLICATE KEY UPDATE a = a + 1
        INSERT IGNORE INTO {t} VALUES (1, 13, 'ignored'), (9, 90, 'nine')
        """,
    ),
    Story(
        "keys_that_move_in_one_statement",
        """
        UPDATE {t} SET id = id + 1 WHERE id < 5 ORDER BY id DESC
        UPDATE {t} SET id = id - 1 WHERE id < 6 ORDER BY id
        INSERT INTO {t} VALUES (9, 9, 'came')
        DELETE FROM {t} WHERE id = 9
        """,
    ),
    Story(
        "statement_about_several_tables",
        """
        UPDATE {t} JOIN {x} USING (id) SET {t}.a = 99, {x}.n = 99
        DELETE {t} FROM {t} JOIN {x} USING (id) WHERE {x}.id = 3
        UPDATE {x} LEFT JOIN {t} USING (id) SET {t}.b = 'outer'
        INSERT INTO {t} VALUES (7, 70, 'seven')
        """,
        setup=PLAIN
        + """
        CREATE TABLE {x} (id INT PRIMARY KEY, n INT)
        INSERT INTO {x} VALUES (1, 1), (3, 3)
        """,
    ),
    Story(
        "other_time_zone_and_literals",
        """
        SET time_zone = '+05:00'
        INSERT INTO {t} VALUES (7, '2024-01-01 00:00:00', _latin1 X'E4')
        ALTER TABLE {t} ADD COLUMN c TIMESTAMP NULL DEFAULT '2024-01-01 00:00:00'
        INSERT INTO {t} VALUES (8, '2024-01-01 00:00:00', 'x', '2024-01-01 00:00:00')
        """,
        setup="""
        CREATE TABLE {t} (id INT PRIMARY KEY, t TIMESTAMP NULL, b VARCHAR(20) CHARACTER SET utf8mb4)
        INSERT INTO {t} VALUES (1, '2024-06-01 12:00:00', 'ä'), (2, NULL, 'zwei'), (4, NULL, ''), (5, NULL, NULL)
        """,
    ),
    Story(
        "decimals_of_scale_38_in_another_table",
        """
        INSERT INTO {x} VALUES (1, -0.99999999999999999999999999999999999999)
        INSERT INTO {t} VALUES (7, 70, 'seven')
        """,
        setup=PLAIN + "CREATE TABLE {x} (id INT PRIMARY KEY, d DECIMAL(38,38))",
        servers=MARIADB,
    ),
    # Runs that end because the configuration wants it.
    Story(
        "exception_ends_the_run_at_a_new_column",
        """
        ALTER TABLE {t} ADD COLUMN c INT
        INSERT INTO {t} VALUES (7, 70, 'seven', 7)
        """,
        Ends("add_column", code=5),
        alone=True,
        pipeline='schema_change = "fail"',
        long=True,
    ),
    Story(
        "fail_ends_the_run_at_a_key",
        """
        ALTER TABLE {t} DROP PRIMARY KEY, ADD PRIMARY KEY (id, b)
        """,
        Ends("primary_key", then=Parked("primary_key", mend="ALTER TABLE {t} DROP PRIMARY KEY, ADD PRIMARY KEY (id)")),
        setup="""
        CREATE TABLE {t} (id INT PRIMARY KEY, b INT NOT NULL)
        INSERT INTO {t} VALUES (1, 1), (2, 2), (4, 4), (5, 5)
        """,
        alone=True,
        pipeline='on_table_error = "fail"',
    ),
)
