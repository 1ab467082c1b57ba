"""The advice to begin with another state is one that a start accepts: it says what happens to the targets."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import raycdc
from raycdc.state import codec

#: The packages whose errors are about a state that has targets.
#: A state that is chosen is one that does not exist yet.
ADVICE = re.compile(r"(?<!choose )\b(?:another|a new) pipeline\.state(?:[ .,)]|$)")
PACKAGES = ("state", "delivery", "driver/state_admin", "source", "connectors")


def test_no_text_advises_another_state_without_saying_what_happens_to_the_targets() -> None:
    root = Path(raycdc.__file__).parent
    found = {
        f"{path.relative_to(root)}: {text}"
        for package in PACKAGES
        for path in (root / package).rglob("*.py")
        for text in silent_advice(path.read_text())
    }
    assert not found
    assert "pipeline.on_existing" in codec.NEW_STATE


def silent_advice(source: str) -> Iterator[str]:
    """Yield texts that advise another state and are refused by the next start, because its targets are not its own."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) for part in node.values if isinstance(part, ast.Constant))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        if ADVICE.search(text) and "pipeline.on_existing" not in text:
            yield text


@pytest.mark.parametrize(
    "advice",
    [
        'f"{x} Or begin with another pipeline.state and a new snapshot."',
        "'another pipeline.state.'",
        "'(a new pipeline.state)'",
    ],
)
def test_a_silent_advice_is_found(advice: str) -> None:
    assert [*silent_advice(f"raise StateError({advice})")]
