"""Folders and files of this machine, as configurations and callers name them.

A text such as ``s3a://lake/shop`` or ``file:///lake`` is a valid relative path to the operating system, which would
make a folder called ``s3a:``. Every place that takes a path refuses such a text here.
"""

from __future__ import annotations

import re

#: With one slash, too: what `pathlib` makes of a URL has no second one.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")


def check_local_path(text: str) -> str:
    """`text`, if it names a place in this machine's file system (or is empty). Raises ValueError with the way out."""
    if scheme := _SCHEME.match(text):
        way_out = f'write "/{text[len(scheme[0]) :].lstrip("/")}"' if scheme[1].lower() == "file" else _MOUNT
        raise ValueError(f'"{text}" is a URL, and {scheme[1]}: is not supported; {way_out}')
    if text == "~" or text.startswith("~/"):
        raise ValueError(f'"{text}" would be a folder called "~"; write "${{env:HOME}}{text[1:]}"')
    if "\0" in text:
        raise ValueError("holds a NUL character, which no path may")
    return text


_MOUNT = "name a folder of this machine, where other storage may be mounted"
