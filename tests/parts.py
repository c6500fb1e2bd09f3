"""A user's own parts, as run files name them (`python: parts:build`), and some that misbehave on purpose."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from loss_function import cross_entropy
from runs import events, steps_done
from scalewright.data.batch import Batch
from scalewright.parallel.wire import Mean
from scalewright.train import step


class Layer(nn.Module):
    """A residual block with dropout."""

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.down(F.gelu(self.up(self.norm(x)))))


class Words(nn.Module):
    """Each word foretells the next, through a few blocks; `positions` and `documents` are not asked for."""

    def __init__(self, vocab: int, dim: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(Layer(dim, dropout) for _ in range(layers))
        self.head = nn.Linear(dim, vocab)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def build(vocab: int = 67, dim: int = 24, layers: int = 2, dropout: float = 0.0) -> nn.Module:
    """A user's model."""
    return Words(vocab, dim, layers, dropout)


def build_frozen(**arguments: int) -> nn.Module:
    """The same with an embedding that is not to be trained."""
    model = Words(67, 24, 2, 0.0)
    model.embed.weight.requires_grad_(False)
    return model


def build_by_chance() -> nn.Module:
    """A model whose first weights come from elsewhere than torch's seed: another on every rank."""
    model = Words(67, 24, 2, 0.0)
    random = np.random.default_rng(int.from_bytes(os.urandom(8), "little"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.from_numpy(random.normal(0, 0.1, parameter.shape)))
    return model


def summed(logits: Tensor, targets: Tensor, scale: float = 1.0) -> Tensor:
    """A user's loss: the sum over counted tokens."""
    return scale * F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")


def averaged(logits: Tensor, targets: Tensor) -> Tensor:
    """A user's loss as most write it: the mean over counted tokens."""
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def by_sample(logits: Tensor, targets: Tensor) -> Tensor:
    """One number a token."""
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")


def noisy(logits: Tensor, targets: Tensor) -> Tensor:
    """A sum that draws random numbers."""
    return summed(logits, targets) * (1 + 0.001 * torch.rand(()))


def detached(logits: Tensor, targets: Tensor) -> Tensor:
    """A loss that nothing can be learnt from."""
    return summed(logits.detach(), targets)


def fragile(logits: Tensor, targets: Tensor, die_at: int = 0, pause: float = 0.0, raises: str = "") -> Tensor:
    """Our own loss, from a process that is killed (or raises) at the `die_at`-th call."""
    if not torch.is_grad_enabled():  # the look at whether this is a sum
        return cross_entropy(logits, targets)[0]
    fragile.calls = getattr(fragile, "calls", 0) + 1  # type: ignore[attr-defined]
    if fragile.calls == die_at:  # type: ignore[attr-defined]
        if raises:
            raise ArithmeticError(raises)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(pause)
    return cross_entropy(logits, targets)[0]


def poisoned(logits: Tensor, targets: Tensor, first: int, last: int) -> Tensor:
    """Our own loss, NaN at its `first` to `last` calls (from 1) of a process."""
    total = cross_entropy(logits, targets)[0]
    if not torch.is_grad_enabled():
        return total
    poisoned.calls = getattr(poisoned, "calls", 0) + 1  # type: ignore[attr-defined]
    return total * float("nan") if first <= poisoned.calls <= last else total  # type: ignore[attr-defined]


def fragile_on_one(logits: Tensor, targets: Tensor, die_at: int, raises: str = "", rank: int = 1) -> Tensor:
    """As `fragile`, on one rank alone."""
    mine = torch.distributed.is_initialized() and torch.distributed.get_rank() == rank
    return fragile(logits, targets, die_at if mine else 0, raises=raises)


def watched(logits: Tensor, targets: Tensor, folder: str) -> Tensor:
    """Our own loss; each rank writes a line a call, its process id, to a file in `folder`, and is as slow as
    the file `pause` there says (in seconds)."""
    if not torch.is_grad_enabled():
        return cross_entropy(logits, targets)[0]
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    with (Path(folder) / f"rank-{rank}").open("a") as lines:
        lines.write(f"{os.getpid()}\n")
    pause = Path(folder) / "pause"
    time.sleep(float(pause.read_text()) if pause.exists() else 0.0)
    return cross_entropy(logits, targets)[0]


def momentum(groups: Any, lr: float) -> torch.optim.Optimizer:
    """A user's optimizer."""
    return torch.optim.RMSprop(groups, lr=lr, momentum=0.5)


class Counting:
    """A user's data: sample i counts up from i, and some targets are not counted."""

    def __init__(self, split: str, seed: int, seq_len: int = 16, vocab: int = 67) -> None:
        self.seq_len, self.vocab, self.shift = seq_len, vocab, seed

    def __len__(self) -> int:
        return 200

    def batch(self, indices: Sequence[int] | range) -> Batch:
        """These samples."""
        ids = np.asarray(indices, dtype=np.int64)
        row = (ids[:, None] + self.shift + np.arange(self.seq_len + 1)) % self.vocab
        targets = row[:, 1:].copy()
        targets[np.arange(len(ids)), ids % self.seq_len] = -100
        targets[ids % 3 == 0, 5:] = -100
        places = np.tile(np.arange(self.seq_len), (len(ids), 1))
        return Batch(row[:, :-1].copy(), targets, places, None, ids)


class Broken(Counting):
    """Data that stops being readable at one sample."""

    def __init__(self, split: str, seed: int, at: int, seq_len: int = 16) -> None:
        super().__init__(split, seed, seq_len)
        self.at = at

    def batch(self, indices: Sequence[int] | range) -> Batch:
        """These samples, unless the bad one is among them."""
        if self.at in indices:
            raise OSError(5, "Input/output error", str(Path("bad-shard.bin")))
        return super().batch(indices)


class Scaled(Words):
    """With one number among its parameters."""

    def __init__(self) -> None:
        super().__init__(67, 24, 2, 0.0)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens) * self.scale


