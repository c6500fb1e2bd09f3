"""Which folder may import which, as data; and that the planning half runs without torch and off Linux.

    source file --ast--> every import in it, also those inside functions --> checked against ALLOWED

An import inside a function is lazy, but it is a dependency all the same; only the folders in LAZY may reach
further that way.
"""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "scalewright"
EVERYTHING = {
    "accept", "spec", "plan", "machine", "model", "parallel", "data", "checkpoint", "launch", "track",
    "evaluate", "inference", "budget", "goodput", "train", "dry_run", "parity", "bench", "diagnose", "emit", "serve",
    "report", "explore", "learn", "cli", "storage", "chaos",
}  # fmt: skip

ALLOWED: dict[str, set[str]] = {
    "spec": set(),
    "plan": {"spec"},
    "budget": {"spec", "plan", "inference"},  # what serving a size costs
    "goodput": {"spec", "plan"},
    "inference": {"spec", "plan"},
    "machine": {"spec"},
    "model": {"spec"},
    "parallel": {"spec", "model"},
    "storage": {"spec", "launch"},
    "data": {"spec", "storage"},
    "checkpoint": {"spec", "model", "parallel", "storage", "launch"},
    "launch": {"spec"},
    "track": {"spec", "machine"},
    "evaluate": {"spec", "model", "parallel", "checkpoint", "data"},
    "train": {"spec", "machine", "plan", "model", "parallel", "data", "checkpoint", "evaluate", "launch", "track"},
    "dry_run": {"spec", "machine", "plan", "model", "parallel", "data", "launch", "train"},
    "parity": {"spec", "parallel", "data", "checkpoint", "launch", "track", "train"},
    "bench": {"spec", "machine"},
    "chaos": {"spec", "launch", "checkpoint"},
    "accept": {"spec", "machine", "launch", "bench"},
    "diagnose": {"spec", "plan", "emit"},
    "emit": {"spec"},
    "serve": {"spec", "model", "parallel", "checkpoint", "data"},
    "report": {"spec", "plan", "diagnose", "goodput"},  # a run's wall time
    "explore": {"spec", "plan", "report"},
    "learn": {"spec"},
    "cli": {"spec"},
}

LAZY: dict[str, set[str]] = {
    "bench": {"model", "parallel", "train", "diagnose"},
    "learn": EVERYTHING,
    "cli": EVERYTHING,
}

# not even lazily
NO_TORCH_EVER = {
    "spec", "plan", "budget", "goodput", "inference", "report", "explore", "diagnose", "emit", "data", "storage",
}  # fmt: skip
NO_TORCH_AT_THE_TOP = {"cli", "machine", "launch", "track"}
WITHOUT_CIRCLES = (
    "plan", "budget", "goodput", "inference", "spec", "track", "emit", "train", "report", "explore", "data", "model",
    "parallel", "storage",
)  # fmt: skip  # among their files
UNIX_ONLY = {"fcntl", "resource", "pwd", "grp", "termios", "pty", "tty", "syslog"}


def files(folder: str) -> list[Path]:
    """The Python files of one folder."""
    return sorted((SOURCE / folder).rglob("*.py"))


def is_module(name: str) -> bool:
    """Whether a dotted name is a module or a folder of ours."""
    first, *rest = name.split(".")
    path = SOURCE.joinpath(*rest)
    return first == "scalewright" and (path.is_dir() or path.with_suffix(".py").is_file())


@functools.cache
def imports(path: Path) -> list[tuple[str, bool, int]]:
    """(module, lazy, line) of every import in a file; `if TYPE_CHECKING:` blocks don't count."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = ["scalewright", *path.relative_to(SOURCE).parent.parts]

    def walk(node: ast.AST, lazy: bool) -> Iterator[tuple[str, bool, int]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                continue
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                for other in child.orelse:
                    yield from walk(other, lazy)
                continue
            if isinstance(child, ast.Import):
                yield from ((alias.name, lazy, child.lineno) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                base = package[: len(package) - child.level + 1] if child.level else []
                module = ".".join([*base, *([child.module] if child.module else [])])
                inside = [f"{module}.{alias.name}" for alias in child.names]
                modules = {name for name in inside if is_module(name)}  # `from scalewright import spec`
                if len(modules) < len(inside):
                    modules.add(module)
                yield from ((name, lazy, child.lineno) for name in sorted(modules))
            inner = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
            yield from walk(child, lazy or inner)

    return list(walk(tree, False))


def folder_of(module: str) -> str | None:
    """The folder of ours that a module is in; None for anybody else's."""
    parts = module.split(".")
    return parts[1] if parts[0] == "scalewright" and len(parts) > 1 and parts[1] in EVERYTHING else None


