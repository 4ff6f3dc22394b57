"""The former name of ``specbench.models``: the same modules under the old name, for one more version."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_OLD, _NEW = f"{__name__}.", "specbench.models."


class _Alias(MetaPathFinder, Loader):
    """Imports ``specbench.target.X`` as the module object of ``specbench.models.X``."""

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname.startswith(_OLD) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(spec.name.replace(_OLD, _NEW, 1))
        spec.loader_state = module.__spec__  # the import system is about to replace it by this one
        return module

    def exec_module(self, module: ModuleType) -> None:
        alias = module.__spec__
        assert alias is not None
        module.__spec__ = alias.loader_state
        sys.modules[alias.name] = module


sys.meta_path.insert(0, _Alias())
__path__: list[str] = []
warnings.warn("specbench.target is now specbench.models; the old name goes in version 0.2", DeprecationWarning, 2)


def __getattr__(name: str) -> Any:
    return getattr(import_module("specbench.models"), name)