def build_scalar() -> nn.Module:
    """A model with a parameter of no dimension."""
    return Scaled()


class Turned(Words):
    """With buffers that bf16 would harm: fp32 angles, complex rotations, whole numbers."""

    def __init__(self) -> None:
        super().__init__(67, 24, 2, 0.0)
        angles = torch.arange(12) / 7
        self.register_buffer("angles", angles)
        self.register_buffer("rotations", torch.polar(torch.ones(12), angles))
        self.register_buffer("count", torch.arange(300))

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens) * self.rotations.imag.sum().to(self.head.weight.dtype)


def build_turned() -> nn.Module:
    """A model with buffers."""
    return Turned()


class Averaged(Words):
    """With running means, which torch doesn't mix with bf16."""

    def __init__(self) -> None:
        super().__init__(67, 24, 2, 0.0)
        self.means = nn.BatchNorm1d(67)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.means(super().forward(tokens).transpose(1, 2)).transpose(1, 2)


def build_averaged() -> nn.Module:
    """A model whose fp32 buffers meet bf16 activations."""
    return Averaged()


def build_shared(outside: bool = False) -> nn.Module:
    """A model whose second block has a weight of its first; or one that lies outside of all blocks."""
    model = Words(67, 24, 2, 0.0)
    if outside:
        model.first = model.blocks[0].norm
    else:
        model.blocks[1].up.weight = model.blocks[0].up.weight
    return model


def build_tied() -> nn.Module:
    """A model whose head is its embedding: both lie outside of its blocks."""
    model = Words(67, 24, 2, 0.0)
    model.head.weight = model.embed.weight
    return model


def build_all_frozen() -> nn.Module:
    """A model with nothing to train."""
    return Words(67, 24, 2, 0.0).requires_grad_(False)


def build_complex() -> nn.Module:
    """A model with a complex parameter."""
    model = Words(67, 24, 2, 0.0)
    model.phase = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    return model


