"""Texts that tasks elsewhere are sent, of a folder in which others write."""

from __future__ import annotations

import threading
from pathlib import Path

from raycdc.core.secrets import all_private
from raycdc.state.files.folder import private_file


def test_a_file_that_is_given_its_name_meanwhile_ends_nothing(tmp_path: Path) -> None:
    """As a sink writes a renewed password: into a new file, which takes the place of the old one."""
    kept = tmp_path / "password"

    def renew() -> None:
        for number in range(1000):
            private_file(tmp_path, str(number)).replace(kept)

    writer = threading.Thread(target=renew)
    writer.start()
    while writer.is_alive():
        all_private(tmp_path)
    writer.join()
    assert all_private(tmp_path) == {str(kept): "999"}
