"""Folders of anybody: whatever their files hold, there is a list of findings, in time, and nothing outside is read."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoint.lint.folders import INDEX, export, written

from scalewright.checkpoint.lint import lint

VALUES: list[Any] = [
    None, True, -1, 0, 1e400, float("nan"), "x", "", [], [1], ["a", None], {}, {"a": 1}, 10**30, {"content": 3}, 1.5,
]  # fmt: skip
DEEP = "[" * 100_000 + "]" * 100_000


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(tmp_path_factory.mktemp("clean"), chat=False)


def changed(value: Any, draw: random.Random) -> Any:
    """A value of another kind, somewhere within."""
    if isinstance(value, dict) and value and draw.random() < 0.85:
        key = draw.choice(list(value))
        return {**value, key: changed(value[key], draw)}
    if isinstance(value, list) and value and draw.random() < 0.8:
        at = draw.randrange(len(value))
        return [*value[:at], changed(value[at], draw), *value[at + 1 :]]
    return draw.choice(VALUES)


@pytest.mark.parametrize("seed", range(2))
def test_wrong_values_and_damaged_bytes_are_findings(seed: int, clean: Path, tmp_path: Path) -> None:
    draw, folder = random.Random(seed), tmp_path / "export"
    names = sorted(path.name for path in clean.glob("*.json"))
    noted = 0
    for _ in range(40):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(clean, folder)
        for name in draw.sample(names, 2):
            (folder / name).write_text(json.dumps(changed(json.loads((folder / name).read_text()), draw)))
        path = draw.choice(sorted(folder.iterdir()))
        content = bytearray(path.read_bytes())
        content[draw.randrange(min(len(content), 500))] = draw.randrange(256)
        path.write_bytes(content)
        noted += bool(lint(folder))
    assert noted > 20


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", INDEX])
def test_deep_json_is_named(name: str, clean: Path, tmp_path: Path) -> None:
    shutil.copytree(clean, tmp_path / "export")
    written(name, DEEP)(tmp_path / "export")
    assert any(name in finding.where and "nested too deeply" in finding.what for finding in lint(tmp_path / "export"))


def test_what_leads_outside_or_never_ends_is_not_read(clean: Path, tmp_path: Path) -> None:
    folder, secret = tmp_path / "export", tmp_path / "secret.json"
    secret.write_text('{"model_type": "secret"}')
    for name in ("config.json", "tokenizer.json", "chat_template.jinja"):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(clean, folder)
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(secret)
        findings = lint(folder)
        assert any("outside its folder" in finding.what for finding in findings), name
        assert "secret" not in " ".join(finding.what.replace(str(secret), "") for finding in findings)
    (folder / "chat_template.jinja").unlink()
    weights = sorted(folder.glob("*.safetensors"))[0]
    weights.unlink()
    os.mkfifo(weights)
    assert any(finding.where == str(weights) for finding in lint(folder))
    weights.unlink()
    for header in (
        b'{"a": {"dtype": "F32", "shape": [1e400], "data_offsets": [0, 4]}}',
        b'{"a": [], "__metadata__": 3}',
    ):
        weights.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 4)
        assert any("damaged" in finding.what for finding in lint(folder))
    weights.write_bytes((1 << 60).to_bytes(8, "little") + b"{}")
    assert any("a header of 1,152,921,504,606,846,976 bytes" in finding.what for finding in lint(folder))
