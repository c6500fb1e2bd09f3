"""Who trains in the GPU contest, all with fp32 masters, bf16 compute, fused AdamW and the same start.

scalewright     our Step, blocks compiled, numbers read one step late
plain, blocks   a bare loop over the same module, blocks compiled: what our step costs beyond it
plain, whole    the same loop, model and loss compiled as one: the strongest plain baseline
HF, blocks      transformers' module in that loop, its layers compiled
HF, Liger       the same with Liger's kernels, head and loss among them, uncompiled
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scalewright.model.decoder import Decoder
from scalewright.parallel.inputs import Micro
from scalewright.parallel.mesh import make_mesh
from scalewright.parallel.parallelize import Parallel, apply_compile, parallelize
from scalewright.parallel.stages import find_blocks
from scalewright.spec.grid import make_grid
from scalewright.spec.huggingface import to_huggingface
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.placement import place
from scalewright.spec.run import OptimizerSpec
from scalewright.train.loss import build_loss
from scalewright.train.metrics.measured import Readback
from scalewright.train.network import load_python
from scalewright.train.optimizer import build_optimizer
from scalewright.train.step import LOSS, Step

Samples = list[tuple[Tensor, Tensor]]  # (tokens, targets) [B, T] on the device


class Racer(Protocol):
    """Something that trains on a device."""

    name: str

    def steps(self, count: int, mark: Callable[[], None]) -> list[float]:
        """Some steps, `mark` called after each; losses, read when all is launched."""


@dataclass(frozen=True)
class Race:
    """What all have in common."""

    model: ModelSpec
    device: torch.device
    samples: Samples
    backend: str  # of torch.compile
    optimizer: OptimizerSpec

    @property
    def tokens(self) -> int:
        """Of one step."""
        return self.samples[0][0].numel()


def start_of(race: Race, name: str, shape: torch.Size) -> Tensor:
    """Everyone's first values of a tensor, fp32, drawn on the device: a function of its name."""
    generator = torch.Generator(device=race.device).manual_seed(zlib.crc32(name.encode()))
    drawn = torch.empty(shape, device=race.device)
    if name.endswith(".bias"):
        return drawn.zero_()
    return drawn.normal_(std=0.02, generator=generator) if len(shape) > 1 else drawn.fill_(1.0)


class Ours:
    """Our Step, as `train` builds it for one process in bf16."""

    name = "scalewright"

    def __init__(self, race: Race) -> None:
        layout = Layout.parse({"precision": "bf16", "micro_batch": race.samples[0][0].shape[0]})
        mesh = make_mesh(make_grid(layout, race.model.kv_heads), 0, race.device)
        with torch.device("meta"):
            decoder = Decoder(race.model)
        self.parallel: Parallel = parallelize(
            decoder, place(race.model, layout), layout, mesh, bf16=True, compile_blocks=True, backend=race.backend
        )
        with torch.no_grad():
            for weight in self.parallel.weights:
                weight.master.copy_(start_of(race, weight.name, weight.master.shape))
        self.parallel.weights.publish()
        optimizer = build_optimizer(race.optimizer, self.parallel.weights, load_python, mesh, half=True)
        loss = build_loss("cross_entropy", 0.0, load_python)
        self.step = Step(self.parallel, optimizer, loss, mesh, race.optimizer.clip_norm)
        self.micros = [Micro(tokens, targets, {}) for tokens, targets in race.samples]
        self.counted = torch.full((), float(race.tokens), device=race.device)
        self.readback, self.number = Readback(race.device), 0

    def steps(self, count: int, mark: Callable[[], None]) -> list[float]:
        """Steps with their reports read late, as the loop does."""
        losses = []
        for _ in range(count):
            micro = self.micros[self.number % len(self.micros)]
            self.number += 1
            report = self.step([micro], self.counted)
            losses += [values[LOSS] for _, values in self.readback.push(self.number, report)]
            mark()
        return losses + [values[LOSS] for _, values in self.readback.flush()]


