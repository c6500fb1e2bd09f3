"""Tensor and sequence parallelism give one rank's logits, losses and gradients, whatever the decoder has."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from loss_function import cross_entropy
from model.tiny_specs import SPECS
from parallel.spread import whole
from parallel.tensor_cases import TOLERANCE, away, compare, control_run, gradients_away, inputs, mesh_of, parallel
from scalewright.model.decoder import Decoder
from scalewright.parallel.collectives import all_sum
from scalewright.parallel.cross_entropy import make_columns
from scalewright.parallel.mesh import Mesh, make_mesh
from scalewright.parallel.tensor import apply_tensor, cut_parameters, rule_of
from scalewright.parallel.weights import hold
from scalewright.spec.grid import make_grid
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.placement import local_shape, place
from worlds import CPU, run_world

# 67 tokens are cut unevenly over 2 and over 4; with 4 ranks, 2 and 1 KV heads are copied.
MODELS = {name: spec.replace(vocab_size=67, num_hidden_layers=2) for name, spec in SPECS.items()}
MODELS["olmo2-mqa"] = MODELS["olmo2"].replace(num_key_value_heads=1)
MODELS["qwen3-mqa"] = MODELS["qwen3"].replace(num_key_value_heads=1)
MODELS["layernorm-over-all-heads"] = MODELS["gpt2"].replace(qk_norm="full")
Case = tuple[str, dict[str, Any], dict[str, Any], bool]  # its name, model, changes of the layout, documents


def on_rank(mesh: Mesh, layout: Layout, cases: list[Case]) -> dict[str, dict[str, float]]:
    """Every case's deviations on this rank."""
    meshes: dict[Any, Mesh] = {}
    deviations = {}
    for name, keys, changes, documents in cases:
        spec, inner = ModelSpec.parse(keys), layout.replace(**changes)
        deviations[name] = compare(spec, inner, mesh_of(spec, inner, mesh.rank, meshes), documents)
    return deviations


def assert_near(ranks: list[dict[str, dict[str, float]]], tolerance: float = TOLERANCE) -> None:
    """No number of any case on any rank is further away than the tolerance."""
    assert ranks[0]
    far = [
        f"{case}, rank {rank}: {key} by {value:.1e}"
        for rank, cases in enumerate(ranks)
        for case, values in cases.items()
        for key, value in values.items()
        if not value < tolerance
    ]
    assert not far, "\n".join(far)


@pytest.mark.parametrize(
    ("tp", "ways"), [(2, 1), pytest.param(2, 2, marks=pytest.mark.slow), pytest.param(4, 2, marks=pytest.mark.slow)]
)
def test_every_part_of_the_decoder(tp, ways):
    """With sequence parallelism on packed documents, and without it on whole rows; by default in turns."""
    cases: list[Case] = [("llama, sp, one document", MODELS["llama"].dump(), {"sp": True}, False)]
    for index, (name, spec) in enumerate(MODELS.items()):
        cases += [(f"{name}, sp {sp}", spec.dump(), {"sp": sp}, sp) for sp in (index % 2 == 0, index % 2 == 1)[:ways]]
    assert_near(run_world(on_rank, {"devices": tp, "tp": tp}, cases))


@pytest.mark.slow  # transformers takes seconds to import
def test_every_family_that_runs():
    from model.tiny_families import CASES
    from scalewright.spec.huggingface import RUNS, read_huggingface

    transformers = pytest.importorskip("transformers")
    cases: list[Case] = []
    families = set()
    for name, (kind, arguments) in CASES.items():
        config = getattr(transformers, kind)(**arguments).to_dict()
        spec = read_huggingface(config, name=name)
        families.add(spec.family)
        if spec.num_attention_heads % 4 == 0:
            cases += [(f"{name}, sp {sp}", spec.dump(), {"sp": sp}, sp) for sp in (True, False)]
    assert families >= RUNS, f"no case of {RUNS - families}"
    assert_near(run_world(on_rank, {"devices": 4, "tp": 4}, cases))


LAYOUTS: list[dict[str, Any]] = [
    {"devices": 2, "tp": 2},
    {"devices": 8, "tp": 4, "zero_stage": 3},
    {"devices": 8, "tp": 4, "sp": False, "zero_stage": 0},
    {"devices": 8, "tp": 2, "pp": 2, "dp_replicate": 2},
]


