"""A user's own code by name: `package.module:name`, with the working directory importable.

`model: {python: mine:build}` finds ./mine.py; so do `data`, `loss` and `optimizer`.

    trusted       the run file on the command line of `train` or `parity`, its overrides, a spec in Python
    not trusted   a checkpoint's manifest, the run.yaml of a folder that `generate`, `evaluate`, ... read:
                  code that these name is imported only with --trust-code
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from scalewright.spec.errors import UserError


def import_object(ref: str) -> Callable[..., Any]:
    """The object of `package.module:name`, with the working directory importable; raises UserError."""
    module_name, separator, name = ref.partition(":")
    if not separator or not module_name or not name:
        raise UserError(f"'{ref}' is not package.module:name", "python", "write it like mymodel:build")
    with _working_directory():
        try:
            target: Any = _running_script(module_name) or importlib.import_module(module_name)
        except Exception as error:
            problem = f"cannot import '{module_name}': {type(error).__name__}: {error}"
            raise UserError(problem, f"python: {ref}", "install it, or put it into the working directory") from error
    for part in name.split("."):
        if not hasattr(target, part):
            how = "check the name after the colon"
            raise UserError(f"module '{module_name}' has no '{name}'", f"python: {ref}", how)
        target = getattr(target, part)
    if not callable(target):
        problem = f"'{ref}' is {type(target).__name__}, which can't be called"
        raise UserError(problem, "python", "name a function or a class")
    return target  # type: ignore[no-any-return]


def _running_script(module_name: str) -> ModuleType | None:
    """The running script, when a name is that of its module: importing it would run it again."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if file is None or "." in module_name or Path(file).stem != module_name:
        return None
    spec = importlib.util.find_spec(module_name)
    same = spec is not None and spec.origin is not None and Path(spec.origin).resolve() == Path(file).resolve()
    return main if same else None


def check_trusted(ref: str, where: str, trust_code: bool) -> None:
    """Raises UserError unless the user trusts the file that names this code."""
    if not trust_code:
        how = "add --trust-code if you trust where it comes from (trust_code=True in Python)"
        raise UserError(f"this names code of its own, '{ref[:80]}', and using it would run that code", where, how)


@contextmanager
def _working_directory() -> Iterator[None]:
    """The working directory first on the import path, during one import."""
    folder = str(Path.cwd())
    added = folder not in sys.path and "" not in sys.path
    if added:
        sys.path.insert(0, folder)
    try:
        yield
    finally:
        if added:
            sys.path.remove(folder)
