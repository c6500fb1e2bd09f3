"""Recomputation and offload of activations on a GPU: time, peak memory, and gradients beside those of `none`.

Blocks are eager and in bf16. Where the attention kernel's backward adds up in any order, `none` differs from
itself too: "none, again" is the noise that the others are held against. Copies that overlap with compute show
as a forward and backward hardly longer than that of `none`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from harness.gpu.budget import Check
from harness.gpu.clock import synchronize, time_call
from scalewright.model.decoder import Decoder
from scalewright.model.init import initialize
from scalewright.parallel.offload_activations import apply_offload_activations
from scalewright.parallel.recompute import apply_recompute
from scalewright.parallel.stages import find_blocks
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.recompute_budget import keep

REAL = {"vocab_size": 512, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 8}
TINY = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
VARIANTS: dict[str, dict[str, Any]] = {
    "none": {},
    "none, again": {},
    "selective": {"recompute": "selective"},
    "budget 0.5": {"recompute": {"budget": 0.5}},
    "full": {"recompute": "full"},
    "offload": {"offload": "activations"},
    "offload, full": {"offload": "activations", "recompute": "full"},
}


def activations(check: Check) -> None:
    """Milliseconds, GiB at the peak and above the weights, and the largest relative gradient difference."""
    model = ModelSpec.parse({"name": "small", "num_attention_heads": 16, **(TINY if check.quick else REAL)})
    rows, length = (2, 64) if check.quick else (4, 4096)
    control: list[Tensor] = []
    for name, keys in VARIANTS.items():
        if not check.want(name) and name != "none":  # the control of the others
            continue
        with check.trying(name):
            layout = Layout.parse({"micro_batch": rows, "precision": "bf16", **keys})
            found, gradients = _variant(check, model, layout, length)
            control = control or gradients
            found["gradients_differ_by"] = _difference(gradients, control)
            found["equal_bits"] = all(torch.equal(a, b) for a, b in zip(gradients, control, strict=True))
            if name == "budget 0.5":
                found["keeps"] = sorted(keep(model, layout, length, 0.5).kept)
            check.note(name, found)


def _variant(check: Check, model: ModelSpec, layout: Layout, length: int) -> tuple[dict[str, Any], list[Tensor]]:
    with check.device:  # a billion numbers take a minute on a CPU
        decoder = Decoder(model)
        initialize(decoder, model, 0)
    decoder.to(torch.bfloat16)
    blocks = find_blocks(decoder)
    apply_recompute(blocks, layout.recompute, model=model, layout=layout, seq_len=length)
    apply_offload_activations(blocks, layout, check.device)
    tokens = torch.arange(layout.micro_batch * length, device=check.device).reshape(-1, length)
    tokens = tokens * 7 % model.vocab_size

    def run() -> None:
        decoder.zero_grad()
        decoder(tokens).float().logsumexp(-1).mean().backward()

    run()
    synchronize(check.device)
    gradients = [p.grad.clone() for p in decoder.parameters() if p.grad is not None]
    found: dict[str, Any] = {}
    if check.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(check.device)
        before = torch.cuda.memory_allocated(check.device)
        run()
        synchronize(check.device)
        found["peak_gib"] = (torch.cuda.max_memory_allocated(check.device) - before) / 2**30
    found["forward_backward_ms"] = time_call([run], check.device, 0.02 if check.quick else 0.5).median * 1e3
    return found, gradients


def _difference(mine: list[Tensor], control: list[Tensor]) -> float:
    """The largest |a - b| / max |b| over tensors."""
    return max(
        float((a.float() - b.float()).abs().max() / b.float().abs().max().clamp(min=1e-30))
        for a, b in zip(mine, control, strict=True)
    )
