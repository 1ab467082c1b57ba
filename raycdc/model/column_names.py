"""Comparison of column names: one function for each kind of system that ignores case in column names.

Each function returns a text that is the same for two names if and only if the system takes the names for one column.
Case-sensitive systems (PostgreSQL, MongoDB, JSON) need no function. `str.casefold` is not usable: it makes ``Straße``
and ``STRASSE`` equal, which are two columns in every supported system. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

Fold = Callable[[str], str]

#: The capital letters that MySQL and MariaDB convert in identifiers, as the first and last of each range: the letters
#: of Unicode 3.0. Capitals of later Unicode versions, such as ẞ, have no small letter there. MySQL 5.7, 8.0 and 9.7 and
#: MariaDB 10.11 agree on all letters, as tests/integration/connectors/test_column_names.py shows.
_CAPITALS = (
    (0x0041, 0x005A),
    (0x00C0, 0x021E),
    (0x0222, 0x0232),
    (0x0386, 0x03AB),
    (0x03DA, 0x03EE),
    (0x0400, 0x0480),
    (0x048C, 0x04BE),
    (0x04C1, 0x04C3),
    (0x04C7, 0x04C7),
    (0x04CB, 0x04CB),
    (0x04D0, 0x04F4),
    (0x04F8, 0x04F8),
    (0x0531, 0x0556),
    (0x1E00, 0x1E94),
    (0x1EA0, 0x1EF8),
    (0x1F08, 0x1FFC),
    (0x212A, 0x212B),
    (0x2160, 0x216F),
    (0x24B6, 0x24CF),
    (0xFF21, 0xFF3A),
)


def mysql_fold(name: str) -> str:
    """Return `name` in the form in which MySQL and MariaDB compare names of columns: in small letters.

    Each letter becomes exactly one letter, so ``ß`` differs from ``ss``. Letters with accents differ from those
    without.
    """
    return name.lower() if name.isascii() else name.translate(_SMALL)


def spark_fold(name: str) -> str:
    """Return `name` in the form in which Spark, Delta and Iceberg's readers compare names of columns if case is
    ignored.

    Spark compares ``toLowerCase(Locale.ROOT)`` of names, which `str.lower` equals.
    """
    return name.lower()


def find_name(name: str, names: Iterable[str], fold: Fold) -> str | None:
    """Return `name` if it is one of `names`, else the first of them that equals it by `fold`, else None."""
    equal: str | None = None
    wanted = fold(name)
    for other in names:
        if other == name:
            return other
        if equal is None and fold(other) == wanted:
            equal = other
    return equal


def _small(capital: str) -> str:
    # For U+0130, the capital I with a dot, `str.lower` returns two characters. It is the only such letter.
    small = "i" if capital == "\u0130" else capital.lower()
    return small if len(small) == 1 else capital


_SMALL = {number: _small(chr(number)) for first, last in _CAPITALS for number in range(first, last + 1)}
