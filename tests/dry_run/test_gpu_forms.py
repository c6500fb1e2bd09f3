"""On GPUs a dry run counts what CUDA's kernels keep; the operators themselves are put back after it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import get_gradient_edge

from scalewright.dry_run.no_numbers import gpu_forms
from scalewright.parallel.backward import backward_input

BF16 = torch.bfloat16


def kept(run: Any, *inputs: Tensor) -> int:
    """Bytes that autograd keeps of `run`, its inputs left out."""
    inputs_storages = {x.untyped_storage()._cdata for x in inputs}
    saved: dict[int, Any] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in inputs_storages:
            saved[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = run()
    out.sum().backward()
    return sum(storage.nbytes() for storage in saved.values())


def test_a_norm_keeps_one_number_a_row() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        x = torch.empty(2, 64, 32, dtype=BF16, requires_grad=True)
        weight = torch.empty(32, dtype=BF16, requires_grad=True)
        on_cpu = kept(lambda: F.rms_norm(x, (32,), weight, 1e-5), x, weight)
        with gpu_forms():
            on_gpu = kept(lambda: F.rms_norm(x, (32,), weight, 1e-5), x, weight)
    assert on_gpu == 2 * 64 * 4
    assert on_cpu >= 2 * 64 * 32 * 8  # x and x / rms(x), in fp32


def test_a_split_backward_does_a_norm_in_parts() -> None:
    """As it does CUDA's: the output's gradient waits for the weight part, not the weight's."""
    with FakeTensorMode(allow_non_fake_inputs=True), gpu_forms():
        x = torch.empty(2, 64, 32, dtype=BF16, requires_grad=True)
        weight = torch.empty(32, dtype=BF16, requires_grad=True)
        out = F.rms_norm(x, (32,), weight, 1e-5)
        _, pending = backward_input([get_gradient_edge(out)], [torch.empty_like(out)], get_gradient_edge(x))
        waits = [gradient.shape for part in pending.parts for gradient in part.gradients]
    assert waits == [out.shape]


def test_masked_attention_repeats_key_heads_and_a_causal_one_does_not() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True), gpu_forms():
        q = torch.empty(1, 8, 64, 16, dtype=BF16, requires_grad=True)
        k = torch.empty(1, 2, 64, 16, dtype=BF16, requires_grad=True)
        v = torch.empty_like(k, requires_grad=True)
        mask = torch.zeros(1, 1, 64, 64, dtype=BF16)

        def attention(**how: Any) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, enable_gqa=True, **how)

        causal = kept(lambda: attention(is_causal=True), q, k, v, mask)
        masked = kept(lambda: attention(attn_mask=mask), q, k, v, mask)
    assert masked - causal == 2 * 8 * 64 * 16 * 2


def test_torchs_own_are_put_back() -> None:
    before = F.rms_norm, F.scaled_dot_product_attention
    with gpu_forms():
        assert F.rms_norm is not before[0]
        assert F.scaled_dot_product_attention is not before[1]
    assert (F.rms_norm, F.scaled_dot_product_attention) == before