def test_every_folder_is_in_the_table():
    present = {path.name for path in SOURCE.iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    assert present == set(ALLOWED) == EVERYTHING


@pytest.mark.parametrize("folder", sorted(ALLOWED))
def test_a_folder_imports_what_it_may(folder):
    problems = []
    for path in files(folder):
        for module, lazy, line in imports(path):
            target = folder_of(module)
            allowed = ALLOWED[folder] | {folder} | (LAZY.get(folder, set()) if lazy else set())
            if target is not None and target not in allowed:
                problems.append(f"{path.relative_to(SOURCE)}:{line} imports {module}")
    assert not problems


def test_the_package_itself_imports_nothing_of_ours():
    assert [m for m, lazy, _ in imports(SOURCE / "__init__.py") if folder_of(m) and not lazy] == []


def test_the_table_has_no_circle():
    """Follows the table and what the files really do, lazily or not (a verb may reach all: left out)."""
    real = {name: set(allowed) for name, allowed in ALLOWED.items()}
    for folder in EVERYTHING - {"cli", "learn"}:
        for path in files(folder):
            real[folder] |= {f for m, _, _ in imports(path) if (f := folder_of(m)) and f != folder}

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, f"a circle: {' -> '.join([*above, name])}"
        for other in sorted(real[name]):
            visit(other, (*above, name))

    for folder in EVERYTHING - {"cli", "learn"}:
        visit(folder, ())


# The planner's own folders, and which of the others each may import; files beside them: see the test below.
PLAN: dict[str, set[str]] = {"cost": set(), "rows": {"cost"}, "fitting": {"cost", "rows"}, "search": {"cost"}}


@pytest.mark.parametrize(
    ("room", "depth"), [("plan", 1), *((room, 2) for room in WITHOUT_CIRCLES)], ids=str,
)  # fmt: skip
def test_a_room_has_no_circle_inside(room, depth):
    """What one folder of it imports never leads back to that folder, and no file to itself."""
    real: dict[str, set[str]] = {}
    for path in files(room):
        parts = path.relative_to(SOURCE / room).with_suffix("").parts[:depth]
        inside = (module for module, _, _ in imports(path) if module.startswith(f"scalewright.{room}."))
        targets = (module.split(".")[2 : 2 + depth] for module in inside)
        real.setdefault(".".join(parts), set()).update(".".join(target) for target in targets)
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, f"a circle: {' -> '.join([*above, name])}"
        if name not in done:
            for other in sorted(real.get(name, set()) - {name}):
                visit(other, (*above, name))
            done.add(name)

    for name in real:
        visit(name, ())


def in_plan(module: str) -> bool:
    """Whether a module is below scalewright.plan."""
    return module.startswith("scalewright.plan.")


def test_the_planner_s_folders_import_what_they_may():
    present = {path.name for path in (SOURCE / "plan").iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert present == set(PLAN)
    problems = [
        f"{path.relative_to(SOURCE)}:{line} imports {module}"
        for folder, allowed in PLAN.items()
        for path in files(f"plan/{folder}")
        for module, _, line in imports(path)
        if in_plan(module) and module.split(".")[2] in present - allowed - {folder}
    ]
    assert not problems


@pytest.mark.parametrize("folder", sorted(NO_TORCH_EVER))
def test_no_torch_not_even_lazily(folder):
    found = [f"{p.name}:{line}" for p in files(folder) for m, _, line in imports(p) if m.split(".")[0] == "torch"]
    assert not found


@pytest.mark.parametrize("folder", sorted(NO_TORCH_AT_THE_TOP))
def test_torch_only_lazily(folder):
    found = [f"{p.name}:{n}" for p in files(folder) for m, lazy, n in imports(p) if m.startswith("torch") and not lazy]
    assert not found


def test_unix_modules_are_never_imported_at_the_top():
    found = [
        f"{path.relative_to(SOURCE)}:{line} {module}"
        for path in sorted(SOURCE.rglob("*.py"))
        for module, lazy, line in imports(path)
        if module in UNIX_ONLY and not lazy
    ]
    assert not found


# The base package: everything that works without the `train` extra.
BASE = (
    "spec", "plan", "budget", "goodput", "report", "explore", "track", "cli", "launch", "machine", "data", "diagnose",
    "emit", "storage",
)  # fmt: skip


def base_modules() -> list[str]:
    """Every module of the base package that exists."""
    names = []
    for folder in BASE:
        for path in files(folder):
            parts = ["scalewright", *path.relative_to(SOURCE).with_suffix("").parts]
            names.append(".".join(parts).removesuffix(".__init__"))
    return ["scalewright", *names]


BLOCKED = """
{first}
import importlib.abc, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named '{{name}}'", name=name)

BLOCKED = {blocked!r}
for name in list(sys.modules):
    if name.split(".")[0] in BLOCKED:
        del sys.modules[name]
sys.meta_path.insert(0, Absent())
{before}
import importlib
for name in {modules!r}:
    importlib.import_module(name)
{after}
print("fine")
"""


def run_blocked(
    blocked: set[str], first: str = "", before: str = "", after: str = ""
) -> subprocess.CompletedProcess[str]:
    """Imports the whole base package in a process where some modules can't be imported."""
    script = BLOCKED.format(blocked=sorted(blocked), first=first, before=before, after=after, modules=base_modules())
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)


EXTRAS = {
    "torch",
    "scipy",
    "matplotlib",
    "safetensors",
    "tokenizers",
    "pyarrow",
    "mlflow",
    "obstore",
    "tensorboard",
    "wandb",
    "transformers",
}


def test_the_base_package_imports_without_the_extras():
    done = run_blocked(EXTRAS, after="from scalewright.cli import main\nassert main(['presets', '--help']) == 0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("fine\n")


# As on Windows: no Unix modules, only the six signals that Windows has, none of the functions that os lacks
# there. Our own modules are imported after that; the libraries we depend on have builds for Windows, and here
# are imported before.
THE_LIBRARIES = """
import asyncio, concurrent.futures, multiprocessing.connection, socket, subprocess, tempfile, threading
import numpy, psutil, pydantic.main, rich.console, rich.progress, rich.table, typer, typer.main, yaml
"""
AS_ON_WINDOWS = """
import os, signal
WINDOWS = {"SIGABRT", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM"}
for name in list(vars(signal)):
    if name.startswith("SIG") and not name.startswith("SIG_") and name not in WINDOWS:
        delattr(signal, name)
for name in ("pthread_sigmask", "sigwait", "setitimer", "alarm", "pause"):
    if hasattr(signal, name):
        delattr(signal, name)
for name in ("fork", "getuid", "geteuid", "getgid", "sched_getaffinity", "sched_setaffinity", "killpg",
             "setsid", "getpgid", "statvfs", "uname", "mkfifo", "getloadavg", "sysconf", "nice"):
    if hasattr(os, name):
        delattr(os, name)
sys.platform = "win32"
"""


def test_the_base_package_imports_where_unix_is_absent():
    done = run_blocked(UNIX_ONLY | EXTRAS, first=THE_LIBRARIES, before=AS_ON_WINDOWS)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "fine\n"


def test_the_blocker_blocks():
    """The two tests above would pass on anything if nothing was blocked."""
    done = run_blocked({"yaml"})
    assert done.returncode != 0
    assert "No module named 'yaml'" in done.stderr


CHECKED = """
import sys
from scalewright.checkpoint.verify import verify
from scalewright.dry_run.fits_here import check_memory
from scalewright.spec.run import RunSpec
from scalewright.train import run, sweep
from scalewright.train.memory.out_of_memory import estimate, helps
from scalewright.train.resolve import resolve
model = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
         "num_attention_heads": 2}
data, loss = {"train": "tokens", "seq_len": 16}, {"python": "mine:loss", "reduction": "mean"}
run = RunSpec.parse({"model": model, "data": data, "loss": loss, "layout": {"devices": 2}})
checked = resolve(run, read_data=False)
assert estimate(checked.run, 16).high and helps(checked.run, 16, 2.0**40, 2)
assert "torch" not in sys.modules, "torch"
"""


def test_a_run_is_checked_without_torch():
    """`train` checks a run and its memory while its workers import torch: seconds of every start. So do the verbs that
    only read files of a checkpoint."""
    done = subprocess.run([sys.executable, "-c", CHECKED], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
