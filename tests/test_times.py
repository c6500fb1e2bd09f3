"""Long files begin first, and a run's log says where its time went."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests import times

ROOT = Path(__file__).resolve().parent.parent


def test_long_files_begin_first_and_files_stay_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(times, "FILE", tmp_path / "durations.json")
    times.FILE.write_text(json.dumps({"b.py": 7, "c.py": 90}))
    items = [SimpleNamespace(nodeid=name) for name in ("a.py::1", "b.py::1", "b.py::2", "c.py::1", "d.py::1")]
    times.pytest_collection_modifyitems(items)  # type: ignore[arg-type]
    assert [item.nodeid for item in items] == ["c.py::1", "b.py::1", "b.py::2", "a.py::1", "d.py::1"]


def test_seconds_by_folder_and_by_file() -> None:
    reports = [SimpleNamespace(nodeid=f"tests/{name}", duration=2.0) for name in ("a/x.py::1", "a/x.py::2", "b.py::1")]
    files = times.seconds_of_files(reports)  # type: ignore[arg-type]
    assert files == Counter({"tests/a/x.py": 4.0, "tests/b.py": 2.0})
    lines = times.table(files)
    assert lines[0] == "seconds of a worker, 6 in all:"
    assert [line.split() for line in lines[1:3]] == [["4", "67%", "tests/a"], ["2", "33%", "tests/b.py"]]


def test_the_listed_files_exist_and_make_test_reads_them() -> None:
    listed = json.loads(times.FILE.read_text(encoding="utf-8"))
    assert all((ROOT / file).is_file() and seconds >= times.LEAST_S for file, seconds in listed.items())
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert len(re.findall(r"\$\(PYTEST\) -p tests\.times", makefile)) == 2  # of `test` and `suite`
    assert "--no-loadscope-reorder" in makefile
