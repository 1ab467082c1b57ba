"""Statements as they may stand in texts."""

from __future__ import annotations

import pytest

from raycdc.model.redaction import without_literals


@pytest.mark.parametrize(
    ("statement", "shown"),
    [
        ("INSERT INTO t VALUES (41, 'planted', \"it''s\")", "INSERT INTO t VALUES (…, …, …)"),
        ("UPDATE `a 41` SET v = 'un\\'quoted 7' WHERE id=0x41", "UPDATE `a 41` SET v = … WHERE id=…"),
        (
            "ALTER TABLE t ADD c DECIMAL(10,2) DEFAULT 41.5, ADD KEY (v(10))",
            "ALTER TABLE t ADD c DECIMAL(10,2) DEFAULT …, ADD KEY (v(10))",
        ),
        (
            "/* by anna */ ALTER TABLE t ADD PARTITION (PARTITION p VALUES IN (41, 42))",
            "… ALTER TABLE t ADD PARTITION (PARTITION p VALUES IN (…, …))",
        ),
        ("ALTER TABLE t PARTITION BY RANGE (v) (PARTITION p VALUES LESS THAN(41))",
         "ALTER TABLE t PARTITION BY RANGE (v) (PARTITION p VALUES LESS THAN(…))"),
        ("ALTER TABLE t ADD CHECK (v <> 41), COMMENT 'never ends", "ALTER TABLE t ADD CHECK (v <> …), COMMENT …"),
        ("DELETE FROM t WHERE v = 41 -- anna\n AND w = 1", "DELETE FROM t WHERE v = … …\n AND w = …"),
    ],
)  # fmt: skip
def test_a_statement_is_shown_without_its_values(statement: str, shown: str) -> None:
    assert without_literals(statement) == shown
