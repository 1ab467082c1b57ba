"""Stories of columns whose values the log has in a form of its own, or otherwise than the table."""

from __future__ import annotations

from tests.blackbox.story import Parked, Server, Story
from tests.blackbox.type_table import MARIADB, MYSQL80

VIRTUAL = "VIRTUAL column 'g'"

STORIES = (
    Story(
        "hashed_keys",
        """
        INSERT INTO {t} VALUES (7, 'http://seven', 'seven')
        UPDATE {t} SET url = 'http://one' WHERE id = 1
        ALTER TABLE {t} ADD COLUMN a INT, ADD UNIQUE KEY more USING HASH (a, b)
        INSERT INTO {t} VALUES (8, 'http://eight', 'eight', 80)
        CREATE UNIQUE INDEX whole ON {t} (b, url)
        INSERT INTO {t} VALUES (9, 'http://nine', NULL, 90)
        ALTER TABLE {t} DROP KEY url, DROP KEY more
        INSERT INTO {t} VALUES (10, 'http://nine', 'ten', 100)
        """,
        setup="""
        CREATE TABLE {t} (id INT PRIMARY KEY, url TEXT UNIQUE, b VARCHAR(40))
        INSERT INTO {t} VALUES (1, 'a', 'one'), (2, 'b', 'two'), (3, NULL, NULL), (4, '', 'four'), (5, 'e', 'e')
        """,
        servers=MARIADB,
    ),
    Story(
        "functional_index",
        """
        CREATE INDEX calculated ON {t} ((a + 1))
        INSERT INTO {t} VALUES (7, 70, 'seven')
        UPDATE {t} SET a = a + 1
        ALTER TABLE {t} ADD COLUMN c INT, ADD INDEX more ((c * 2))
        INSERT INTO {t} VALUES (8, 80, 'eight', 8)
        DROP INDEX calculated ON {t}
        INSERT INTO {t} VALUES (9, 90, 'nine', 9)
        """,
        servers=MYSQL80,
    ),
    Story(
        "year_of_two_digits",
        """
        INSERT INTO {t} VALUES (7, 93), (8, 1993), (9, 2000), (10, 69), (11, 70)
        """,
        setup="""
        CREATE TABLE {t} (id INT PRIMARY KEY, y YEAR(2))
        INSERT INTO {t} VALUES (1, 93), (2, '00'), (3, NULL), (4, 0), (5, 2069), (6, 1970)
        """,
        servers=MARIADB,
    ),
    Story(
        "old_times",
        """
        INSERT INTO {t} VALUES (7, '-100:11:12.345', '2024-02-29 10:11:12.123456', '2024-02-29 10:11:12.5', '12:34:56')
        UPDATE {t} SET t = '-00:00:00.001', s = NULL WHERE id = 1
        """,
        setup="""
        SET GLOBAL mysql56_temporal_format = OFF
        CREATE TABLE {t} (id INT PRIMARY KEY, t TIME(3), d DATETIME(6), s TIMESTAMP(1) NULL, o TIME)
        SET GLOBAL mysql56_temporal_format = ON
        INSERT INTO {t} VALUES (1, '838:59:59.999', '9999-12-31 23:59:59.999999', '2038-01-19 03:14:07.1', '-838:59:59')
        INSERT INTO {t} VALUES (2, NULL, NULL, NULL, NULL), (4, '0', '1000-01-01', '1970-01-02', '0')
        """,
        servers=MARIADB,
    ),
    Story(
        "year_zero",
        """
        INSERT INTO {t} VALUES (7, '0000-01-01', '0000-12-31 23:59:59')
        UPDATE {t} SET d = '0000-02-28' WHERE id = 1
        """,
        setup="""
        CREATE TABLE {t} (id INT PRIMARY KEY, d DATE, m DATETIME)
        INSERT INTO {t} VALUES (1, '0000-01-01', '0000-01-01 00:00:00'), (2, '2024-01-01', NULL), (4, NULL, NULL)
        """,
    ),
    Story(
        "virtual_of_a_counter",
        """
        ALTER TABLE {t} MODIFY id INT AUTO_INCREMENT, ADD COLUMN g INT GENERATED ALWAYS AS (id + a)
        INSERT INTO {t} (a) VALUES (70)
        """,
        Parked(VIRTUAL, mend="ALTER TABLE {t} DROP COLUMN g"),
        servers=MARIADB,
    ),
    Story(
        "created_with_a_virtual_of_a_counter",
        """
        DROP TABLE {t}
        CREATE TABLE {t} (id INT AUTO_INCREMENT PRIMARY KEY, g INT AS (id + a), h INT AS (g * 2), a INT)
        INSERT INTO {t} (a) VALUES (70), (80)
        """,
        Parked(VIRTUAL, mend="ALTER TABLE {t} DROP COLUMN h, DROP COLUMN g"),
        servers=MARIADB,
        setup="""
        CREATE TABLE {t} (id INT PRIMARY KEY, a INT)
        INSERT INTO {t} VALUES (1, 10), (2, 20)
        """,
        touch=False,
    ),
    Story(
        "virtual_of_a_default",
        """
        ALTER TABLE {t} ALTER a SET DEFAULT 5, ADD COLUMN g INT GENERATED ALWAYS AS (DEFAULT(a) + a)
        INSERT INTO {t} (id) VALUES (7)
        ALTER TABLE {t} ALTER a SET DEFAULT 6
        """,
        Parked(VIRTUAL, mend="ALTER TABLE {t} DROP COLUMN g"),
    ),
    Story(
        "merged",
        """
        CREATE TABLE {x} (id INT PRIMARY KEY, a INT) ENGINE = MERGE UNION = ({t}) INSERT_METHOD = LAST
        INSERT INTO {x} VALUES (7, 70)
        UPDATE {x} SET a = 11 WHERE id = 1
        """,
        Parked("MERGE", mend="DROP TABLE {x}"),
        setup="""
        CREATE TABLE {t} (id INT PRIMARY KEY, a INT) ENGINE = MyISAM
        INSERT INTO {t} VALUES (1, 10), (2, 20), (3, NULL), (4, 40), (5, 50), (6, 60)
        """,
        servers=(Server.MARIADB, Server.MYSQL80),
    ),
    Story(
        "keys_of_one_text",
        """
        INSERT INTO {t} VALUES (0x826F, 7), (0xEEF9, 8)
        DELETE FROM {t} WHERE n = 7
        """,
        Parked("in Unicode it may be the same text", mend="DELETE FROM {t} WHERE n = 8"),
        setup="""
        CREATE TABLE {t} (k VARCHAR(4) CHARACTER SET cp932 COLLATE cp932_bin PRIMARY KEY, n INT)
        INSERT INTO {t} VALUES (0x81CA, 1), (0x5C, 2), (0x8260, 3)
        """,
        key=("k",),
        touch=False,
    ),
)
