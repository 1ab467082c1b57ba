"""raycdc: change data capture for people who live in Python and Spark.

The names a user needs are re-exported lazily, so that ``import raycdc`` (and every inspection command)
starts without Ray and Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Pipeline", "__version__"]

if TYPE_CHECKING:
    from raycdc.pipeline import Pipeline


def __getattr__(name: str) -> Any:
    if name == "Pipeline":
        from raycdc.pipeline import Pipeline

        return Pipeline
    raise AttributeError(f"module 'raycdc' has no attribute {name!r}")
