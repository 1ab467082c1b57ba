"""Archives of server binaries, unpacked into the folder of a cache entry."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import IO, Literal


def unpack_tar(packed: IO[bytes], folder: Path, *, compression: Literal["gz", "xz"]) -> None:
    """Put the files of a compressed tar archive into `folder`, with their modes and links."""
    mode: Literal["r|gz", "r|xz"] = "r|gz" if compression == "gz" else "r|xz"
    archive = tarfile.open(fileobj=packed, mode=mode)  # noqa: SIM115
    # Debian 12's Python is older than the filters.
    if hasattr(tarfile, "data_filter"):
        archive.extractall(folder, filter="data")
    else:
        archive.extractall(folder)
    archive.close()