class ByTensor(torch.optim.SGD):
    """An optimizer that doesn't say whether it is elementwise: its step is of the whole tensor's length."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad /= parameter.grad.norm() + 1e-6
        super().step(closure)


class ByNumber(torch.optim.SGD):
    """One that says that it is."""

    elementwise = True


def by_tensor(groups: Any, lr: float) -> torch.optim.Optimizer:
    """A function that doesn't say it either."""
    return ByTensor(groups, lr=lr)


class ByMatrix(torch.optim.SGD):
    """Its step is of a tensor as a whole, in the way that `kind` names."""

    def __init__(self, groups: Any, lr: float = 0.01, kind: str = "muon") -> None:
        super().__init__(groups, lr=lr)
        self.kind = kind

    def update(self, weight: Tensor, grad: Tensor, every: float) -> Tensor:
        """`every`: the norm of all gradients that it was given."""
        if self.kind == "prodigy":
            return grad / every
        if self.kind == "chance":
            return grad * torch.rand(()) / every
        if self.kind == "group":
            torch.distributed.all_reduce(grad)
        if self.kind == "lamb":
            return grad * weight.norm() / grad.norm()
        if grad.dim() < 2:
            return grad
        if self.kind == "shampoo":
            values, vectors = torch.linalg.eigh(grad @ grad.T + 1e-3 * torch.eye(len(grad)))
            return vectors @ torch.diag(values.clamp_min(1e-6) ** -0.25) @ vectors.T @ grad
        if self.kind == "rows":
            return grad / (grad.norm(dim=1, keepdim=True) + 1e-6)
        if self.kind == "columns":
            return grad / (grad.norm(dim=0) + 1e-6)
        for _ in range(5 if self.kind == "muon" else 0):
            grad = grad / (grad.norm() + 1e-6)
            grad = 1.5 * grad - 0.5 * grad @ grad.T @ grad
        return grad

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        given = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        every = float(torch.stack([p.grad.norm() for p in given]).norm())
        for parameter in given:
            parameter.grad = self.update(parameter, parameter.grad, every)
        super().step(closure)


class SaysSo(ByMatrix):
    """The same, declared elementwise, rightly or not."""

    elementwise = True


class SumsItself(SaysSo):
    """One that would sum over ranks, and can't be tried on one."""

    communicates = True


def by_matrix(groups: Any, kind: str) -> torch.optim.Optimizer:
    """A function that declares nothing."""
    return ByMatrix(groups, kind=kind)


class Unsaid(Counting):
    """Data whose arguments don't say how long its sequences are."""

    def __init__(self, split: str, seed: int) -> None:
        super().__init__(split, seed, 8)


class Factored(torch.optim.SGD):
    """State of another shape than the weight, as Adafactor's."""

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["row"] = torch.zeros(parameter.shape[0], 2)


class Interrupted(Factored):
    """Asks its process to stop."""

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        os.kill(os.getpid(), signal.SIGTERM)


def build_gpt2(layers: int = 2, **config: Any) -> nn.Module:
    """A model of transformers as it is, in evaluation mode as `from_pretrained` gives it."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": 67, "n_positions": 64, "n_embd": 24, "n_layer": layers, "n_head": 2}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(**{**sizes, **dropout, **config})).eval()


class Wrapped(Words):
    """Gives its logits in a shape of the user's choice."""

    def __init__(self, kind: str) -> None:
        super().__init__(67, 24, 2, 0.0)
        self.kind = kind

    def forward(self, tokens: Tensor) -> Any:
        logits = super().forward(tokens)
        kinds = {"tuple": (logits, 0), "dict": {"logits": logits}, "flat": logits.flatten(0, 1), "none": None}
        return kinds[self.kind]


def build_wrapped(kind: str) -> nn.Module:
    """`build`, with its logits in a tuple, a dict, without rows, or missing."""
    return Wrapped(kind)


def hungry_on_one(logits: Tensor, targets: Tensor, rank: int, mib: int) -> Tensor:
    """Our own loss, on a rank that holds much more memory than the others."""
    if torch.distributed.get_rank() == rank and not hasattr(hungry_on_one, "held"):
        hungry_on_one.held = torch.ones(mib << 18)  # type: ignore[attr-defined]
    return cross_entropy(logits, targets)[0]


