"""``[logging]``: a file with the lines of a run, beside what its terminal shows (`raycdc.control.log_file`)."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from raycdc.config.fields import FilePath, Options, option


class LogLevel(StrEnum):
    """How much is written, from much to little."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LoggingOptions(Options):
    """The log file of a run. What the terminal shows, and `run --json` prints, is the same with it and without."""

    file: FilePath = option(
        "",
        help="Lines are added to this file, which its user alone can read; it is opened anew when something else lies "
        "at its place (logrotate). Empty: none.",
        example="/var/log/raycdc/shop.log",
    )
    format: Literal["json", "text"] = option(
        "json", help="json: the lines of run --json (raycdc explain lines). text: time, level, event, KEY=VALUE."
    )
    level: LogLevel = option(
        LogLevel.INFO,
        help="What is written at least. info: each turn of the run, a line each. debug: also its progress twice a "
        "second, its steps, and what libraries say at their level INFO.",
    )
