"""Which scripts of the suite are followed: whole suites by name, single ones as ``suite/name``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.suites.package import SuitePackage
from tests.suites.script import Script, load

#: What `make test` follows: short scripts, each for something else that a log may have.
SMALL = (
    "main/insert",
    "main/replace",
    "main/truncate",
    "main/rename",
    "main/rollback",
    "main/trigger-trans",
    "main/implicit_commit",
    "main/xa",
    "main/sp_trans",
    "main/type_json",
    "main/type_varbinary",
    "main/create_replace_tmp",
    "main/loaddata",
    "main/partition_truncate",
    "main/invisible_field",
    "main/ps_ddl1",
    "main/multi_update",
    "main/foreign_key",
    "main/default_innodb",
    "gcol/gcol_ins_upd_innodb",
    "vcol/alter_inplace-9045",
    "period/update",
    "innodb/instant_alter_null",
    "compat/oracle/sequence",
    "main/gis-rtree",
    "main/merge_innodb",
    "main/ctype_filename_innodb",
    "csv/lowercase_table0",
)
#: Suites about tables and their rows; others are about replicas, clusters, encryption, plans and settings.
SUITES = (
    "main",
    "archive",
    "binlog",
    "compat/maxdb",
    "compat/oracle",
    "csv",
    "engines/funcs",
    "engines/iuds",
    "funcs_2",
    "gcol",
    "heap",
    "innodb",
    "innodb_gis",
    "jp",
    "json",
    "maria",
    "parts",
    "period",
    "sql_sequence",
    "storage_engine",
    "vcol",
    "versioning",
)


def find(package: SuitePackage, names: Sequence[str]) -> dict[str, Path]:
    """The scripts of suites and single scripts, by name; what is not there is left out."""
    found: dict[str, Path] = {}
    for name in names:
        for path in _files(package.scripts, name):
            folder = path.parent.relative_to(package.scripts).as_posix()
            found[f"{folder.removeprefix('suite/').removesuffix('/t')}/{path.stem}"] = path
    return found


def _files(home: Path, name: str) -> list[Path]:
    folders = [home / name, home / "suite" / name, home / "suite" / name / "t"]
    files = [path for folder in folders if folder.is_dir() for path in sorted(folder.glob("*.test"))]
    suite, _, script = name.rpartition("/")
    singles = [home / suite, home / "suite" / suite, home / "suite" / suite / "t"]
    return files + [path for folder in singles if (path := folder / f"{script}.test").is_file()]


def loaded(package: SuitePackage, paths: Mapping[str, Path]) -> list[Script]:
    """The scripts, rewritten, each with the name of its database."""
    return [
        load(path, name, f"s{number}_{re.sub(r'[^a-z0-9]+', '_', name.lower())}"[:60], home=package.scripts)
        for number, (name, path) in enumerate(paths.items())
    ]
