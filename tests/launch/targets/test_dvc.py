"""`launch dvc`: a pipeline that DVC's schema takes, and a script whose commands are run with stand-ins.

The same in a real repository: tests/launch/test_dvc_repository.py.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from scalewright.data.prepare import prepare
from scalewright.launch.job import Written, make_job
from scalewright.launch.targets import find_target
from scalewright.spec.errors import UserError
from scalewright.spec.run import load_run

SCHEMA = json.loads((Path(__file__).parents[1] / "schemas" / "dvc.json").read_text())
RUN = """\
name: tiny
model: {python: parts.network:build}
data: {train: [{path: data/tokens, weight: 2}, {path: other}], valid: data/tokens}
train: {valid_every: 5}
"""
# A stand-in for Python: notes its words; `train` makes a folder, and stops once where `stop` is.
PYTHON = """#!/bin/bash
printf '%s\\0' "$@" >> "$CALLS"
folder=${@: -1}
[ "$3" != train ] || echo saved >> "${folder#out_dir=}/checkpoints"
[ "$3" != train ] || ! rm stop 2> /dev/null || exit 75
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(RUN)
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "network.py").touch()
    return tmp_path


def written(*overrides: str, file: str = "run.yaml", **more: Any) -> Written:
    job = make_job(load_run(file, overrides), file, overrides, None, None, "dvc")
    return find_target("dvc")(job if not more else type(job)(**{**vars(job), **more}))


def pipeline(*overrides: str, **more: Any) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(written(*overrides, **more).files["dvc.yaml"])
    errors = [error.message for error in Draft7Validator(SCHEMA).iter_errors(document)]
    assert errors == []
    return document


def test_stages_read_and_write_what_the_run_does(folder: Path) -> None:
    stages = pipeline("checkpoint.every=5", "launch.env={A: '${x} $HOME'}", "data.seq_len=64")["stages"]
    assert list(stages) == ["train", "evaluate"]
    train, evaluate = stages["train"], stages["evaluate"]
    assert train["deps"] == ["data/tokens", "other", "parts/network.py"]
    assert train["params"] == [{"run.yaml": None}]  # all of it
    assert train["outs"] == ["runs/tiny"]  # without persist: a run that was stopped lies beside it
    assert "\\${x} $HOME" in train["cmd"]  # `${` alone would be DVC's
    assert evaluate["deps"] == ["runs/tiny", "data/tokens"]
    assert evaluate["cmd"] == "bash tiny.dvc.sh evaluate runs/tiny --trust-code"
    metrics = [next(iter(stage["metrics"][0].items())) for stage in (train, evaluate)]
    assert metrics == [("runs/tiny.json", {"cache": False}), ("runs/tiny.evaluation.json", {"cache": False})]
    assert list(pipeline("data.valid=[]")["stages"]) == ["train"]


def test_a_pipeline_in_a_folder_of_its_own_runs_where_the_run_file_means(folder: Path) -> None:
    document = pipeline(home="jobs/tiny")
    assert document["stages"]["train"]["wdir"] == "../.."
    assert document["stages"]["train"]["cmd"].startswith("bash jobs/tiny/tiny.dvc.sh train run.yaml")
    assert document["plots"][0]["loss"]["y"] == {
        "../../runs/tiny/plots/train.csv": "loss",
        "../../runs/tiny/plots/valid.csv": "loss",
    }


def test_tokens_have_a_stage_where_they_say_what_made_them(folder: Path) -> None:
    (folder / "texts").mkdir()
    for number in range(4):
        (folder / "texts" / f"{number}.txt").write_text("a few words of a text " * 40)
    prepare(["texts"], "data/tokens", vocab_size=260, valid_fraction=0.5, special_tokens=["<|a|>"], workers=1)
    stage = pipeline()["stages"]["prepare"]
    words = "--vocab-size 260 --valid-fraction 0.5 --special-tokens '<|a|>' --out data/tokens"
    assert stage == {
        "cmd": f"bash tiny.dvc.sh prepare texts {words}",
        "deps": ["texts"],
        "outs": [{"data/tokens": {"persist": True}}],
    }
    assert list(pipeline("data.valid=[]", "data.train=data/tokens")["stages"]) == ["prepare", "train"]
    (folder / "texts").rename(folder / "gone")
    assert "prepare" not in pipeline()["stages"]  # no text of that name here, nor among the bundled ones
    assert "data/tokens has no stage: its texts aren't known here, or DVC has it from elsewhere" in written().notes
    (folder / "gone").rename(folder / "texts")
    for name, text in written().files.items():
        (folder / name).write_text(text)
    (folder / "data" / ".gitignore").write_text("/tokens\n")  # as DVC does for what its stages make
    assert pipeline()["stages"]["prepare"] == stage
    assert "prepare" not in pipeline(home="jobs/second")["stages"]  # DVC has it from the first


@pytest.mark.skipif(shutil.which("bash") is None or os.name == "nt", reason="bash isn't here")
def test_a_run_that_was_stopped_goes_on_unless_what_it_reads_has_changed(folder: Path) -> None:
    (folder / "bin").mkdir()
    (folder / "bin" / "python").write_text(PYTHON)
    (folder / "bin" / "python").chmod(0o755)
    values = "a 'b' \"c\" $HOME ${x} $(touch canary) `touch canary` \\"
    made = written(f"model={{python: 'parts.network:build', a: {json.dumps(values)}}}")
    (folder / "tiny.dvc.sh").write_text(made.files["tiny.dvc.sh"])
    command = yaml.safe_load(made.files["dvc.yaml"])["stages"]["train"]["cmd"].replace("\\${", "${")  # as DVC does
    calls = folder / "calls"
    environ = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "CALLS": str(calls)}

    def run() -> int:
        return subprocess.run(["bash", "-c", command], env=environ, capture_output=True, check=False).returncode

    for content in (RUN, RUN + "seed: 1\n"):
        (folder / "run.yaml").write_text(content)
        (folder / "stop").touch()
        assert run() == 75
    (folder / "run.yaml").write_text(RUN)
    assert run() == 0
    assert (folder / "runs" / "tiny" / "checkpoints").read_text() == "saved\nsaved\n"  # the first one's
    left = sorted(path.name for path in (folder / "runs").iterdir())
    assert [name.partition("-")[0] for name in left] == ["tiny", "tiny.json", "tiny.unfinished"]
    assert (folder / "runs" / left[2] / ".gitignore").read_text() == "*\n"
    assert not (folder / "runs" / "tiny" / ".gitignore").exists()
    assert run() == 2  # a folder is there: DVC removes it, nobody else
    assert values in calls.read_text().replace('\\"', '"').replace("\\\\", "\\")
    assert not (folder / "canary").exists()


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["layout.devices=16", "launch.nodes=2"], "runs on one machine, not on 2"),
        (["out_dir=../elsewhere"], "isn't in this repository"),
        (["checkpoint.store=s3://bucket/a"], "a changed parameter is another"),
        (["launch.env={A: b}\n"], "a command of DVC's is one line"),
    ],
)
def test_what_dvc_can_t_do_is_refused(folder: Path, overrides: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        written(*overrides)


def test_another_run_s_pipeline_stays(folder: Path) -> None:
    (folder / "dvc.yaml").write_text(written("name=other").files["dvc.yaml"])
    with pytest.raises(UserError, match="another run's pipeline is there"):
        written()
    assert written("name=other").files["dvc.yaml"] == (folder / "dvc.yaml").read_text()
