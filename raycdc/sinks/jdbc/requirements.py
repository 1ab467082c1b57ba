"""The requirements for a table of a database target, each with a statement by which another client breaks it.

`raycdc.sinks.jdbc.unsupported_features` names the requirement of each feature that it finds. The manual's page
``requirements`` lists them, and the tests run each statement at each time. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Requirement(StrEnum):
    """A property that a table needs so that its server does not lose, change, merge or duplicate written rows."""

    TRANSACTIONS = "rows of an epoch are there completely or not at all, also after a crash"
    OWN_ROWS = "rows of other tables do not count as its own"
    VISIBLE_ROWS = "the account sees all rows"
    NO_RULES = "no rule replaces a statement"
    NO_TRIGGERS = "no trigger changes or leaves out rows"
    NO_WRITING_TRIGGERS = "no trigger's function writes to the table itself"
    NO_CASCADES = "no foreign key deletes or changes its rows"
    COLUMNS = "it has all columns of the source"
    PLAIN_COLUMNS = "the server computes none of these columns"
    TIMES = "the server sets none of these columns to the time of a change"
    TYPES = "its types store each value of the source unchanged, or reject it with an error"
    EXACT_KEY = "different keys of the source are different keys of the table"
    WHOLE_KEY = "unique indexes compare whole values"
    UNIQUE_KEY = "a primary key or unique index has exactly the key columns"
    ONE_KEY = "no further unique index merges rows"


@dataclass(frozen=True, slots=True)
class Breach:
    """Statements of another client by which the table ``shop.t`` no longer meets a requirement.

    The table has the key ``id`` (text), ``amount`` (decimal with two fractional digits) and ``at`` (a time without
    zone). `shown` is the last statement as the manual shows it; empty for that statement itself.
    """

    statements: tuple[str, ...]
    shown: str = ""

    def text(self) -> str:
        return self.shown or self.statements[-1].replace("shop.", "")


@dataclass(frozen=True, slots=True)
class Searched:
    """The breach of a requirement on each kind of server (None: the server has no such feature). If `adopts` is True,
    the requirement applies only when a table is adopted.
    """

    postgres: Breach | None
    mysql: Breach | None
    adopts: bool = False


_LOOSE = "CREATE COLLATION shop.loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
_RETURNS = "RETURNS trigger LANGUAGE plpgsql AS"
_CASCADE = Breach(
    (
        "CREATE TABLE shop.parent (amount decimal(12,2) PRIMARY KEY)",
        "INSERT INTO shop.parent VALUES (1.25), (2.25), (3.25)",
        "ALTER TABLE shop.t ADD FOREIGN KEY (amount) REFERENCES shop.parent (amount) ON DELETE CASCADE",
    )
)

REQUIREMENTS: Mapping[Requirement, Searched] = {
    Requirement.TRANSACTIONS: Searched(
        Breach(("ALTER TABLE shop.t SET UNLOGGED",)), Breach(("ALTER TABLE shop.t ENGINE=MyISAM",))
    ),
    Requirement.OWN_ROWS: Searched(Breach(("CREATE TABLE shop.child () INHERITS (shop.t)",)), None),
    Requirement.VISIBLE_ROWS: Searched(Breach(("ALTER TABLE shop.t ENABLE ROW LEVEL SECURITY",)), None),
    Requirement.NO_RULES: Searched(Breach(("CREATE RULE away AS ON DELETE TO shop.t DO INSTEAD NOTHING",)), None),
    Requirement.NO_TRIGGERS: Searched(
        Breach(
            (
                f"CREATE FUNCTION shop.f() {_RETURNS} 'BEGIN NEW.amount := 0; RETURN NEW; END'",
                "CREATE TRIGGER g BEFORE INSERT OR UPDATE ON shop.t FOR EACH ROW EXECUTE FUNCTION shop.f()",
            ),
            "CREATE TRIGGER … BEFORE INSERT ON t FOR EACH ROW …",
        ),
        Breach(
            ("CREATE TRIGGER shop.g BEFORE INSERT ON shop.t FOR EACH ROW SET NEW.amount = 0",),
            "CREATE TRIGGER … BEFORE INSERT ON t FOR EACH ROW …",
        ),
    ),
    Requirement.NO_WRITING_TRIGGERS: Searched(
        Breach(
            (
                f"CREATE FUNCTION shop.f() {_RETURNS} 'BEGIN UPDATE shop.t SET amount = 0; RETURN NULL; END'",
                "CREATE TRIGGER g AFTER INSERT ON shop.t FOR EACH STATEMENT EXECUTE FUNCTION shop.f()",
            ),
            "CREATE TRIGGER … AFTER INSERT ON t …, with UPDATE t in its function",
        ),
        None,
    ),
    Requirement.NO_CASCADES: Searched(_CASCADE, _CASCADE),
    Requirement.COLUMNS: Searched(
        Breach(("ALTER TABLE shop.t DROP COLUMN amount",)), Breach(("ALTER TABLE shop.t DROP COLUMN amount",))
    ),
    Requirement.PLAIN_COLUMNS: Searched(
        Breach(
            (
                "ALTER TABLE shop.t DROP COLUMN amount",
                "ALTER TABLE shop.t ADD COLUMN amount numeric(12,2) GENERATED ALWAYS AS (length(id)) STORED",
            ),
            "ALTER TABLE t ADD COLUMN amount … GENERATED ALWAYS AS (…) STORED",
        ),
        Breach(
            ("ALTER TABLE shop.t MODIFY COLUMN amount decimal(12,2) GENERATED ALWAYS AS (length(id)) STORED",),
            "ALTER TABLE t MODIFY amount … GENERATED ALWAYS AS (…) STORED",
        ),
    ),
    Requirement.TIMES: Searched(
        None, Breach(("ALTER TABLE shop.t MODIFY at datetime(6) ON UPDATE CURRENT_TIMESTAMP(6)",))
    ),
    Requirement.TYPES: Searched(
        Breach(("ALTER TABLE shop.t ALTER amount TYPE numeric(12,1)",)),
        Breach(("ALTER TABLE shop.t MODIFY amount decimal(12,1)",)),
    ),
    Requirement.EXACT_KEY: Searched(
        Breach((_LOOSE, "ALTER TABLE shop.t ALTER id TYPE text COLLATE shop.loose")),
        Breach(("ALTER TABLE shop.t MODIFY id varchar(20) COLLATE utf8mb4_general_ci NOT NULL",)),
    ),
    Requirement.WHOLE_KEY: Searched(None, Breach(("ALTER TABLE shop.t ADD UNIQUE INDEX more (note(7))",)), adopts=True),
    Requirement.UNIQUE_KEY: Searched(
        Breach(("ALTER TABLE shop.t DROP CONSTRAINT t_pkey",)), Breach(("ALTER TABLE shop.t DROP PRIMARY KEY",))
    ),
    Requirement.ONE_KEY: Searched(None, Breach(("ALTER TABLE shop.t ADD UNIQUE INDEX more (rate)",)), adopts=True),
}
