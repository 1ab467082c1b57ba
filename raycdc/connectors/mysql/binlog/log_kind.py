"""The kind of log that is decoded: whose it is, and how its events end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogKind:
    """A log of MySQL or of MariaDB.

    `verify_checksums` compares CRC32s. In a `whole_file` each event ends where it lies; a dump leaves some out.
    """

    mariadb: bool = False
    verify_checksums: bool = True
    whole_file: bool = False


@dataclass(frozen=True, slots=True)
class EventEnds:
    """How events end at a place of the log, for what copies them without their checksums.

    Behind each are `checksum_bytes`, which are compared where `verify` says so. `position` is where the event before
    ends (32 bits), if each must end where it lies; -1 if not.
    """

    checksum_bytes: int
    verify: bool
    position: int = -1
