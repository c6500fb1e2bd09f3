"""Nothing in the package runs what it reads, and nothing but `launch/` reads the environment: by its syntax.

pickle.load, torch.load, eval, exec, yaml.load without a safe loader, weights_only=False     nowhere
os.environ, os.getenv                                                                        launch/ alone
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "scalewright"
CALLS = {"eval", "exec", "compile", "__import__"}
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"}
LOADS = {"torch.load", "numpy.load", "np.load", "yaml.unsafe_load", "yaml.full_load", "yaml.load_all"}
LOADS |= {"os.system"}
SAFE_LOADERS = {"_Loader", "_Fastest", "loader"}  # subclasses, or names, of yaml.SafeLoader and CSafeLoader
ENVIRONMENT = {"os.environ", "os.getenv", "os.putenv"}
# Bytes that torch's flight recorder makes in this very process: they come from no file and no other rank
OWN_BYTES = {("train/hangs/position.py", "pickle.loads(dump(True, stacks, False))")}
# Opcodes, in an interpreter that can't import or call: test_pickles.py, checkpoint/foreign/test_hostile.py
OPCODES = {("spec/common/pickles.py", "pickle")}
# Variables that are set for a library, in a process of ours, before it is imported; or for Python, so that a process of
# ours doesn't import from the working folder
WRITES = {"machine/ranks.py", "data/workers.py", "checkpoint/background.py", "spec/common/own_imports.py"}


def found_in(text: str, where: str) -> Iterator[str]:
    """What a file does that it may not, by line."""
    for node in ast.walk(ast.parse(text)):
        line = f"{where}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from (f"{line} imports {name}" for name in names if name.split(".")[0] in MODULES - _own(where))
        outside = not where.startswith("launch/") and where not in WRITES
        if outside and isinstance(node, ast.Attribute) and ast.unparse(node) in ENVIRONMENT:
            yield f"{line} reads the environment"
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        called = name.split(".")[0] in MODULES and "(" not in name  # not what is called on its result
        if called and (where, ast.unparse(node)) not in OWN_BYTES:
            yield f"{line} calls {name}"
        keys = {key.arg: ast.unparse(key.value) for key in node.keywords}
        if name in CALLS or (name in LOADS and not refuses_pickles(name, keys)):
            yield f"{line} calls {name}"
        if name == "yaml.load" and keys.get("Loader") not in SAFE_LOADERS:
            yield f"{line} calls yaml.load with {keys.get('Loader')}"
        if keys.get("weights_only") == "False" or keys.get("allow_pickle") == "True":
            yield f"{line} lets {name} run pickles"


def _own(where: str) -> set[str]:
    """Modules that a file may import: for the calls of OWN_BYTES, or for a pickle's opcodes."""
    return {call.split(".")[0] for file, call in OWN_BYTES | OPCODES if file == where}


def refuses_pickles(name: str, keys: dict[str | None, str]) -> bool:
    """numpy's own reader, which takes arrays alone unless `allow_pickle` is true."""
    return name in ("np.load", "numpy.load") and keys.get("allow_pickle", "False") == "False"


def test_the_package_runs_nothing_that_it_reads() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    assert len(files) > 300
    problems = [
        problem
        for path in files
        for problem in found_in(path.read_text(encoding="utf-8"), path.relative_to(SOURCE).as_posix())
    ]
    assert not problems


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from pickle import loads",
        "eval('1')",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "numpy.load(path, allow_pickle=True)",
        "yaml.load(text, Loader=yaml.Loader)",
        "yaml.load(text)",
        "yaml.unsafe_load(text)",
        "os.system('ls')",
        "x = os.environ['HOME']",
        "os.getenv('HOME')",
    ],
)
def test_it_would_be_found(text: str) -> None:
    assert list(found_in(text, "spec/x.py"))


def test_a_file_that_may_read_its_own_bytes_may_read_no_others() -> None:
    assert list(found_in("import pickle\npickle.loads(content)", "train/hangs/position.py"))


def test_what_is_safe_is_let_through() -> None:
    text = "numpy.load(path)\nyaml.load(text, Loader=_Loader)\nmodel.eval()\nre.compile('x')"
    assert not list(found_in(text, "spec/x.py"))
