"""16-bit products on a CPU whose sizes data decide: the same numbers, and memory that stays flat."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from scalewright.model import moe
from scalewright.model.few_shapes import even_rows
from scalewright.model.moe import Experts
from scalewright.spec.model import ModelSpec

SPEC = ModelSpec.parse({
    "vocab_size": 64, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
    "num_attention_heads": 4, "mlp_bias": True,
})  # fmt: skip


def test_sizes_are_few_and_near() -> None:
    sizes = [even_rows(number) for number in range(1, 65537)]
    assert all(0 <= size - number < max(16, number / 8) for number, size in enumerate(sizes, 1))
    assert len(set(sizes)) == 8 + 8 * 9
    assert even_rows(0) == 0


def by_itself(experts: Experts, rows: Tensor, sizes: list[int]) -> Tensor:
    """Each expert's rows through its own matrices, as they are."""
    gate, up, down = (stack for stack in (experts.gate, experts.up, experts.down) if stack is not None)
    outs = []
    for e, part in enumerate(torch.split(rows, sizes)):
        matrices = [(stack.weight[e], None if stack.bias is None else stack.bias[e]) for stack in (gate, up, down)]
        hidden = F.silu(F.linear(part, *matrices[0])) * F.linear(part, *matrices[1])
        outs.append(F.linear(hidden, *matrices[2]))
    return torch.cat(outs)


def test_rounded_experts_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes of none, one, a multiple and between; with biases, which the added rows get, too."""
    monkeypatch.setattr(moe, "costs_by_shape", lambda x: True)  # in fp64, too, where the sums show it
    torch.manual_seed(0)
    experts, sizes = Experts(SPEC, 5, 24).double(), [0, 1, 16, 100, 37]
    with torch.no_grad():
        for parameter in experts.parameters():
            parameter.normal_()
    rows = torch.randn(sum(sizes), 16, dtype=torch.float64, requires_grad=True)
    inputs, seed = [rows, *experts.parameters()], torch.randn_like(rows)
    out = experts(rows, torch.tensor(sizes))
    found = [out, *torch.autograd.grad(out, inputs, seed)]
    out = by_itself(experts, rows, sizes)
    for actual, expected in zip(found, [out, *torch.autograd.grad(out, inputs, seed)], strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)  # sums in another order


START = """
import resource, sys, random, torch
torch.set_num_threads(1)
rng = random.Random(0)

def mib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20

def grown(step, warm, steps):
    for _ in range(warm):
        step()
    before = mib()
    for _ in range(steps):
        step()
    print(mib() - before)
"""
ROWS = """
from scalewright.model.attend import Scores
from scalewright.model.rows import attend_rows
from scalewright.model.visible import first_keys
cap, window = eval(sys.argv[1])
def step(length=384):
    begins = torch.zeros(1, length, dtype=torch.int64)
    begins[0, [rng.randrange(length) for _ in range(rng.randrange(6))]] = 1
    first = first_keys(torch.arange(length), begins.cumsum(1), window)
    shapes = ((1, length, heads, 16) for heads in (4, 2, 2))
    q, k, v = (torch.randn(x, dtype=torch.bfloat16).transpose(1, 2).requires_grad_() for x in shapes)
    out = attend_rows(q, k, v, first, Scores(0.25, cap))
    out.backward(out.detach())
grown(step, 10, 80)
"""
EXPERTS = """
from scalewright.model.moe import Experts
from scalewright.spec.model import ModelSpec
experts = Experts(ModelSpec.parse(eval(sys.argv[1])), 8, 64).bfloat16()
def step():
    ends = sorted([0, 800, *(rng.randint(0, 800) for _ in range(7))])
    x = torch.randn(800, 32, dtype=torch.bfloat16, requires_grad=True)
    experts(x, torch.tensor(ends).diff()).sum().backward()
grown(step, 10, 60)
"""
KEYS = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
CASES: dict[str, tuple[str, Any]] = {
    "documents": (ROWS, (None, None)),
    "documents, cap, window": (ROWS, (2.0, 100)),
    "experts": (EXPERTS, KEYS),
}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("name", CASES)
def test_memory_stays_flat(name: str) -> None:
    """Kernels of the few sizes that the warm-up missed, of 0.3 to 1 MiB; without rounding 240 to 640 MiB."""
    script, argument = CASES[name]
    run = subprocess.run(
        [sys.executable, "-c", START + script, repr(argument)],
        capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "1024", "LRU_CACHE_CAPACITY": "1024"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert float(run.stdout) < 100
