"""What is measured of an optimizer is what it keeps and moves; a price and a planned run file are made of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import yaml

from scalewright.spec.errors import UserError
from scalewright.spec.optimizers import OPTIMIZERS
from scalewright.spec.run import PythonRef
from scalewright.train.own_optimizer import _bytes, measure

ASKED = ("llama-3.2-1b", "--cluster", "dgx-h100", "--devices", "8", "--seq-len", "4096")


def measured(name: str, **arguments: Any) -> Any:
    return measure(PythonRef.parse({"python": name, **arguments}))


@pytest.mark.parametrize(
    ("name", "arguments", "state"),
    [
        ("torch.optim:AdamW", {}, 8),
        ("torch.optim:AdamW", {"amsgrad": True}, 12),
        ("torch.optim:SGD", {"lr": 0.1}, 0),
        ("torch.optim:SGD", {"lr": 0.1, "momentum": 0.9}, 4),
        ("torch.optim:RMSprop", {"lr": 0.1, "centered": True, "momentum": 0.9}, 12),
        ("torch.optim:Adafactor", {}, 0.01),  # a row and a column
        ("parts:ByNumber", {}, None),
    ],
)
def test_states_are_those_that_it_keeps(name: str, arguments: dict[str, Any], state: float | None) -> None:
    record = measured(name, **arguments)
    assert record.shown == name
    assert state is None or record.width == state
    assert record.update >= 12 + 2 * (record.width >= 4)  # the gradient is read, the weight read and written


def test_our_own_written_by_hand_are_measured_as_they_are_counted() -> None:
    lion, sgd = measured("scalewright.train.optimizer:Lion", lr=1e-3), measured("torch.optim:SGD", lr=0.1, fused=True)
    assert (lion.update, lion.each) == (OPTIMIZERS["lion"].update, OPTIMIZERS["lion"].each)
    assert sgd.each == OPTIMIZERS["sgd"].each


def test_codes_and_scales_of_a_wrapped_state_are_counted() -> None:
    class Wrapped(torch.Tensor):
        def __tensor_flatten__(self) -> tuple[list[str], None]:
            return ["codes", "scales"], None

    state = torch.zeros(64, 64).as_subclass(Wrapped)
    state.codes, state.scales = torch.zeros(64, 64, dtype=torch.uint8), torch.zeros(16)
    assert _bytes(state) == 64 * 64 + 4 * 16


def test_what_cannot_be_tried_says_how_to_give_it() -> None:
    with pytest.raises(UserError, match=r"missing 1 required.*its arguments follow it") as error:
        measured("torch.optim:Optimizer")
    assert "adamw_8bit" in str(error.value)


def test_a_price_and_a_planned_run_are_made_of_it(call_cli: Any, tmp_path: Any) -> None:
    def memory(*words: str) -> Any:
        answer = call_cli("predict", *ASKED, "--zero-stage", "0", "--micro-batch", "1", *words, "--json").json()
        return answer["memory_gib"]["optimizer"], answer

    (adamw, _), (sgd, _) = memory(), memory("--optimizer", "torch.optim:SGD,lr=0.1,momentum=0.9")
    assert sgd == pytest.approx(adamw / 2, rel=1e-3)
    three, answer = memory("--optimizer", "torch.optim:AdamW,amsgrad=true")
    assert three == pytest.approx(1.5 * adamw, rel=1e-3)
    assert answer["optimizer"] == "torch.optim:AdamW"
    assert any("12 bytes of state a parameter" in line for line in answer["assumed"])
    words = ("--global-batch", "64", "--optimizer", "torch.optim:SGD,lr=0.1", "--out", tmp_path / "run.yaml")
    assert call_cli("plan", *ASKED, *words).code == 0
    run = yaml.safe_load((tmp_path / "run.yaml").read_text())
    assert run["optimizer"] == {"python": "torch.optim:SGD", "lr": 0.1}
    other = call_cli("predict", *ASKED, "--framework", "megatron", "--optimizer", "torch.optim:SGD,lr=0.1")
    assert "megatron is priced with adamw, not with torch.optim:SGD" in other.error
