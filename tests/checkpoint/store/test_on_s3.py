"""The page about stores, command by command, against an S3 server on this machine."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from object_store import BUCKET, s3, server  # noqa: F401 - fixtures
from runs import run_data
from scalewright.storage.objects import open_store

PAGE = Path(__file__).resolve().parents[3] / "docs" / "storage.md"


@pytest.mark.slow
def test_the_page_s_commands(s3, tmp_path, call_cli, monkeypatch):  # noqa: F811
    """All of them, in order; the model is a tiny one, and its data are prepared first."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("The cat sat on the mat. " * 400)
    assert call_cli("prepare", "text", "--vocab-size", 300, "--out", "tokens").code == 0
    run = run_data(tmp_path, out_dir=str(tmp_path / "out"), train={"steps": 2, "valid_every": 0})
    run["checkpoint"] = {"at_end": True}
    run["model"] |= {"vocab_size": 300}
    run["data"] |= {"train": ["tokens"], "valid": ["tokens"]}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(run))
    commands = [
        line for block in re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL) for line in block.splitlines()
    ]
    assert len(commands) == 8
    for command in commands:
        words = shlex.split(command.replace("shakespeare", "text"))[1:]
        answer = call_cli(*words)
        assert answer.code == 0, f"{command}\n{answer.err[-1500:]}"
    names = {entry.name for entry in open_store(f"s3://{BUCKET}").list()}
    assert {"my-run/checkpoints/step-00000002/COMMIT", "my-model/config.json", "tokens/metadata.json"} <= names
    assert not any("pieces" in name for name in names)
