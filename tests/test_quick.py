"""Which tests a change selects: by imports, lazy ones, verbs of the command line, tables of names, data.

Of this repository itself: tests/test_architecture.py, which reads its imports anyway.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from quick import ALWAYS, graph, touched

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The graph of a small repository: near.py <- far.py, a verb, and a module that a table names."""
    root = tmp_path_factory.mktemp("small")
    files = {
        "src/scalewright/near.py": "",
        "src/scalewright/far.py": "def f():\n    from scalewright.near import g",
        "src/scalewright/emit/table.py": "importlib.import_module(name)",
        "src/scalewright/emit/one/read.py": "",
        "src/scalewright/cli/__init__.py": "from scalewright.cli.verbs import register",
        "src/scalewright/cli/verbs/__init__.py": "from scalewright.cli.verbs.plan import plan",
        "src/scalewright/cli/verbs/plan.py": "from scalewright import far",
        "tests/helper.py": "from scalewright.far import f",
        "tests/test_near.py": "import scalewright.near",
        "tests/test_helped.py": "from helper import f",
        "tests/emit/test_table.py": "from scalewright.emit import table",
        "tests/test_command.py": 'call_cli("plan", "--json")',
        "tests/test_other.py": 'call_cli("train")',
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return graph(root)


def test_the_nearest_tests_come_first(small: dict[str, set[str]]) -> None:
    assert touched(["src/scalewright/near.py"], small) == [
        ALWAYS, "tests/test_near.py", "tests/test_command.py", "tests/test_helped.py",
    ]  # fmt: skip


def test_a_module_that_only_a_table_names_is_reached(small: dict[str, set[str]]) -> None:
    assert touched(["src/scalewright/emit/one/read.py"], small) == [ALWAYS, "tests/emit/test_table.py"]


def test_a_changed_test_is_run_and_data_reach_the_files_beside_it(small: dict[str, set[str]]) -> None:
    assert touched(["tests/test_other.py"], small) == [ALWAYS, "tests/test_other.py"]
    assert touched(["src/scalewright/emit/data/words.yaml"], small) == [ALWAYS, "tests/emit/test_table.py"]
    assert touched(["LICENSE-not-named-anywhere"], small) == [ALWAYS]


def test_what_has_no_time_is_skipped_and_counted(tmp_path: Path) -> None:
    (tmp_path / "test_slow.py").write_text("import time\ndef test_a(): time.sleep(1)\ndef test_b(): pass\n")
    command = [sys.executable, "-m", "pytest", "-p", "quick", "-p", "no:cacheprovider", "--within", "0.9"]
    done = subprocess.run(
        [*command, "-c", "/dev/null", "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path, env={"PYTHONPATH": str(ROOT / "tests"), "PATH": ""}, capture_output=True, text=True,
    )  # fmt: skip
    assert "1 tests had no time" in done.stdout, done.stdout + done.stderr
    assert "1 passed, 1 skipped" in done.stdout
