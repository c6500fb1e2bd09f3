"""A user's own loss: a sum or a mean over counted tokens, and never one taken for the other."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from runs import assert_same_run, merge, rows, run, run_data
from scalewright.spec.errors import UserError
from scalewright.spec.run import PythonRef, RunSpec
from scalewright.train.loss import OwnLoss, called_part
from scalewright.train.network import load_python
from scalewright.train.resolve import resolve

MEAN = {"python": "parts:averaged", "reduction": "mean"}


def own(name: str, **keys) -> OwnLoss:
    part = PythonRef.parse({"python": name, **keys})
    return OwnLoss(load_python(called_part(part)), part, check=True)


def sample() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 8, 67, generator=generator).requires_grad_()
    targets = torch.randint(0, 67, (3, 8), generator=generator)
    targets[0] = targets[1, 3:] = -100
    return logits, targets


@pytest.mark.parametrize(
    ("name", "keys", "says"),
    [
        ("parts:averaged", {}, "the loss is a mean .*: return the sum over counted tokens, or set reduction"),
        ("parts:summed", {"reduction": "mean"}, "twice as large: a sum.*remove reduction: mean"),
        ("parts:by_sample", {}, r"gave shape \[24\], not one number"),
        ("parts:detached", {}, "the loss has no gradient"),
    ],
)
def test_a_loss_that_is_not_what_is_said(name, keys, says):
    logits, targets = sample()
    with pytest.raises(UserError, match=says) as caught:
        own(name, **keys)(logits, targets)
    assert caught.value.how


def test_a_sum_over_the_last_tokens_of_rows_is_no_mean():
    """Rows of twice the length have the same loss, and twice the rows twice the loss: it is a sum."""

    def last_tokens(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits[:, -1], targets[:, -1], reduction="sum")

    logits, targets = sample()
    targets[:, -1] = 3
    loss = OwnLoss(last_tokens, PythonRef.parse({"python": "parts:summed"}))
    assert loss(logits, targets).item() == pytest.approx(last_tokens(logits, targets).item())
    assert not loss.attempts  # it was checked, and passed


def test_a_mean_becomes_the_sum_over_counted_tokens():
    logits, targets = sample()
    wanted = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    loss = own("parts:averaged", reduction="mean")
    assert loss(logits, targets).item() == pytest.approx(wanted.item(), rel=1e-6)
    nothing = loss(logits, torch.full_like(targets, -100))  # 0/0 in the user's function
    assert nothing.item() == 0.0


def test_a_function_that_names_reduction_gets_it():
    part = PythonRef.parse({"python": "torch.nn.functional:cross_entropy", "reduction": "mean"})
    assert called_part(part).arguments == {"reduction": "mean"}
    assert called_part(PythonRef.parse(MEAN)).arguments == {}


def test_the_look_draws_no_random_numbers_of_the_run():
    logits, targets = sample()
    found = []
    for check in (True, False):
        torch.manual_seed(5)
        part = PythonRef.parse({"python": "parts:noisy"})
        found.append(OwnLoss(load_python(part), part, check=check)(logits, targets).item())
    assert found[0] == found[1]


def test_a_reduction_that_gives_no_number(tmp_path):
    data = run_data(tmp_path, loss={"python": "parts:averaged", "reduction": "none"})
    with pytest.raises(UserError, match=r"reduction 'none'.*reduction: mean"):
        resolve(RunSpec.parse(data))


def test_means_train_as_sums_do_and_are_refused_unsaid(tmp_path):
    """Rows have other numbers of counted tokens, so that means of micro-batches aren't the batch's."""
    part = {"data": {"python": "parts:Counting", "seq_len": 16}, "train": {"steps": 6}}
    base = run_data(tmp_path, **part)
    control = run(merge(base, {"layout": {"micro_batch": 4}, "out_dir": str(tmp_path / "control")})).out_dir
    mean = {"loss": MEAN, "layout": {"micro_batch": 2}}
    one = run(merge(base, {**mean, "out_dir": str(tmp_path / "one")})).out_dir
    two = {"layout": {"devices": 2, "zero_stage": 3}, "out_dir": str(tmp_path / "two")}
    assert_same_run(one, control)
    assert_same_run(run(merge(base, merge(mean, two))).out_dir, control)
    # What was there before: the gradient divided by the tokens once more, and hardly anything learnt.
    assert rows(one)[0]["loss"] - rows(one)[-1]["loss"] > 0.1
    with pytest.raises(UserError, match="the loss is a mean"):
        run(merge(base, {"loss": {"python": "parts:averaged"}, "layout": {"micro_batch": 2}}))
