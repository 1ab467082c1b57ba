"""What an account may do in a database, by the words of SHOW GRANTS."""

from __future__ import annotations

import pytest

from raycdc.sinks.jdbc.mysql import NEEDED, missing, roles

ALL = ", ".join(NEEDED)


@pytest.mark.parametrize(
    ("grants", "lacking"),
    [
        (["GRANT ALL PRIVILEGES ON *.* TO `root`@`localhost` WITH GRANT OPTION"], []),
        ([f"GRANT {ALL} ON `shop`.* TO `a`@`%`"], []),
        ([f"GRANT {ALL} ON `sh%`.* TO `a`@`%`"], []),
        ([f"GRANT {ALL} ON `sho_`.* TO `a`@`%`"], []),
        ([f"GRANT {ALL} ON `sho\\\\_`.* TO `a`@`%`"], list(NEEDED)),
        (["GRANT SELECT, CREATE ON *.* TO `a`@`%`", "GRANT INSERT, UPDATE, DELETE ON `shop`.* TO `a`@`%`"],
         ["ALTER", "DROP", "TRIGGER"]),
        (["GRANT USAGE ON *.* TO `a`@`%`", f"GRANT {ALL} ON `other`.* TO `a`@`%`"], list(NEEDED)),
        (["GRANT SELECT ON `shop`.* TO `a`@`%`", "GRANT ALL PRIVILEGES ON `shop`.`t` TO `a`@`%`"], None),
    ],
)  # fmt: skip
def test_what_is_missing_in_a_database(grants: list[str], lacking: list[str] | None) -> None:
    assert missing(grants, "shop") == lacking


def test_roles_are_found() -> None:
    assert roles(["GRANT USAGE ON *.* TO `a`@`%`", "GRANT `r`@`%` TO `a`@`%`", "GRANT `s` TO `a`@`%`"]) == [
        "`r`@`%`",
        "`s`",
    ]
