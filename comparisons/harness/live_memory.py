"""One layout's memory, measured: its real program on CPU processes, live tensor bytes by kind on every rank.

    build the network -> one step, which makes what is made once -> one step, watched

Every rank runs the trainer's own code over Gloo on random tokens; the meter is the dry run's
(`dry_run/watch.py`), on real tensors. What offloading keeps in host memory isn't counted.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from harness.live_ranks import on_every_rank
from scalewright.dry_run.watch import Watch
from scalewright.parallel.inputs import Micro, wanted_by
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.offload_states import is_host
from scalewright.parallel.parallelize import fill
from scalewright.spec.model import ModelSpec
from scalewright.spec.run import RunSpec
from scalewright.train.loss import build_loss
from scalewright.train.network import build_network, load_python
from scalewright.train.optimizer import build_optimizer
from scalewright.train.step import Step

Found = list[dict[str, int]]  # of every rank: most bytes of each kind, `kept`, `peak`


def measure(model: ModelSpec, layout: dict[str, Any], seq_len: int, optimizer: str = "adamw") -> Found:
    """Bytes on every rank: each kind at its own highest, their highest sum (`peak`), and `kept`.

    `kept` is what forwards have made and still hold when the first loss begins, logits included: the
    activations that wait for the backward, without what operators need for a moment. 0 on ranks without loss.
    """
    run = RunSpec.parse(
        {
            "model": model.dump(),
            "layout": {"precision": "fp32", **layout},
            "optimizer": {"name": optimizer},
            "data": {"train": "none", "valid": "none", "seq_len": seq_len},
            "device": "cpu",
        }
    )
    return on_every_rank(_measure, run)


def _measure(run: RunSpec, mesh: Mesh) -> dict[str, int]:
    model = run.model
    assert isinstance(model, ModelSpec)
    network = build_network(run, mesh, bf16=run.layout.precision == "bf16")
    assert network.random_source is not None
    fill(network.parallel.weights, network.random_source)
    optimizer = build_optimizer(run.optimizer, network.parallel.weights, load_python, mesh)
    loss = build_loss(run.loss, 0.0, load_python, mesh, model.vocab_size)
    kept: list[int] = []
    with Watch(mesh, is_host) as watch:
        watch.register(network.parallel.weights, optimizer)

        def recording_loss(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            kept.append(watch.live.now["activations"])
            return loss(logits, targets)

        step = Step(network.parallel, optimizer, recording_loss, mesh, clip_norm=1.0)
        _step(step, run, model)
        kept.clear()
        before = watch.live.now["activations"]  # what steps remember: the guard's window of losses and norms
        window = watch.live.open()
        _step(step, run, model)
        watch.live.close(window)
    return {**window.most, "peak": window.peak, "kept": kept[0] - before if kept else 0}


def _step(step: Step, run: RunSpec, model: ModelSpec) -> None:
    layout, seq_len = run.layout, run.data.seq_len  # type: ignore[union-attr]
    rows = [torch.randint(0, model.vocab_size, (layout.micro_batch, seq_len + 1)) for _ in range(layout.accumulation)]
    index: Tensor = torch.arange(seq_len)
    arguments: dict[str, Tensor] = {}
    if (cut := wanted_by(step.parallel.model).cut) is not None:
        index = torch.from_numpy(cut.tokens(seq_len))
        arguments = {"positions": index[None]}
    micros = [Micro(row[:, :-1][:, index].contiguous(), row[:, 1:][:, index].contiguous(), arguments) for row in rows]
    step(micros, torch.tensor(float(layout.accumulation * layout.micro_batch * seq_len)))
