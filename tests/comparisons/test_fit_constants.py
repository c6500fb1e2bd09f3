"""Fitted constants are written in place: nothing but their values changes."""

from __future__ import annotations

from pathlib import Path

from fit_constants import write

from scalewright.plan.constants import FILE, constants, facts


def test_writing_keeps_everything_but_the_values(tmp_path: Path) -> None:
    path = tmp_path / "constants.yaml"
    path.write_text(FILE.read_text(encoding="utf-8"), encoding="utf-8")
    write(constants(), path, alone=[fact.name for fact in facts() if fact.one_source])
    before, after = (file.read_text(encoding="utf-8").splitlines() for file in (FILE, path))
    assert len(before) == len(after)
    assert [line.split("unit")[-1] for line in before] == [line.split("unit")[-1] for line in after]
