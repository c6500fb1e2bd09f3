"""`make quick`: the tests that a change can have touched, nearest first, for as long as asked.

    git diff REV ──► changed files ──► imports, backwards ──► test files, by how many imports lie between

An edge is an import anywhere in a file, also inside a function. A test that calls the command line has edges
to the verbs that it names: `call_cli("plan", ...)` to cli/verbs/plan.py, not to all. A module that nothing
imports is named by a table: its edge comes from the nearest file that calls `import_module`. Data touch the
Python files beside them and the tests that have their name, a page the tests of pages.

As a pytest plugin (`-p quick --within SECONDS`) it skips what begins later than that, and says how many.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ALWAYS, PAGES = "tests/test_tiny.py", "tests/test_docs.py"
CLI = "src/scalewright/cli/__init__.py"
REGISTER = "src/scalewright/cli/verbs/__init__.py"  # imports every verb: an edge that would touch every test
Graph = Mapping[str, set[str]]


def python_files(root: Path) -> list[str]:
    """The Python files of the repository, relative to its root."""
    folders = [root / "src", root / "tests", root / "comparisons"]
    return sorted(path.relative_to(root).as_posix() for folder in folders for path in folder.rglob("*.py"))


def graph(root: Path = ROOT) -> dict[str, set[str]]:
    """File -> the files of the repository that it imports."""
    files = python_files(root)
    by_module = {module: file for file in files for module in _modules(file)}
    verbs = {Path(file).stem: file for file in files if file.startswith("src/scalewright/cli/verbs/")}
    edges: dict[str, set[str]] = {}
    loaders: list[str] = []
    for file in files:
        text = (root / file).read_text(encoding="utf-8")
        edges[file] = {by_module[name] for name in _imports(text, file) if name in by_module} - {file}
        if file == REGISTER:
            edges[file] = set()
        if "import_module(" in text:
            loaders.append(file)
        if re.search(r"\b(call_cli|run_cli)\b|scalewright\.cli", text) and file.startswith("tests/"):
            edges[file] |= {CLI} | {verbs[word] for word in verbs if re.search(rf"[\"' ]{word}[\"' ]", text)}
    imported = {target for targets in edges.values() for target in targets}
    for file in set(files) - imported:
        near = [other for other in loaders if Path(file).is_relative_to(Path(other).parent)]
        if file.startswith("src/") and near:
            edges[max(near, key=lambda other: len(Path(other).parts))].add(file)
    return edges


def _modules(file: str) -> Iterator[str]:
    """The names by which a file is imported: `scalewright.plan.ask`; `runs`, `tests.runs`."""
    parts = list(Path(file).with_suffix("").parts)
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    yield ".".join(parts)
    if parts[0] in {"src", "tests"}:
        yield ".".join(parts[1:])


def _imports(text: str, file: str) -> Iterator[str]:
    package = list(Path(file).parent.parts)
    for node in _statements(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """All within a node, but for expressions, which contain no import."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):
            yield child
            yield from _statements(child)


def touched(changed: Iterable[str], edges: Graph) -> list[str]:
    """The test files that reach a changed file, by the number of imports between; test_tiny.py first."""
    importers: dict[str, set[str]] = {file: set() for file in edges}
    for file, imported in edges.items():
        for target in imported:
            importers[target].add(file)
    layer = {file for path in changed for file in _sources(path, edges)}
    distance: dict[str, int] = {}
    while layer:
        step = max(distance.values(), default=-1) + 1
        distance |= dict.fromkeys(layer, step)
        layer = {importer for file in layer for importer in importers[file]} - set(distance)
    tests = [file for file in distance if Path(file).name.startswith("test_")]
    nearest = sorted(tests, key=lambda file: (distance[file], file))
    return [ALWAYS, *(file for file in nearest if file != ALWAYS)]


def _sources(path: str, edges: Graph) -> set[str]:
    """A changed Python file; for others the tests that name them, and the Python files of their folder."""
    if path.endswith(".py"):
        return {path} & set(edges)
    if path.endswith(".md"):
        return {PAGES} & set(edges)
    name, folder = Path(path).name, Path(path).parent
    tests = {file for file in edges if file.startswith("tests/") and name in _text(file)}
    while folder != Path() and not any(Path(file).parent == folder for file in edges):
        folder = folder.parent
    return tests | {file for file in edges if folder != Path() and Path(file).parent == folder}


def _text(file: str) -> str:
    path = ROOT / file
    return path.read_text(encoding="utf-8") if path.exists() else ""


def changed_since(revision: str | None) -> list[str]:
    """Files that differ from a revision's common ancestor with HEAD, or that git doesn't have yet."""
    if revision is None:
        head, main = _git("rev-parse", "HEAD"), _git("rev-parse", "--verify", "-q", "main", check=False)
        revision = "HEAD~1" if main in ([], head) else "main"
    base = _git("merge-base", revision, "HEAD")[0]
    return _git("diff", "--name-only", base) + _git("ls-files", "--others", "--exclude-standard")


def _git(*arguments: str, check: bool = True) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=check)
    return done.stdout.splitlines()


# -- the plugin ---------------------------------------------------------------------------------------

BEGAN = pytest.StashKey[float]()
LATE = "out of time"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--within", type=float, help="skip tests that would begin after so many seconds")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    limit = item.config.getoption("--within")
    began = item.config.stash.setdefault(BEGAN, time.monotonic())
    if limit is not None and time.monotonic() - began > limit:
        pytest.skip(LATE)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    late = sum(LATE in str(report.longrepr) for report in terminalreporter.stats.get("skipped", []))
    if late:
        terminalreporter.write_line(f"{late} tests had no time, the nearest ones ran: `make test` runs all")


if __name__ == "__main__":
    print(*touched(changed_since(sys.argv[1] if len(sys.argv) > 1 else None), graph()), sep="\n")