@pytest.mark.parametrize("keys", LAYOUTS, ids=str)
def test_parameters_have_the_shapes_of_their_placement(keys):
    """On every rank; what data parallelism will cut is whole still."""
    spec, layout = MODELS["tied"], Layout.parse(keys)
    grid = make_grid(layout, spec.kv_heads)
    uncut = place(spec, layout.replace(zero_stage=0))
    for rank in range(grid.world):
        mesh = Mesh(rank, grid, CPU, {})
        with torch.device("meta"):
            decoder = Decoder(spec)
        cut_parameters(decoder, place(spec, layout), mesh)
        shapes = {name: tuple(p.shape) for name, p in decoder.named_parameters()}
        assert shapes == {p.tensor.name: local_shape(p, mesh.coords, grid.size_of) for p in uncut}
        assert all(parameter.is_meta for parameter in decoder.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_the_plan_cuts_as_the_placement(name):
    spec = MODELS[name]
    for placement in place(spec, Layout.parse({"devices": 2, "tp": 2})):
        module, kind = placement.tensor.name.rsplit(".", 1)
        cut = {"rows": 0, "columns": 1}.get(rule_of(module, latent=spec.mla is not None).cut)
        if cut == 1 and kind == "bias":
            cut = None  # every rank adds a row-parallel layer's whole bias to the sum
        if module.endswith(("q_norm", "k_norm")) and spec.qk_norm == "head":
            cut = None
        if kind == "sinks":
            cut = 0  # its attention's heads
        assert [s.dim for s in placement.splits if s.axis == "tp"] == ([] if cut is None else [cut]), module


def test_an_allocated_model_is_not_cut():
    spec, layout = MODELS["llama"], Layout.parse({"devices": 2, "tp": 2})
    mesh = Mesh(0, make_grid(layout, spec.kv_heads), CPU, {})
    with pytest.raises(ValueError, match=r"parameter 'embed\.weight' is allocated"):
        cut_parameters(Decoder(spec), place(spec, layout), mesh)


def test_one_rank_is_left_alone():
    spec, layout = MODELS["llama"], Layout()
    mesh = make_mesh(make_grid(layout), 0, CPU)
    control = whole(spec)
    decoder = whole(spec)
    apply_tensor(decoder, layout, mesh)
    tokens, _, _ = inputs(spec, False)
    assert torch.equal(decoder(tokens), control(tokens))


# -- cuts, recomputation, compilation --------------------------------------------------------------


def cuts_on_rank(mesh: Mesh, layout: Layout, names: list[str]) -> dict[str, dict[str, float]]:
    """The decoder in two cuts, as two stages have it; a tied head's ends are two parameters."""
    deviations = {}
    for name, sp in ((name, sp) for name in names for sp in (True, False)):
        spec, inner = MODELS[name], layout.replace(sp=sp)
        control = control_run(spec, sp)[2]
        tokens, targets, arguments = inputs(spec, sp)
        first = parallel(spec, inner, mesh, layers=range(1), last=False)
        last = parallel(spec, inner, mesh, layers=range(1, 2), first=False)
        hidden = first(tokens, **arguments)
        assert hidden.shape == (2, 12 if sp else 24, 32)
        columns = make_columns(mesh, spec.vocab_size)
        losses = cross_entropy(last(hidden, **arguments), targets, 1e-2, columns)
        (sum(losses) / 40).backward()
        if spec.tie_word_embeddings:
            ends = first.embed.weight, last.head.weight
            ends[0].grad = ends[1].grad = ends[0].grad + ends[1].grad
            last.head.weight.grad = last.head.weight.grad.clone()  # each is compared, and summed, by itself
            control["head.weight"] = control["embed.weight"]
        deviations[f"{name}, {sp}"] = gradients_away(first, spec, inner, mesh, control)
        deviations[f"{name}, {sp}"] |= gradients_away(last, spec, inner, mesh, control)
    return deviations


def test_cuts_of_a_pipeline():
    assert_near(run_world(cuts_on_rank, {"devices": 2, "tp": 2}, ["llama", "gpt2", "bloom"]))


def modes_on_rank(mesh: Mesh, layout: Layout) -> dict[str, Any]:
    """Recomputation, and what is kept for the backward with and without it."""
    from scalewright.parallel.recompute import apply_recompute

    spec = MODELS["llama"]
    equal: dict[str, Any] = {}
    gradients: dict[str, list[Tensor]] = {}
    for kind in ("none", "selective", "full"):
        inner = layout.replace(recompute=kind)
        decoder = parallel(spec, inner, mesh)
        apply_recompute(list(decoder.layers.values()), inner.recompute)
        tokens, targets, _ = inputs(spec, False)
        losses = cross_entropy(decoder(tokens), targets, columns=make_columns(mesh, spec.vocab_size))
        losses[0].backward()
        gradients[kind] = [p.grad for p in decoder.parameters() if p.grad is not None]
    for kind in ("selective", "full"):
        equal[kind] = all(
            torch.equal(a, b) for a, b in zip(gradients["none"], gradients[kind], strict=True)
        )  # bit for bit: the same operators on the same numbers
    return equal


@pytest.mark.parametrize("sp", [True, False])
def test_recomputation_gives_the_same_bits(sp):
    for equal in run_world(modes_on_rank, {"devices": 2, "tp": 2, "sp": sp}):
        assert equal == {"selective": True, "full": True}


def kept_on_rank(mesh: Mesh, layout: Layout) -> dict[str, Any]:
    """How often a tensor of the gathered input's size is kept for the backward, by one block."""
    spec = MODELS["llama"].replace(num_hidden_layers=1)
    counts, gradients = {}, {}
    for regather in (True, False):
        inner = layout.replace(recompute="none" if regather else "full")  # the latter without recomputing
        decoder = parallel(spec, inner, mesh)
        tokens, _, _ = inputs(spec, False)
        kept: list[Tensor] = []

        def pack(saved: Tensor, kept: list[Tensor] = kept) -> Tensor:
            kept.append(saved)
            return saved

        with saved_tensors_hooks(pack, lambda saved: saved):
            features = decoder.features(tokens)
        sizes = {s.untyped_storage().data_ptr(): s.untyped_storage().nbytes() for s in kept}
        counts[regather] = list(sizes.values()).count(2 * 24 * 32 * 4)
        features.square().sum().backward()
        gradients[regather] = [p.grad for p in decoder.layers.parameters()]
    same = all(torch.equal(a, b) for a, b in zip(gradients[True], gradients[False], strict=True))
    return {"kept": counts[True], "kept whole": counts[False], "same": same}


def test_gathered_inputs_are_not_kept():
    """One block has two: attention's and the MLP's. Gathered again, they give the same bits."""
    for result in run_world(kept_on_rank, {"devices": 2, "tp": 2}):
        assert result == {"kept": 0, "kept whole": 2, "same": True}


def compiled_on_rank(mesh: Mesh, layout: Layout) -> dict[str, dict[str, float]]:
    """Blocks compiled without a graph break against the same blocks in eager mode."""
    deviations = {}
    for name, sp in (("llama", True), ("llama", False), ("olmo2", True), ("gpt2", True)):
        spec, inner = MODELS[name], layout.replace(sp=sp)
        tokens, targets, _ = inputs(spec, False)
        runs = []
        for compile_blocks in (True, False):
            torch._dynamo.reset()
            decoder = parallel(spec, inner, mesh)
            for block in decoder.layers.values() if compile_blocks else ():
                block.compile(backend="aot_eager", fullgraph=True)
            losses = cross_entropy(decoder(tokens), targets, columns=make_columns(mesh, spec.vocab_size))
            losses[0].backward()
            runs.append((losses[0].detach(), {n: p.grad for n, p in decoder.named_parameters()}))
        (compiled_loss, gradients), (loss, control) = runs
        deviations[f"{name}, {sp}"] = {"loss": away(compiled_loss, loss)}
        floor = 1e-2 * max(float(g.abs().max()) for g in control.values())
        for key, gradient in gradients.items():
            largest = control[key].abs().max().clamp(min=floor)
            deviations[f"{name}, {sp}"][key] = float((gradient - control[key]).abs().max() / largest)
    assert all_sum(torch.ones(1), mesh, "tp") == 2  # every rank has come to the end
    return deviations


@pytest.mark.slow  # the compiler's import alone takes seconds
def test_blocks_compile_whole():
    """aot_eager: the same operators, decomposed into smaller ones."""
    assert_near(run_world(compiled_on_rank, {"devices": 2, "tp": 2}))


def test_a_mesh_made_without_the_kv_heads_is_refused():
    """Its ranks would each update a copy of a head with a part of the gradient."""
    spec, layout = MODELS["qwen3-mqa"], Layout.parse({"devices": 4, "tp": 4, "zero_stage": 0})
    placements, mesh = place(spec, layout), Mesh(0, make_grid(layout), CPU, {})
    with torch.device("meta"):
        decoder = Decoder(spec)
    cut_parameters(decoder, placements, mesh)
    with pytest.raises(ValueError, match="summed over 'kv'"):
        hold(decoder, placements, mesh)
