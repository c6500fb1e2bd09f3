"""A run under DVC itself, in a repository of its own: docs/launch/dvc.md as it is typed, and a run that is stopped.

DVC is installed into an environment for this file alone, as its packages are many (or taken from PATH).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.test_docs import shell_blocks

from runs import bits, events, wait_for, weights

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
DVC = "dvc==3.67.1"
QUIET = {"DVC_NO_ANALYTICS": "1", "DVC_TEST": "true", "GIT_CONFIG_GLOBAL": os.devnull, "OMP_NUM_THREADS": "1"}
WHO = {f"GIT_{who}_{what}": "a@example.com" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


@pytest.fixture(scope="module")
def dvc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of DVC's program: what is installed, if it is that version; skips where it can't be had."""
    if there := shutil.which("dvc"):
        version = subprocess.run([there, "--version"], capture_output=True, text=True, check=False).stdout.strip()
        if version == DVC.partition("==")[2]:
            return Path(there).parent
    folder = tmp_path_factory.mktemp("dvc")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", DVC]
    installed = subprocess.run(pip, capture_output=True, text=True, timeout=600, check=False)
    if installed.returncode:
        pytest.skip(f"{DVC} can't be installed: {installed.stderr.strip()[-300:]}")
    (folder / "program").mkdir()
    (folder / "program" / "dvc").symlink_to(folder / "bin" / "dvc")
    return folder / "program"


class Repository:
    """A folder in which lines of shell are typed."""

    def __init__(self, folder: Path, dvc: Path) -> None:
        self.folder = folder
        path = f"{Path(sys.executable).parent}:{dvc}:{os.environ['PATH']}"
        self.environ = {**os.environ, **QUIET, **WHO, "PATH": path}

    def start(self, text: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", text], cwd=self.folder, env=self.environ, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def type(self, text: str, code: int = 0) -> str:
        process = self.start(text)
        out, _ = process.communicate(timeout=400)
        assert process.returncode == code, f"{text}\n{out[-5000:]}"
        return out

    def metrics(self) -> float:
        loss: float = json.loads((self.folder / "runs" / "small.evaluation.json").read_text())["loss"]
        return loss

    def answer(self, text: str) -> object:
        """What a command prints as JSON."""
        return json.loads(self.type(text + " 2> /dev/null"))


@pytest.fixture
def repository(tmp_path: Path, dvc: Path) -> Repository:
    return Repository(tmp_path, dvc)


PAGE = [block.text for block in shell_blocks("docs/launch/dvc.md")]
STAGES = ("prepare", "train", "evaluate")


def ran(text: str) -> list[str]:
    """The stages that a `dvc repro` ran."""
    return re.findall(r"Running stage '(\w+)'", text)


def test_the_page(repository: Repository) -> None:
    begin, first, changed, experiment, back = PAGE
    repository.type(begin)
    assert ran(repository.type(first)) == list(STAGES)
    assert ran(repository.type("dvc repro")) == []
    assert repository.type("git status --short") == ""  # all is in git, or in DVC's cache
    loss, folder = repository.metrics(), repository.folder / "runs" / "small"
    before = weights(folder)
    assert json.loads((repository.folder / "runs" / "small.json").read_text())["train"]["step"] == 20

    text = repository.type(changed)
    assert ran(text) == ["train", "evaluate"]
    assert re.search(r"run\.yaml +optimizer\.lr +0\.0003 +0\.03", text)
    assert re.search(r"small\.evaluation\.json +loss ", text)
    assert "index.html" in text
    assert repository.metrics() != loss
    compared = repository.answer("dvc metrics diff HEAD~1 --json")
    assert isinstance(compared, dict)
    assert compared["runs/small.evaluation.json"]["loss"]["old"] == pytest.approx(loss)
    page = (repository.folder / "dvc_plots" / "index.html").read_text()
    for name in ("loss", "grad_norm", "lr", "tokens_per_s"):
        assert name in page

    higher = repository.metrics()
    assert ran(repository.type(experiment)) == ["train", "evaluate"]
    assert repository.metrics() == higher
    text = repository.type(back)
    assert f"{loss:.4f} nats" in text
    assert all(tensor.equal(before[name]) for name, tensor in weights(folder).items())
    assert ran(repository.type("git checkout --quiet - && dvc checkout && dvc repro")) == []
    assert repository.type("git diff --stat") == ""

    (repository.folder / "texts" / "more.txt").write_text("Now is better than never.\n" * 20)
    assert ran(repository.type("dvc repro")) == list(STAGES)


def test_a_run_that_was_stopped_goes_on(repository: Repository) -> None:
    """And one whose parameter was changed and changed back comes from DVC's cache."""
    repository.type(PAGE[0])
    runs, file = repository.folder / "runs", repository.folder / "run.yaml"
    text = file.read_text().replace("steps: 20", "steps: 400").replace("every: 5,", "every: 200,")
    file.write_text(text)
    process = repository.start("dvc repro")

    def unfinished() -> list[Path]:
        return [path for path in runs.glob("small.unfinished-*") if (path / "metrics.jsonl").exists()]

    try:
        wait_for(lambda: any('"train"' in (path / "metrics.jsonl").read_text() for path in unfinished()), 240, "a step")
        os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does
        out, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert "exited with 75" in out
    (folder,) = unfinished()
    assert "unfinished" not in repository.type("git status --short --untracked-files=all")
    step = events(folder, "stop")[0]["step"]
    assert 0 < step < 400
    # With other parameters a run has its own beginning, and the one that was stopped stays.
    file.write_text(text.replace("lr: 3.0e-4", "lr: 1.0e-3").replace("steps: 400", "steps: 5"))
    assert ran(repository.type("dvc repro")) == ["train", "evaluate"]
    assert not events(runs / "small", "resume")
    assert unfinished() == [folder]
    file.write_text(text)
    assert ran(repository.type("dvc repro")) == ["train", "evaluate"]
    assert [event["step"] for event in events(runs / "small", "resume")] == [step]
    assert unfinished() == []
    control = repository.folder / "control"
    repository.type(f"scalewright train run.yaml out_dir={control.name}")
    assert bits(runs / "small") == bits(control)
    mine, theirs = weights(runs / "small", optimizer=True), weights(control, optimizer=True)
    assert all(tensor.equal(theirs[name]) for name, tensor in mine.items())


def test_checkpoints_as_links_into_the_cache(repository: Repository) -> None:
    repository.type(PAGE[0] + "\ndvc config cache.type hardlink\ndvc repro")
    assert "nats per token" in repository.type("scalewright evaluate runs/small")
    file = repository.folder / "run.yaml"
    file.write_text(file.read_text().replace("steps: 20", "steps: 10"))
    assert ran(repository.type("dvc repro")) == ["train", "evaluate"]
    repository.type("dvc config cache.type symlink && dvc checkout --relink")
    assert "outside its folder" in repository.type("scalewright evaluate runs/small", code=2)
