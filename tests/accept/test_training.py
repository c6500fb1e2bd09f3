"""The checks of a kill and a resume, on a trainer that writes what `train` writes and computes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.runs import run_data

from scalewright.accept import training
from scalewright.accept.training import AcceptanceFolder, Ranks, resume
from scalewright.launch.rank import RankContext
from scalewright.spec.errors import Finding
from scalewright.spec.run import RunSpec

Loss = Callable[[int, bool], float]  # of a step; whether the run has been resumed


def usual(step: int, resumed: bool) -> float:
    return 4.0 / step


class Trainer:
    """A child that does a step whenever somebody looks at it."""

    def __init__(self, arguments: Sequence[str], loss: Loss, *, saves: bool, predicted: dict[str, Any]) -> None:
        run = yaml.safe_load(Path(arguments[1]).read_text())
        self.out, self.every = Path(run["out_dir"]), run["checkpoint"]["every"] if saves else 0
        self.last = int(arguments[3]) if "--steps" in arguments else run["train"]["steps"]
        self.out.mkdir(exist_ok=True)
        saved = [int(path.name.split("-")[1]) for path in self.out.glob("checkpoints/*")]
        self.step, self.resumed, self.loss = max(saved, default=0), bool(saved), loss
        self._event({"kind": "resume", "step": self.step} if saved else {"kind": "predicted", **predicted})

    def _event(self, event: dict[str, Any]) -> None:
        with (self.out / "events.jsonl").open("a") as file:
            file.write(json.dumps(event) + "\n")

    def poll(self) -> int | None:
        if self.step == self.last:
            return 0
        self.step += 1
        row = {"kind": "train", "step": self.step, "loss": self.loss(self.step, self.resumed),
               "step_time_s": 0.5, "tokens_per_s": 128.0}  # fmt: skip
        with (self.out / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        if self.every and self.step % self.every == 0:
            folder = self.out / "checkpoints" / f"step-{self.step:08d}"
            folder.mkdir(parents=True)
            (folder / "COMMIT").touch()
            self._event({"kind": "save", "seconds": 0.25})
        return None

    def wait(self, seconds: float) -> int | None:
        while self.poll() is None:
            pass
        return 0

    def kill(self) -> None:
        self.last = self.step


class Alone(Ranks):
    """One rank, whose children are trainers as above."""

    def __init__(self, loss: Loss, saves: bool, predicted: dict[str, Any]) -> None:
        super().__init__(RankContext(), "cpu", 1)
        self.trainer = lambda arguments: Trainer(arguments, loss, saves=saves, predicted=predicted)

    def start(self, arguments: Sequence[str], log: Path) -> Any:
        return self.trainer(arguments)


@pytest.fixture
def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Finding, Finding]]:
    monkeypatch.setattr(training, "POLL_S", 0.0)
    monkeypatch.setattr(training, "STEPS", 30)
    run = RunSpec.parse(run_data(tmp_path, train={"steps": 30, "valid_every": 0}))
    (folder := tmp_path / "accept").mkdir()

    def check(loss: Loss = usual, saves: bool = True, p90: float = 0.8) -> tuple[Finding, Finding]:
        predicted = {"p10": 0.3, "p50": 0.4, "p90": p90}
        with Alone(loss, saves, predicted) as ranks:
            return resume(ranks, run, AcceptanceFolder(folder))

    return check


def test_a_sound_run_is_killed_and_resumes(checked) -> None:
    resumed, trained = checked()
    assert (resumed.severity, trained.severity) == ("ok", "ok")
    assert resumed.data["resumed_from"] == training.EVERY
    assert (resumed.data["steps"], resumed.data["worst"]) == (training.AFTER, 0)
    assert "bitwise equal" in resumed.what
    assert (trained.data["step_time_s"], trained.data["save_s"]) == (0.5, 0.25)


@pytest.mark.parametrize(("apart", "severity"), [(1e-6, "ok"), (0.01, "problem"), (float("nan"), "problem")])
def test_losses_after_a_resume_are_compared(checked, apart: float, severity: str) -> None:
    resumed, _ = checked(lambda step, resumed: usual(step, resumed) * (1 + apart * resumed))
    assert resumed.severity == severity
    assert "bitwise" not in resumed.what


def test_a_run_that_never_saves_is_no_resume(checked) -> None:
    resumed, trained = checked(saves=False)
    assert resumed.severity == "problem"
    assert trained.severity == "note"


def test_a_step_above_its_band_is_a_warning(checked) -> None:
    _, trained = checked(p90=0.45)
    assert trained.severity == "warn"
    assert "diagnose" in trained.how


def test_a_loss_that_is_no_number_is_a_problem(checked) -> None:
    _, trained = checked(lambda step, resumed: float("nan"))
    assert trained.severity == "problem"
