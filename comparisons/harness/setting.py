"""What every contestant of one contest is given: the model, its first weights, the samples, the update."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from scalewright.data.dataset import open_data
from scalewright.data.prepare import prepare
from scalewright.model.decoder import Decoder
from scalewright.model.init import initialize
from scalewright.spec.model import ModelSpec
from scalewright.spec.run import OptimizerSpec, RunSpec

CORPORA = ("wikitext-2", "shakespeare")


@dataclass(frozen=True)
class Setting:
    """One model on one corpus with one update rule."""

    model: ModelSpec
    data: Path  # a folder that `prepare` made
    work: Path  # where runs may write
    seq_len: int
    batch: int  # sequences a step
    seed: int = 0
    optimizer: OptimizerSpec = field(default_factory=OptimizerSpec)

    @property
    def tokens(self) -> int:
        """Of one step."""
        return self.batch * self.seq_len

    def run(self, name: str, precision: str, steps: int, **more: Any) -> RunSpec:
        """The same as a run of ours. No document mask: the peers have none, and all do the same work."""
        return RunSpec.parse(
            {
                "name": name,
                "out_dir": str(self.work / name),
                "seed": self.seed,
                "device": "cpu",
                "resume": "never",
                "model": self.model.dump(),
                "layout": {"micro_batch": self.batch, "global_batch": self.batch, "precision": precision},
                "data": {"train": str(self.data), "seq_len": self.seq_len, "document_mask": False},
                "optimizer": self.optimizer.dump(),
                "lr_schedule": {"kind": "constant"},
                "train": {"steps": steps},
                "checkpoint": {"every": 0, "at_end": False},
                **more,
            }
        )

    def samples(self, steps: int) -> list[tuple[Tensor, Tensor]]:
        """(tokens, targets) [B, T] of the first steps, read beforehand: the peers get them for nothing."""
        dataset = open_data(self.run("samples", "fp32", steps).data, "train", self.seed)
        batches = [dataset.batch(range(n * self.batch, (n + 1) * self.batch)) for n in range(steps)]
        return [(torch.from_numpy(b.tokens), torch.from_numpy(b.targets)) for b in batches]

    def decoder(self) -> Decoder:
        """Our model, plain, in fp32 with the weights that everyone starts from."""
        decoder = Decoder(self.model)
        initialize(decoder, self.model, self.seed)
        return decoder


def take(samples: list[tuple[Tensor, Tensor]], first: int, steps: int) -> list[tuple[Tensor, Tensor]]:
    """The next steps' samples; raises IndexError when too few are left: that would look like speed."""
    found = samples[first : first + steps]
    if len(found) < steps:
        raise IndexError(f"{len(samples)} steps of samples, but step {first + steps} is wanted")
    return found


def adamw(module: nn.Module, spec: OptimizerSpec) -> torch.optim.AdamW:
    """Fused AdamW that decays matrices and leaves norms alone, as everyone here does."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    return adamw_of(parameters, spec)


def adamw_of(parameters: list[nn.Parameter], spec: OptimizerSpec) -> torch.optim.AdamW:
    """The same over a list."""
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": spec.weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=spec.lr, betas=spec.betas, eps=spec.eps, fused=True)


def prepare_corpus(folder: Path, vocab_size: int) -> Path:
    """The bundled texts as token shards, with a tokenizer of the model's size; kept between calls."""
    made = folder / f"corpus-{vocab_size}"
    prepare(CORPORA, made, vocab_size=vocab_size, progress=None)
    return made
