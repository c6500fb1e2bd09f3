"""A pipeline against one process that runs the whole model: what the tests of it share.

Every rank makes the whole model too (it is tiny) and compares its own part: the gradient of every tensor that
it holds, after the sum over a tied embedding's two ends. Losses are added up over the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from loss_function import cross_entropy
from parallel.spread import values, whole
from scalewright.model.decoder import Decoder
from scalewright.parallel.execute import GradientSync
from scalewright.parallel.inputs import Micro
from scalewright.parallel.mesh import Mesh, make_mesh
from scalewright.parallel.parallelize import Parallel, fill, parallelize
from scalewright.parallel.pipeline import Pipeline, Recorder
from scalewright.parallel.stages import cut_stages
from scalewright.parallel.weights import sum_partial
from scalewright.spec.grid import make_grid
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.placement import Box, place
from scalewright.spec.schedule import schedule
from scalewright.spec.tensors import TensorSpec
from worlds import CPU

ROWS, LENGTH = 2, 10

# fp32 sums of the same numbers in another order (micro-batch after micro-batch against all at once), relative
# to the largest number of the tensor. Measured over all cases: below 2e-6.
TOLERANCE = 1e-5

_BASE: dict[str, Any] = {
    "name": "tiny",
    "vocab_size": 41,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "context": 32,
}


def tiny(layers: int, **keys: Any) -> ModelSpec:
    """A small model with as many layers."""
    return ModelSpec.parse({**_BASE, "num_hidden_layers": layers, **keys})


def gpt2(layers: int) -> ModelSpec:
    """One with biases, learned positions, layer norms and a tied head."""
    return tiny(
        layers,
        num_key_value_heads=2,
        mlp_type="gelu_tanh",
        norm_type="layernorm",
        positions="learned",
        tie_word_embeddings=True,
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
    )


def micro_batches(spec: ModelSpec, count: int, documents: bool = False) -> list[Micro]:
    """As many, with different tokens and numbers of counted ones; `documents`: rows packed of several."""
    random = torch.Generator().manual_seed(3)
    micros = []
    for index in range(count):
        tokens = torch.randint(0, spec.vocab_size, (ROWS, LENGTH), generator=random)
        targets = torch.randint(0, spec.vocab_size, (ROWS, LENGTH), generator=random)
        targets[0, : index % 4] = -100
        arguments = {}
        if documents and index != 1:
            first = 3 + index % 4
            numbers = (torch.arange(LENGTH) >= first).int()[None].repeat(ROWS, 1)
            positions = torch.cat([torch.arange(first), torch.arange(LENGTH - first)])
            arguments = {"documents": numbers, "positions": positions[None].repeat(ROWS, 1)}
        micros.append(Micro(tokens, targets, arguments))
    return micros


def loss(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy with a z-loss, so that the last stage has an auxiliary loss, too."""
    return cross_entropy(logits, targets, 1e-2)


def with_auxiliary(cut: Decoder, blocks: Sequence[int]) -> None:
    """Lets the blocks of these layers leave an auxiliary loss: the mean square of their output."""
    losses: list[Tensor] = []
    for layer in blocks:
        if str(layer) in cut.layers:
            cut.layers[str(layer)].register_forward_hook(
                lambda _module, _inputs, out: losses.append(out.float().square().mean())
            )

    def gather(_module: Any, _inputs: Any, _out: Any) -> None:
        if losses:
            cut.__dict__["auxiliary"] = torch.stack(losses).sum()
            losses.clear()

    cut.register_forward_hook(gather)


def build(spec: ModelSpec, layout: Layout, mesh: Mesh, auxiliary: Sequence[int] = (), **keys: Any) -> Parallel:
    """This rank's stages with their weights, gradient sums and executor."""
    with torch.device("meta"):
        stages = cut_stages(spec, layout, mesh.index("pp"))
    for cut in stages.stages.values():  # type: ignore[union-attr]
        with_auxiliary(cut, auxiliary)  # type: ignore[arg-type]
    parallel = parallelize(stages, place(spec, layout), layout, mesh, bf16=False, **keys)

    def source(t: TensorSpec, box: Box) -> Tensor:
        return values(t, spec)[tuple(slice(o, o + s) for o, s in zip(*box, strict=True))]

    fill(parallel.weights, source)
    return parallel


