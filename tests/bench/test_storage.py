"""Files of a checkpoint's size: rows in order, nothing left behind, and a folder that isn't there."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalewright.bench.storage import BLOCK, storage
from scalewright.spec.errors import UserError


@pytest.mark.parametrize("size", [1, 3000, BLOCK + 5])
def test_every_byte_is_written_and_the_file_removed(tmp_path: Path, size: int) -> None:
    rows = list(storage(tmp_path, size))
    assert [row["what"] for row in rows][:3] == ["write", "write and sync", "read, cached"]
    assert all(row["bytes"] == size for row in rows)
    assert rows[0]["time_s"] <= rows[1]["time_s"]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        list(storage(tmp_path / "no", 10))
