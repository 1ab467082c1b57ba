"""Replaces a private Ray's agents: a script that reports ports without serving them, and ends with the raylet.

A raylet registers once its agents have reported their ports, which costs two Python processes that import Ray. This
script replaces them. It is run with ``python -I -S ray_stand_in.py FOLDER NODE NAME...``, and writes for each name the
file in which the raylet looks for the port.
"""

from __future__ import annotations

import os
import sys

#: The answer of an agent that serves nothing.
NO_PORT = "-1"


def main(folder: str, node: str, *names: str) -> None:
    """Write the port files, then wait for the end of the raylet, which has the other end of standard input."""
    for name in names:
        path = os.path.join(folder, f"{name}_{node}")  # noqa: PTH118 - pathlib would double the time this takes
        with open(path + ".new", "w") as file:  # noqa: PTH123
            file.write(NO_PORT)
        os.rename(path + ".new", path)  # noqa: PTH104
    while os.read(0, 4096):
        pass


if __name__ == "__main__":
    main(*sys.argv[1:])
