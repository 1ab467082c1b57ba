"""Stories of columns that get another type, length, sign, labels or character set."""

from __future__ import annotations

from tests.blackbox.story import AGAIN, EQUAL, TOLD, Server, Sink, Story

LABELS = """
    CREATE TABLE {t} (id INT PRIMARY KEY, e ENUM('small','big'), s SET('x','y','z'))
    INSERT INTO {t} VALUES (1, 'small', 'x,y'), (2, 'big', 'z'), (3, NULL, ''), (4, 'big', 'x,z'), (5, 'small', 'y')
"""
LATIN = """
    CREATE TABLE {t} (id INT PRIMARY KEY, b VARCHAR(40), c CHAR(9)) CHARACTER SET latin1
    INSERT INTO {t} VALUES (1, 'ä', 'x'), (2, 'ß', 'é'), (3, NULL, NULL), (4, '', 'four'), (5, 'fünf', '5')
"""

STORIES = (
    Story(
        "widen_integer",
        """
        ALTER TABLE {t} MODIFY a BIGINT
        INSERT INTO {t} VALUES (7, 9223372036854775807, 'seven')
        """,
    ),
    Story(
        "narrow_integer",
        """
        ALTER TABLE {t} MODIFY a SMALLINT
        INSERT INTO {t} VALUES (7, 70, 'seven')
        """,
        AGAIN,
    ),
    Story(
        "unsigned",
        """
        ALTER TABLE {t} MODIFY a INT UNSIGNED
        INSERT INTO {t} VALUES (7, 4294967295, 'seven')
        """,
    ),
    Story(
        "signed_again",
        """
        ALTER TABLE {t} MODIFY a INT
        INSERT INTO {t} VALUES (7, -1)
        """,
        AGAIN,
        setup="""
        CREATE TABLE {t} (id INT PRIMARY KEY, a INT UNSIGNED)
        INSERT INTO {t} VALUES (1, 10), (2, 20), (3, NULL), (4, 40), (5, 50), (6, 60)
        """,
    ),
    Story(
        "longer_text",
        """
        ALTER TABLE {t} MODIFY b VARCHAR(400)
        INSERT INTO {t} VALUES (7, 70, REPEAT('lang', 100))
        ALTER TABLE {t} MODIFY b TEXT
        INSERT INTO {t} VALUES (8, 80, REPEAT('long', 1000))
        ALTER TABLE {t} MODIFY b LONGTEXT
        INSERT INTO {t} VALUES (9, 90, REPEAT('long', 20000))
        """,
    ),
    Story(
        "shorter_text",
        """
        ALTER TABLE {t} MODIFY b VARCHAR(10)
        INSERT INTO {t} VALUES (7, 70, 'seven')
        """,
        AGAIN,
    ),
    Story(
        "integer_to_text",
        """
        ALTER TABLE {t} MODIFY a VARCHAR(20)
        INSERT INTO {t} VALUES (7, 'seventy', 'seven')
        """,
        AGAIN,
    ),
    Story(
        "text_to_integer",
        """
        ALTER TABLE {t} MODIFY b INT
        INSERT INTO {t} VALUES (7, 77)
        """,
        AGAIN,
        setup="""
        CREATE TABLE {t} (id INT PRIMARY KEY, b VARCHAR(20))
        INSERT INTO {t} VALUES (1, '1'), (2, '-2'), (3, NULL), (4, '04'), (5, '5'), (6, '6')
        """,
    ),
    Story(
        "decimal_digits",
        """
        ALTER TABLE {t} MODIFY d DECIMAL(14,2)
        INSERT INTO {t} VALUES (7, 999999999999.99)
        """,
        setup="""
        CREATE TABLE {t} (id INT PRIMARY KEY, d DECIMAL(10,2))
        INSERT INTO {t} VALUES (1, 1.10), (2, -2.25), (3, NULL), (4, 99999999.99), (5, 0), (6, 6)
        """,
    ),
    Story(
        "decimal_scale",
        """
        ALTER TABLE {t} MODIFY d DECIMAL(14,4)
        INSERT INTO {t} VALUES (7, 0.0001)
        """,
        setup="""
        CREATE TABLE {t} (id INT PRIMARY KEY, d DECIMAL(10,2))
        INSERT INTO {t} VALUES (1, 1.10), (2, -2.25), (3, NULL), (4, 99999999.99), (5, 0), (6, 6)
        """,
        where={Sink.JSONL: TOLD},
    ),
    Story(
        "float_to_double",
        """
        ALTER TABLE {t} MODIFY f DOUBLE
        INSERT INTO {t} VALUES (7, 1e300)
        """,
        setup="""
        CREATE TABLE {t} (id INT PRIMARY KEY, f FLOAT)
        INSERT INTO {t} VALUES (1, 1.1), (2, -3e38), (3, NULL), (4, 0), (5, 5), (6, 6)
        """,
        where={Sink.JSONL: TOLD},
    ),
    Story(
        "datetime_fraction",
        """
        ALTER TABLE {t} MODIFY d DATETIME(6)
        INSERT INTO {t} VALUES (7, '2024-01-02 03:04:05.123456')
        """,
        setup="""
        CREATE TABLE {t} (id INT PRIMARY KEY, d DATETIME)
        INSERT INTO {t} VALUES (1, '2024-01-02 03:04:05'), (2, '1000-01-01'), (3, NULL), (4, '9999-12-31 23:59:59')
        """,
        where={Sink.JSONL: TOLD},
    ),
    Story(
        "date_to_datetime",
        """
        ALTER TABLE {t} MODIFY d DATETIME
        INSERT INTO {t} VALUES (7, '2024-01-02 03:04:05')
        """,
        AGAIN,
        setup="""
        CREATE TABLE {t} (id INT PRIMARY KEY, d DATE)
        INSERT INTO {t} VALUES (1, '2024-01-02'), (2, '1000-01-01'), (3, NULL), (4, '9999-12-31')
        """,
    ),
    Story(
        "timestamp_to_datetime",
        """
        ALTER TABLE {t} MODIFY d DATETIME
        INSERT INTO {t} VALUES (7, '2024-01-02 03:04:05')
        """,
        AGAIN,
        setup="""
        CREATE TABLE {t} (id INT PRIMARY KEY, d TIMESTAMP NULL)
        INSERT INTO {t} VALUES (1, '2024-01-02 03:04:05'), (2, '1990-01-01'), (3, NULL), (4, '2030-12-31 23:59:59')
        """,
    ),
    Story(
        "enum_label_appended",
        """
        ALTER TABLE {t} MODIFY e ENUM('small','big','huge')
        INSERT INTO {t} VALUES (7, 'huge', 'x')
        """,
        setup=LABELS,
    ),
    Story(
        "enum_reordered",
        """
        ALTER TABLE {t} MODIFY e ENUM('big','small')
        INSERT INTO {t} VALUES (7, 'big', 'x'), (8, 'small', 'y')
        UPDATE {t} SET e = 'big' WHERE id = 1
        """,
        setup=LABELS,
    ),
    Story(
        "enum_label_in_the_middle",
        """
        ALTER TABLE {t} MODIFY e ENUM('small','medium','big')
        INSERT INTO {t} VALUES (7, 'medium', 'x'), (8, 'big', 'y')
        """,
        setup=LABELS,
    ),
    Story(
        "enum_label_removed",
        """
        UPDATE {t} SET e = 'big'
        ALTER TABLE {t} MODIFY e ENUM('big')
        INSERT INTO {t} VALUES (7, 'big', 'x')
        """,
        AGAIN,
        setup=LABELS,
    ),
    Story(
        "set_member_appended",
        """
        ALTER TABLE {t} MODIFY s SET('x','y','z','w')
        INSERT INTO {t} VALUES (7, 'big', 'x,w')
        """,
        setup=LABELS,
    ),
    Story(
        "set_reordered",
        """
        ALTER TABLE {t} MODIFY s SET('z','y','x')
        INSERT INTO {t} VALUES (7, 'big', 'x,y')
        """,
        AGAIN,
        setup=LABELS,
    ),
    Story(
        "convert_to_character_set",
        """
        ALTER TABLE {t} CONVERT TO CHARACTER SET utf8mb4
        INSERT INTO {t} VALUES (7, '😀', '中')
        """,
        setup=LATIN,
    ),
    Story(
        "column_character_set",
        """
        ALTER TABLE {t} MODIFY b VARCHAR(40) CHARACTER SET utf16
        INSERT INTO {t} VALUES (7, '😀', 'x')
        """,
        setup=LATIN,
    ),
    Story(
        "default_character_set",
        """
        ALTER TABLE {t} DEFAULT CHARACTER SET utf8mb4, COLLATE utf8mb4_bin
        ALTER TABLE {t} ADD COLUMN d VARCHAR(9)
        INSERT INTO {t} VALUES (7, 'ä', 'x', '😀')
        """,
        setup=LATIN,
    ),
    Story(
        "text_to_bytes",
        """
        ALTER TABLE {t} MODIFY b VARBINARY(100)
        INSERT INTO {t} VALUES (7, X'00FF', 'x')
        """,
        AGAIN,
        setup=LATIN,
    ),
    Story(
        "char_to_varchar",
        """
        ALTER TABLE {t} MODIFY c VARCHAR(20), MODIFY b CHAR(30)
        INSERT INTO {t} VALUES (7, 'b', 'trailing  ')
        """,
        AGAIN,
        setup=LATIN,
    ),
    Story(
        "text_to_json",
        """
        ALTER TABLE {t} MODIFY b JSON
        INSERT INTO {t} VALUES (7, '{"a": [1, null]}')
        """,
        EQUAL,
        where={Server.MYSQL80: AGAIN},
        setup="""
        CREATE TABLE {t} (id INT PRIMARY KEY, b LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin)
        INSERT INTO {t} VALUES (1, '{"x":1}'), (2, '[]'), (3, NULL), (4, '"text"'), (5, '5'), (6, 'true')
        """,
    ),
)
