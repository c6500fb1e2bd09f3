"""What an update of each optimizer takes, beside the bytes that its record has (spec/optimizers.py).

A model of 0.3 billion parameters with its gradients; no forward. Muon's products are in its time alone.
"""

from __future__ import annotations

from typing import get_args

import torch

from harness.gpu.budget import Check
from harness.gpu.clock import time_call
from harness.models import TINY
from scalewright.model.decoder import Decoder
from scalewright.parallel.mesh import make_mesh
from scalewright.parallel.parallelize import parallelize
from scalewright.spec.grid import make_grid
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.optimizers import OPTIMIZERS, OptimizerName
from scalewright.spec.placement import place
from scalewright.spec.run import OptimizerSpec
from scalewright.train.network import load_python
from scalewright.train.optimizer import build_optimizer

SHAPE = {
    "name": "0.3b", "vocab_size": 32768, "hidden_size": 2048, "intermediate_size": 5632,
    "num_hidden_layers": 4, "num_attention_heads": 16,
}  # fmt: skip


def optimizers(check: Check) -> None:
    """Seconds of an update, GB/s of its recorded bytes, and what it allocates beyond its states."""
    model = TINY if check.quick else ModelSpec.parse(SHAPE)
    layout = Layout.parse({"precision": "bf16"})
    for name in get_args(OptimizerName):
        if not check.want(name, 3.0):
            continue
        with check.trying(name):
            mesh = make_mesh(make_grid(layout, model.kv_heads), 0, check.device)
            with torch.device("meta"):
                decoder = Decoder(model)
            parallel = parallelize(decoder, place(model, layout), layout, mesh, bf16=True, compile_blocks=False)
            weights = parallel.weights
            optimizer = build_optimizer(OptimizerSpec.parse({"name": name}), weights, load_python, mesh, half=True)
            total = 0
            for weight in weights:
                torch.nn.init.normal_(weight.master, std=0.02)
                weight.master.grad = torch.randn_like(weight.master)
                total += weight.master.numel()
            optimizer.step()
            before = _allocated(check)
            times = time_call([optimizer.step], check.device, 0.02 if check.quick else 1.0, least=3)
            moved = float(OPTIMIZERS[name].update) * total
            check.note(name, {
                "s": times.dump(), "parameters": total, "bytes_a_parameter": OPTIMIZERS[name].update,
                "per_s": moved / times.median / 1e9, "extra_gib": _allocated(check, peak=True) - before,
            })  # fmt: skip


def _allocated(check: Check, peak: bool = False) -> float:
    """GiB now, from where the peak then counts; or at most since."""
    if check.device.type != "cuda":
        return 0.0
    if peak:
        return torch.cuda.max_memory_allocated(check.device) / 2**30
    torch.cuda.reset_peak_memory_stats(check.device)
    return torch.cuda.memory_allocated(check.device) / 2**30
