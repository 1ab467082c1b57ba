"""The keys of every document stay what they are: a field may be renamed, but its key is a promise to states on disk.

`golden/stored_names.json` has the keys of each `JsonObject`, in their order. A class or key that is new is added there;
a key that goes or changes needs a new version of its document, and an upgrade.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from raycdc.core.typed_codec import JsonObject, stored_names
from tests.unit.test_tidy import ROOT, source_files

GOLDEN = Path(__file__).parent / "golden" / "stored_names.json"


def every_class(base: type[JsonObject]) -> Iterator[type[JsonObject]]:
    for cls in base.__subclasses__():
        # A dataclass with slots is made twice; the first one is nobody's.
        if getattr(sys.modules[cls.__module__], cls.__name__, None) is cls and cls.__module__.startswith("raycdc."):
            if "__dataclass_fields__" in cls.__dict__:
                yield cls
            yield from every_class(cls)


def test_every_document_has_the_keys_that_states_have() -> None:
    for path in source_files("raycdc"):
        if "JsonObject" in path.read_text(encoding="utf-8"):
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
    found = {f"{cls.__module__.split('.')[1]}.{cls.__name__}": stored_names(cls) for cls in every_class(JsonObject)}
    assert dict(sorted(found.items())) == json.loads(GOLDEN.read_text(encoding="utf-8"))
