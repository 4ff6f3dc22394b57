"""specbench: which speculative-decoding method makes this model faster, by how much, and why.

``from specbench import run, load``: a run, and one that was made before, as values with data frames
(``specbench.runs.result``). Imported when they are asked for: ``import specbench`` alone is light.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from specbench.version import __version__

if TYPE_CHECKING:
    from specbench.runs.result import Result, load, run

__all__ = ["Result", "__version__", "load", "run"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("specbench.runs.result"), name)
    raise AttributeError(f"module 'specbench' has no attribute {name!r}; it has {', '.join(__all__)}")
