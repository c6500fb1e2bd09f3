"""Kernels that only a GPU has, beside the formula on a CPU: outputs and every gradient.

each backend of attention · FlashAttention over documents · FlexAttention, compiled · grouped products
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from devices import DEVICES, ON_GPU
from model.packed_rows import CASES, LENGTH, Rows, by_documents, make, with_gradients
from scalewright.model import gpu_rows
from scalewright.model.attention import fused_attention
from scalewright.model.moe import Experts
from scalewright.model.visible import first_keys
from scalewright.spec.model import ModelSpec

# By the norm of the error. bf16 rounds inputs, weights and outputs to 2^-9 each; fp32 sums in another order,
# with a GPU's own exp.
ERROR = {torch.float32: 1e-5, torch.bfloat16: 1.5e-2}
BACKENDS = ["CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH"]
SEGMENTS = [name for name, case in CASES.items() if case.cap is None and not case.alibi and not case.sinks]
KEYS = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}


def assert_near(actual: list[Tensor], expected: list[Tensor], allowed: float) -> None:
    """Relative to the norm, or to the whole where a gradient is zero by its formula."""
    norms = [float(wanted.detach().norm()) for wanted in expected]
    for number, (tensor, wanted) in enumerate(zip(actual, expected, strict=True)):
        away = float((tensor.detach().double().cpu() - wanted.detach()).norm())
        error = away / max(norms[number], 1e-3 * max(norms))
        assert error < allowed, f"tensor {number}: {error}"


def expected_of(name: str) -> tuple[Rows, list[Tensor]]:
    rows = make(CASES[name], width=64)
    return rows, list(with_gradients(by_documents(CASES[name], rows), rows))


@pytest.mark.parametrize("heads", [4, 1], ids=["groups", "one head of keys"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("device", ON_GPU)
def test_each_backend_is_the_formula(device: str, backend: str, heads: int) -> None:
    """Plain causal rows in bf16. A backend that refuses the shape is skipped, with its reason."""
    torch.manual_seed(0)
    q, k, v, grad = (torch.randn(2, n, 320, 64, dtype=torch.float64) for n in (4, heads, heads, 4))
    answers = []
    for place, dtype in (("cpu", torch.float64), (device, torch.bfloat16)):
        inputs = [x.to(place, dtype).requires_grad_() for x in (q, k, v)]
        if place == "cpu":
            hidden = torch.ones(320, 320, dtype=torch.bool).triu(1)
            scores = inputs[0] @ inputs[1].repeat_interleave(4 // heads, 1).transpose(-1, -2) / 8
            weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
            out = weights @ inputs[2].repeat_interleave(4 // heads, 1)
        else:
            with sdpa_kernel(getattr(SDPBackend, backend)):
                try:
                    out = fused_attention(*inputs, None, True, 0.125)
                except RuntimeError as error:
                    pytest.skip(f"{backend}: {str(error).splitlines()[0]}")
        answers.append([out, *torch.autograd.grad(out, inputs, grad.to(place, dtype))])
    assert_near(answers[1], answers[0], ERROR[torch.bfloat16])


@pytest.mark.parametrize("name", SEGMENTS)
@pytest.mark.parametrize("device", ON_GPU)
def test_documents_by_flash_attention(device: str, name: str) -> None:
    _, expected = expected_of(name)
    case, rows = CASES[name], make(CASES[name], torch.bfloat16, device, width=64)
    window = case.window if case.chunks else None
    documents = None if rows.documents is None else rows.documents.cpu()
    begins = first_keys(torch.arange(LENGTH), documents, window, case.chunks)
    bounds, longest = gpu_rows.bounds_of(begins.expand(2, -1).numpy())
    there = torch.from_numpy(bounds).to(device)
    segments = gpu_rows.Segments(there, longest, None if case.chunks else case.window)
    out = gpu_rows.attend_segments(rows.q, rows.k, rows.v, segments, rows.scores.scale)
    assert_near(list(with_gradients(out, rows)), expected, ERROR[torch.bfloat16])


@pytest.mark.parametrize("dtype", ERROR, ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("device", ON_GPU)
def test_scores_by_flex_attention(device: str, name: str, dtype: torch.dtype) -> None:
    """Compiled, as blocks are: its backward has no uncompiled form."""
    _, expected = expected_of(name)
    rows = make(CASES[name], dtype, device, width=64)
    blocks = gpu_rows.block_mask(rows.first)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return gpu_rows.attend_blocks(q, k, v, blocks, rows.scores, rows.slopes, rows.sinks)

    out = torch.compile(run)(rows.q, rows.k, rows.v)
    assert_near(list(with_gradients(out, rows)), expected, ERROR[dtype])


@pytest.mark.parametrize("counts", [(3, 0, 5, 4), (0, 0, 12, 0), (12, 0, 0, 0)], ids=str)
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("device", DEVICES)
def test_grouped_products_are_each_experts_own(device: str, bias: bool, counts: tuple[int, ...]) -> None:
    """In bf16, with experts that get no token: their gradients are zero, and not what memory held."""
    mixture = {"num_experts": 4, "top_k": 1, "moe_intermediate_size": 48}
    experts = Experts(ModelSpec.parse({**KEYS, "mlp_bias": bias, "moe": mixture}), 4, 48)
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in experts.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=random) * 0.3)
    x, grad = (torch.randn(12, 32, generator=random) for _ in range(2))
    answers = []
    for place, dtype in (("cpu", torch.float64), (device, torch.bfloat16)):
        experts.to(place, dtype)
        rows = x.to(place, dtype).requires_grad_()
        out = experts(rows, torch.tensor(counts, device=place))
        gradients = torch.autograd.grad(out, [rows, *experts.parameters()], grad.to(place, dtype))
        answers.append([out, *gradients])
    assert_near(answers[1], answers[0], ERROR[torch.bfloat16])
    for gradient in answers[1][2:]:
        assert all(not gradient[e].any() for e, count in enumerate(counts) if count == 0)
