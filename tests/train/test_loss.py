"""The loss: sums over counted tokens, divided by those of the whole global batch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from loss_function import cross_entropy
from scalewright.spec.run import PythonRef
from scalewright.train.loss import build_loss

IGNORED = -100


def sample(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, 7, 11, generator=generator)
    targets = torch.randint(0, 11, (3, 7), generator=generator)
    targets[0, 2:] = IGNORED
    targets[2] = IGNORED
    return logits, targets


def test_the_sum_over_counted_tokens():
    logits, targets = sample()
    total, auxiliary = cross_entropy(logits, targets)
    counted = targets != IGNORED
    chances = logits.double().softmax(-1)
    by_hand = -chances[counted].gather(-1, targets[counted][:, None]).log().sum()
    assert total.item() == pytest.approx(by_hand.item(), rel=1e-6)
    assert auxiliary.item() == 0.0


def test_z_loss_by_its_formula():
    """z x the sum of log(Z)^2 over counted tokens alone."""
    logits, targets = sample()
    total, auxiliary = cross_entropy(logits, targets, z_loss=0.5)
    log_z = logits.double().exp().sum(-1).log()
    assert auxiliary.item() == pytest.approx(0.5 * log_z[targets != IGNORED].square().sum().item(), rel=1e-6)
    assert total.item() == cross_entropy(logits, targets)[0].item()


def test_bf16_logits_are_summed_in_fp32():
    logits, targets = sample()
    low = logits.to(torch.bfloat16)
    total, auxiliary = cross_entropy(low, targets, z_loss=0.1)
    assert total.dtype == auxiliary.dtype == torch.float32
    assert total.item() == cross_entropy(low.float(), targets)[0].item()


@pytest.mark.parametrize("z_loss", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_the_gradient_is_pytorchs(dtype, z_loss):
    """The same numbers from other operators: a few roundings of the type that they are handed back in."""
    logits, targets = sample()
    logits = (logits * 8).to(dtype)
    mine, theirs = (logits.clone().requires_grad_() for _ in range(2))
    total, auxiliary = cross_entropy(mine, targets, z_loss)
    ((total + auxiliary) / 7).backward()
    control = F.cross_entropy(theirs.flatten(0, 1).float(), targets.flatten(), reduction="sum")
    log_z = theirs.float().logsumexp(-1)
    ((control + z_loss * (log_z.square() * (targets != IGNORED)).sum()) / 7).backward()
    rounding = 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(mine.grad, theirs.grad, rtol=rounding, atol=rounding / 7)
    assert not mine.grad[targets == IGNORED].any()


def test_a_second_backward_is_refused_not_wrong():
    """The gradient lies where the logits were, and is scaled there."""
    logits, targets = sample()
    total, _ = cross_entropy(logits.requires_grad_(), targets)
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


def test_nothing_is_counted():
    logits, _ = sample()
    total, _ = cross_entropy(logits, torch.full((3, 7), IGNORED))
    assert total.item() == 0.0


def test_a_users_own():
    logits, targets = sample()

    def load(ref: PythonRef):
        return lambda logits, targets: F.mse_loss(logits.sum(-1), targets.float(), reduction="sum")

    total, auxiliary = build_loss(PythonRef(python="my:loss"), 0.1, load)(logits, targets)
    assert total.item() == pytest.approx(F.mse_loss(logits.sum(-1), targets.float(), reduction="sum").item())
    assert auxiliary.item() == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_is_torchs(dtype):
    """Also of rows that are not counted, whatever the slope; in bf16 it is rounded once."""
    found = []
    for own in (True, False):
        logits, targets = sample()
        logits = logits.to(dtype).requires_grad_()
        if own:
            total, auxiliary = cross_entropy(logits, targets, z_loss=0.01)
        else:
            total = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="sum")
            log_z = logits.float().logsumexp(-1)[targets != IGNORED]
            auxiliary = 0.01 * log_z.square().sum()
        ((total + auxiliary) / 7).backward()
        found.append(logits.grad)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(found[0], found[1], rtol=tolerance, atol=1e-7)
    assert found[0].dtype == dtype
    assert found[0][2].abs().max() == 0