class Plain:
    """A bare loop: bf16 module, fp32 masters beside it, one list operation for each pass over all of them."""

    def __init__(self, name: str, race: Race, module: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.name, self.loss, self.samples, self.number = name, loss, race.samples, 0
        self.copies: list[Tensor] = list(module.parameters())
        self.masters: list[Tensor] = [nn.Parameter(p.detach().float()) for p in self.copies]
        for master in self.masters:
            master.grad = torch.zeros_like(master)
        spec = race.optimizer
        groups = [
            {"params": [m for m in self.masters if m.dim() > 1], "weight_decay": spec.weight_decay},
            {"params": [m for m in self.masters if m.dim() <= 1], "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
        self.optimizer = torch.optim.AdamW(groups, lr=spec.lr, betas=spec.betas, eps=spec.eps, fused=True)
        self.clip = spec.clip_norm

    def steps(self, count: int, mark: Callable[[], None]) -> list[float]:
        """Steps; losses stay on the device until the end."""
        losses = []
        for _ in range(count):
            tokens, targets = self.samples[self.number % len(self.samples)]
            self.number += 1
            loss = self.loss(tokens, targets)
            loss.backward()  # type: ignore[no-untyped-call]
            self._update()
            losses.append(loss.detach())
            mark()
        return [float(loss) for loss in torch.stack(losses).tolist()]

    @torch.no_grad()
    def _update(self) -> None:
        gradients = [copy.grad for copy in self.copies if copy.grad is not None]
        sums = [master.grad for master in self.masters if master.grad is not None]
        torch._foreach_copy_(sums, gradients)
        for copy in self.copies:
            copy.grad = None
        torch.nn.utils.clip_grad_norm_(self.masters, self.clip)
        self.optimizer.step()
        torch._foreach_copy_(self.copies, self.masters)


def mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in fp32."""
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def plain(race: Race, *, whole: bool) -> Plain:
    """The bare loop over our module."""
    with torch.device("meta"):
        module = Decoder(race.model).to(torch.bfloat16)
    module.to_empty(device=race.device)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(start_of(race, name, parameter.shape))

    def loss(tokens: Tensor, targets: Tensor) -> Tensor:
        return mean_loss(module(tokens), targets)

    if whole:
        compiled = torch.compile(loss, backend=race.backend, dynamic=False)
        return Plain("plain, whole model compiled", race, module, compiled)
    apply_compile(find_blocks(module), race.backend)
    return Plain("plain, blocks compiled", race, module, loss)


def hugging_face(race: Race, *, liger: bool = False) -> Plain:
    """transformers' module of the same config, with the same weights, in the same loop.

    With Liger its kernels take the place of norms, SwiGLU, RoPE, head and loss; they run uncompiled.
    """
    import transformers

    config: Any = transformers.AutoConfig.for_model(**to_huggingface(race.model))
    config.use_cache = False
    with torch.device(race.device):
        # dtype here and no `.to` later: the latter would round the rotary frequencies, too
        make: Any = transformers.AutoModelForCausalLM.from_config
        module = make(config, dtype=torch.bfloat16, attn_implementation="sdpa").train()
    load_ours(module, race)
    if liger:
        from liger_kernel.transformers import _apply_liger_kernel_to_instance

        _apply_liger_kernel_to_instance(model=module)
        return Plain(
            "HF module with Liger, eager", race, module,
            lambda tokens, targets: module(input_ids=tokens, shift_labels=targets).loss,
        )  # fmt: skip
    for layer in module.model.layers:
        layer.compile(backend=race.backend)

    def loss(tokens: Tensor, targets: Tensor) -> Tensor:
        return mean_loss(module(tokens).logits, targets)

    return Plain("HF module, layers compiled", race, module, loss)


@torch.no_grad()
def load_ours(module: nn.Module, race: Race) -> None:
    """Copies the common start into transformers' parameters, by its names for ours (Llama, Qwen2)."""
    inner = {
        "attention.q": "self_attn.q_proj",
        "attention.k": "self_attn.k_proj",
        "attention.v": "self_attn.v_proj",
        "attention.o": "self_attn.o_proj",
        "attention_norm": "input_layernorm",
        "mlp_norm": "post_attention_layernorm",
        "mlp.gate": "mlp.gate_proj",
        "mlp.up": "mlp.up_proj",
        "mlp.down": "mlp.down_proj",
    }
    outer = {"embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}
    theirs = dict(module.named_parameters())
    with torch.device("meta"):
        shapes = {name: parameter.shape for name, parameter in Decoder(race.model).named_parameters()}
    for name, shape in shapes.items():
        value = start_of(race, name, shape)
        path, _, kind = name.rpartition(".")
        if path.startswith("layers."):
            _, layer, rest = path.split(".", 2)
            theirs.pop(f"model.layers.{layer}.{inner[rest]}.{kind}").copy_(value)
        else:
            theirs.pop(f"{outer[path]}.{kind}").copy_(value)
    if theirs:
        raise ValueError(f"parameters without a start: {', '.join(list(theirs)[:3])}")
