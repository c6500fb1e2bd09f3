"""`sw.plan(...)`, `sw.train(...)`, `sw.diagnose(...)`: packages that can be called, as they share a name.

Importing `scalewright.plan.anything` sets `scalewright.plan` to the package, whatever stood there before; so
the package itself passes a call on to the function of its name.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


def make_callable(package: str, home: str) -> None:
    """Lets a package be called as the function of the same name in the module `home`."""
    name = package.rpartition(".")[2]

    class CallablePackage(ModuleType):
        def __call__(self, *arguments: Any, **keys: Any) -> Any:
            return getattr(importlib.import_module(home), name)(*arguments, **keys)

    sys.modules[package].__class__ = CallablePackage