def run_step(
    spec: ModelSpec, layout: Layout, mesh: Mesh, recorder: Recorder | None = None, gradients: GradientSync | None = None
) -> Pipeline:
    """One step of a fresh pipeline, watched by a recorder, or with gradient sums of the test's own."""
    pipeline = build(spec, layout, mesh).executor
    assert isinstance(pipeline, Pipeline)
    pipeline.recorder = recorder or pipeline.recorder
    pipeline.gradients = gradients or pipeline.gradients
    pipeline.train(micro_batches(spec, layout.accumulation), loss, torch.tensor(100.0))
    return pipeline


def control(
    spec: ModelSpec, micros: Sequence[Micro], divisor: Tensor, auxiliary: Sequence[int] = ()
) -> tuple[Tensor, dict[str, Tensor]]:
    """Losses [2] and gradients by name of the same step in one process."""
    decoder = whole(spec)
    with_auxiliary(decoder, auxiliary)
    losses = torch.zeros(2)
    for micro in micros:
        total, extra = loss(decoder(micro.tokens, **micro.arguments), micro.targets)
        extra = extra + getattr(decoder, "auxiliary", 0.0)
        ((total + extra) / divisor).backward()  # type: ignore[no-untyped-call]
        losses += torch.stack([total.detach(), extra.detach()]) / divisor
    return losses, {name: p.grad for name, p in decoder.named_parameters() if p.grad is not None}


def deviation(
    mesh: Mesh,
    layout: Layout,
    spec: ModelSpec,
    documents: bool = False,
    auxiliary: Sequence[int] = (),
    pairs: bool = False,
    **keys: Any,
) -> dict[str, float]:
    """One step of a layout against the control: the largest deviations of losses, gradients and `total`."""
    micros = micro_batches(spec, layout.accumulation, documents)
    divisor = torch.tensor(float(sum((micro.targets >= 0).sum() for micro in micros)))
    parallel = build(spec, layout, mesh, auxiliary, **keys)
    assert isinstance(parallel.executor, Pipeline)
    if pairs:
        sizes = layout.pp, layout.virtual_stages, layout.accumulation
        parallel.executor.follow(schedule(layout.schedule, *sizes, pairs=True))
    for step in range(2):  # the second step starts from what the first left
        total = sum(parallel.executor.total(micro, loss) for micro in micros[: None if step else 1])
        losses = parallel.executor.train(micros, loss, divisor)
        gradients = parallel.weights.take_gradients()
        sum_partial(parallel.weights, gradients, mesh)
    expected, by_name = control(spec, micros, divisor, auxiliary)
    worst = {"gradient": 0.0}
    for weight, gradient in zip(parallel.weights.trained(), gradients, strict=True):
        expected_gradient = by_name[weight.name]
        worst["gradient"] = max(worst["gradient"], _relative(gradient, expected_gradient))
    dist.all_reduce(losses)
    worst["loss"] = _relative(losses, expected)
    assert isinstance(total, Tensor)
    dist.all_reduce(total)
    worst["total"] = _relative(total / divisor, expected[0])
    return worst


def _relative(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).abs().max() / expected.abs().max())


def run_cases(mesh: Mesh, layout: Layout, cases: list[dict[str, Any]]) -> list[dict[str, float]]:
    """In one world: the deviations of every case, {layout: keys, model: (name, layers), ...}."""
    deviations = []
    for case in cases:
        case_layout = Layout.parse({**layout.dump(), **case["layout"]})
        case_mesh = make_mesh(make_grid(case_layout), mesh.rank, CPU)
        name, layers = case["model"]
        spec = {"llama": tiny, "gpt2": gpt2}[name](layers)
        if case.get("tied"):
            spec = tiny(layers, tie_word_embeddings=True)
        options = {
            key: case[key] for key in ("documents", "auxiliary", "pairs", "compile_blocks", "backend") if key in case
        }
        deviations.append(deviation(case_mesh, case_layout, spec, **options))
    return deviations