def falls(
    logits: Tensor, targets: Tensor, folder: str, at: int, rank: int = 1, how: str = "SIGKILL", times: int = 1
) -> Tensor:
    """Our own loss, from a rank that falls at the `at`-th call of its process: by a signal, `raise`, `exit`, or `spin`
    (which holds the interpreter's lock); `times` times in all, counted by files in `folder`."""
    if not torch.is_grad_enabled():
        return cross_entropy(logits, targets)[0]
    falls.calls = getattr(falls, "calls", 0) + 1  # type: ignore[attr-defined]
    mine = (torch.distributed.get_rank() if torch.distributed.is_initialized() else 0) == rank
    before = len(list(Path(folder).glob("fall-*")))
    if mine and falls.calls == at and before < times:  # type: ignore[attr-defined]
        (Path(folder) / f"fall-{before}").touch()
        if how == "raise":
            raise ArithmeticError("numbers went wrong")
        if how == "exit":
            os._exit(3)
        if how == "spin":
            re.match(r"(a*)*b", "a" * 40)  # minutes in C, which never lets go of the lock
        os.kill(os.getpid(), getattr(signal, how))
    return cross_entropy(logits, targets)[0]


def wrong_at(logits: Tensor, targets: Tensor, step_of: str, step: int) -> Tensor:
    """Our own loss, which raises once a run in this folder has done so many steps."""
    if torch.is_grad_enabled() and steps_done(Path(step_of)) == step:
        time.sleep(0.5)  # until each rank has seen it
        raise ArithmeticError("numbers went wrong")
    return cross_entropy(logits, targets)[0]


def falls_after(logits: Tensor, targets: Tensor, folder: str, step: int) -> Tensor:
    """Our own loss, from a rank that dies in its first call after it was resumed from that step's checkpoint."""
    resumed = events(Path(folder), "resume")
    if torch.is_grad_enabled() and resumed and resumed[-1]["step"] == step:
        os.kill(os.getpid(), signal.SIGKILL)
    return cross_entropy(logits, targets)[0]


def slow_on_one(logits: Tensor, targets: Tensor, rank: int, world: int, pause: float) -> Tensor:
    """Our own loss, from a world in which one rank takes its time."""
    if torch.is_grad_enabled() and torch.distributed.is_initialized():
        here = torch.distributed.get_rank(), torch.distributed.get_world_size()
        time.sleep(pause if here == (rank, world) else 0.02)
    return cross_entropy(logits, targets)[0]


def torn(logits: Tensor, targets: Tensor, folder: str, at: int, where: str, dies: int, misses: int) -> Tensor:
    """Our own loss. From the `at`-th call on, and once a run: the next time that rank `dies` comes to the end of
    `where` (the sum of a step's `report`, or an `outer` step's mean) it is killed there, and rank `misses`, which has
    given its part, learns of the loss and not of the result. All others have it."""
    if not torch.is_grad_enabled():
        return cross_entropy(logits, targets)[0]
    torn.calls = getattr(torn, "calls", 0) + 1  # type: ignore[attr-defined]
    rank = torch.distributed.get_rank()
    done = Path(folder) / f"torn-{rank}"
    if torn.calls < at or done.exists() or rank not in (dies, misses):  # type: ignore[attr-defined]
        return cross_entropy(logits, targets)[0]
    done.touch()
    module, name = (step, "sum_over_ranks") if where == "report" else (Mean, "finish")
    whole = getattr(module, name)

    def tear(*arguments: Any) -> Any:
        whole(*arguments)
        time.sleep(0.2)  # the others have it by now
        if rank == dies:
            os.kill(os.getpid(), signal.SIGKILL)
        setattr(module, name, whole)
        if where == "report":
            arguments[0].fill_(float("nan"))
        raise RuntimeError("Connection closed by peer")

    setattr(module, name, tear)
    return cross_entropy(logits, targets)[0]
