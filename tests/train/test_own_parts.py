"""A user's own model, loss, optimizer and data train like ours, on one process and on several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import parts
from runs import STEPS, assert_same_bits, assert_same_run, merge, rows, run, run_data, weights
from scalewright.data.batch import Batch
from scalewright.dry_run.dry_run import dry_run
from scalewright.model.python import build_python_model
from scalewright.parallel.inputs import micro_batches, wanted_by
from scalewright.parallel.mesh import Mesh, leave_world
from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout
from scalewright.spec.run import RunSpec
from scalewright.train.network import build_network
from worlds import one_rank, plain, run_world

ZERO0 = {"devices": 2, "zero_stage": 0, "micro_batch": 2}
ZERO3 = {"devices": 2, "zero_stage": 3, "micro_batch": 2, "recompute": "full"}
TENSOR = {"devices": 2, "tp": 2, "micro_batch": 2}  # our model, with a loss or data of a user's own
OWN = {
    "model": {"python": "parts:build"},
    "loss": {"python": "parts:summed", "scale": 2.0},
    "optimizer": {"python": "parts:momentum", "lr": 1e-3},
    "data": {"python": "parts:Counting", "seq_len": 16},
}
SAVES = {"checkpoint": {"at_end": True}}


@pytest.fixture(scope="module")
def control(tmp_path_factory):
    """Each part alone beside ours, and all together, on one process."""
    made: dict[str, Path] = {}

    def make(part: str) -> Path:
        if part not in made:
            folder = tmp_path_factory.mktemp(part)
            made[part] = Path(run(run_data(folder, **changes(part))).out_dir)
        return made[part]

    return make


def changes(part: str):
    own = OWN if part == "all" else {part: OWN[part]}
    return merge({"layout": {"micro_batch": 4}, **SAVES}, own)


ALONE = [("model", ZERO0), ("loss", ZERO0), ("optimizer", ZERO3), ("data", ZERO0), ("model", ZERO3)]
# No optimizer under tp: RMSprop magnifies what sums in another order leave of tiny gradients (1e-5 here).
ALONE += [("data", TENSOR), ("loss", TENSOR)]
TOGETHER = [("all", ZERO0), ("all", ZERO3)]


@pytest.mark.parametrize(
    ("part", "layout"), [*TOGETHER, *(pytest.param(*case, marks=pytest.mark.slow) for case in ALONE)]
)
def test_equal_on_two_processes(control, tmp_path, part, layout):
    mine = run(run_data(tmp_path, **merge(changes(part), {"layout": layout}))).out_dir
    assert_same_run(mine, control(part))
    assert weights(mine).keys() == weights(control(part)).keys()


@pytest.mark.parametrize("kind", ["muon", pytest.param("shampoo", marks=pytest.mark.slow)])
def test_an_optimizer_of_whole_matrices_is_equal_in_a_pipeline(tmp_path, kind):
    own = {"optimizer": {"python": "parts:ByMatrix", "kind": kind}, "train": {"steps": 3}}
    layouts = {"one": {"micro_batch": 4}, "two": {"devices": 2, "pp": 2, "zero_stage": 0, "micro_batch": 2}}
    one, two = (run(run_data(tmp_path / name, **own, layout=layout)).out_dir for name, layout in layouts.items())
    assert_same_run(two, one)


def test_an_optimizer_that_refuses_vectors_is_named(tmp_path):
    with pytest.raises(UserError, match=r"torch.optim:Muon can't be called so: Muon only supports 2D"):
        run(run_data(tmp_path, optimizer={"python": "torch.optim:Muon"}))


def test_they_are_really_used(control):
    """The loss is twice ours, the data counts fewer tokens, the model has other tensors."""
    ours = run(run_data(control("loss").parent / "ours")).out_dir
    assert rows(control("loss"))[0]["loss"] == pytest.approx(2 * rows(ours)[0]["loss"], rel=1e-5)
    assert {row["loss_tokens"] for row in rows(control("data"))} != {row["loss_tokens"] for row in rows(ours)}
    assert "blocks.0.up.weight" in weights(control("model"))
    names = {name.split("/")[1] for name in weights(control("optimizer"), optimizer=True) if "/" in name}
    assert names == {"square_avg", "momentum_buffer"}


def test_own_optimizer_resumes(control, tmp_path):
    data = run_data(tmp_path, **changes("all"))
    run(data, steps=8)
    mine = run(data).out_dir
    assert_same_bits(weights(mine, optimizer=True), weights(control("all"), optimizer=True))


@pytest.mark.parametrize(
    "layout", [{}, pytest.param(ZERO0, marks=pytest.mark.slow), ZERO3], ids=["1", "zero0", "zero3"]
)
def test_frozen_parameters_stay(tmp_path, layout):
    """Not decayed, no state, not in the norm; and the others learn."""
    decays = {"name": "adamw", "lr": 1e-2, "weight_decay": 0.5}
    base = {"model": {"python": "parts:build_frozen"}, "optimizer": decays, "train": {"steps": 4}, **SAVES}
    out = run(run_data(tmp_path, **merge(base, {"layout": layout}))).out_dir
    torch.manual_seed(3)
    first = parts.build_frozen().state_dict()
    found = weights(out, optimizer=True)
    assert torch.equal(found["embed.weight"], first["embed.weight"])
    assert not torch.equal(found["head.weight"], first["head.weight"])
    assert "optimizer/exp_avg/embed.weight" not in found
    again = run({**run_data(tmp_path, **merge(base, {"layout": layout})), "train": {"steps": 6}})
    assert again.resumed_from == 4
    assert torch.equal(weights(out)["embed.weight"], first["embed.weight"])


def first_weights(mesh: Mesh, layout: Layout, python: str) -> dict[str, Any]:
    """This rank's weights before the first step."""
    run = RunSpec.parse(run_data(Path(), model={"python": python}, layout=layout.dump(), data=OWN["data"]))
    network = build_network(run, mesh, bf16=False)
    return {weight.name: plain(weight.master) for weight in network.parallel.weights}


def test_first_weights_are_those_of_rank_zero():
    """A builder that takes random numbers from elsewhere: all replicas still are one model."""
    zero, one = run_world(first_weights, ZERO0, "parts:build_by_chance")
    assert zero == one
    (again, _) = run_world(first_weights, ZERO0, "parts:build_by_chance")
    assert again != zero  # chance it was


@pytest.mark.parametrize(
    ("model", "layout", "says"),
    [
        ({"python": "parts:build_shared"}, ZERO3, "'blocks.0.up.weight' and 'blocks.1.up.weight' are one"),
        ({"python": "parts:build_shared", "outside": True}, ZERO3, "'blocks.0.norm.weight' and 'first.weight"),
        ({"python": "parts:build_all_frozen"}, {}, "no parameter of the model is to be trained"),
        ({"python": "parts:build_complex"}, {}, "parameter 'phase' is complex64"),
    ],
)
def test_a_model_that_can_not_be_trained_so(tmp_path, model, layout, says):
    with pytest.raises(UserError, match=says) as caught:
        dry_run(run_data(tmp_path, model=model, layout=layout))
    assert caught.value.how


@pytest.mark.parametrize(
    ("model", "layout"), [("parts:build_shared", {**ZERO3, "zero_stage": 0}), ("parts:build_tied", ZERO3)]
)
def test_a_weight_may_be_shared_where_one_rank_or_one_unit_holds_it(tmp_path, model, layout):
    base = run_data(tmp_path, model={"python": model}, train={"steps": 3})
    mine = run(merge(base, {"layout": layout})).out_dir
    control = run(merge(base, {"layout": {"micro_batch": 4}, "out_dir": str(tmp_path / "one")})).out_dir
    assert_same_run(mine, control)


@pytest.mark.parametrize("layout", [{}, {"offload": "parameters", "zero_stage": 3}], ids=["cast", "fsdp"])
def test_bf16_is_for_parameters_alone(layout):
    data = run_data(Path(), model={"python": "parts:build_turned"}, layout={**layout, "precision": "bf16"})
    spec = RunSpec.parse(data)
    mesh, _ = one_rank()
    try:
        model = build_network(spec, mesh, bf16=True).parallel.model
    finally:
        leave_world()
    own = parts.build_turned()
    for name, buffer in own.named_buffers():
        found = model.get_buffer(name)
        assert found.dtype == buffer.dtype
        assert torch.equal(found, buffer)
    if not layout:
        assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


def test_a_bf16_run_with_buffers(tmp_path):
    """One device and FSDP agree to bf16's rounding: 8 bits."""
    base = run_data(tmp_path, model={"python": "parts:build_turned"}, train={"steps": 3})
    base = merge(base, {"layout": {"precision": "bf16"}})
    one = run(merge(base, {"layout": {"micro_batch": 4}, "out_dir": str(tmp_path / "one")})).out_dir
    two = run(merge(base, {"layout": ZERO3})).out_dir
    assert_same_run(two, one, tolerance=2**-8)


@pytest.mark.parametrize("layout", [pytest.param({}, marks=pytest.mark.slow), ZERO3], ids=["one", "fsdp"])
def test_buffers_that_bf16_meets_where_torch_mixes_nothing(tmp_path, layout):
    data = run_data(tmp_path, model={"python": "parts:build_averaged"}, layout={**layout, "precision": "bf16"})
    says = r"buffers \(means.running_mean, means.running_var\) stay fp32.*layout.precision=fp32"
    for start in (dry_run, run):
        with pytest.raises(UserError, match=says):
            start(data)
    assert run(merge(data, {"layout": {"precision": "fp32"}, "train": {"steps": 1}})).step == 1


def test_an_optimizer_gets_parts_of_tensors_only_when_it_says_that_they_are_enough(tmp_path):
    def with_(name: str, **layout: Any) -> dict[str, Any]:
        own = {"python": name, "lr": 0.1}
        return run_data(tmp_path, optimizer=own, layout=layout, train={"steps": 1})

    with pytest.raises(UserError, match=r"parts:by_tensor doesn't say .*zero_stage=0"):
        run(with_("parts:by_tensor", **ZERO3))
    assert not (tmp_path / "out").exists()
    run(with_("parts:by_tensor", devices=2, pp=2, micro_batch=2, zero_stage=0))  # whole tensors


def test_a_single_number_can_not_be_sharded(tmp_path):
    data = run_data(tmp_path, model={"python": "parts:build_scalar"}, layout=ZERO3)
    with pytest.raises(UserError, match="parameter 'scale' is a single number"):
        run(data)
    assert run(merge(data, {"layout": {**ZERO0, "recompute": "none"}})).step == STEPS


@pytest.mark.parametrize("kind", ["tuple", "dict"])
def test_logits_may_come_in_a_tuple_or_a_dict(control, tmp_path, kind):
    model = {"python": "parts:build_wrapped", "kind": kind}
    mine = run(run_data(tmp_path, **merge(changes("model"), {"model": model}))).out_dir
    assert [row["loss"] for row in rows(mine)] == [row["loss"] for row in rows(control("model"))]


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("none", "the model's forward gave a NoneType.*: return logits"),
        ("flat", r"logits are float32 \[64, 67\].*give real numbers of shape \[4, 16, V\]"),
    ],
)
def test_a_model_without_logits(tmp_path, kind, says):
    with pytest.raises(UserError, match=says):
        run(run_data(tmp_path, model={"python": "parts:build_wrapped", "kind": kind}))


@pytest.mark.parametrize("layout", [ZERO3, {"micro_batch": 2, "recompute": "full"}], ids=["fsdp", "one"])
def test_a_model_of_transformers_trains_as_it_is(tmp_path, layout):
    """Packed rows: documents don't see each other, as in a run of ours."""
    base = run_data(tmp_path, model={"python": "parts:build_gpt2"}, train={"steps": 5})
    control = run(merge(base, {"layout": {"micro_batch": 4}, "out_dir": str(tmp_path / "one")})).out_dir
    assert_same_run(run(merge(base, {"layout": layout})).out_dir, control)


def test_documents_do_not_see_each_other_in_a_model_of_transformers():
    model = build_python_model("parts:build_gpt2", {}, seed=0)
    assert model.training
    random = np.random.default_rng(0)
    tokens = random.integers(1, 67, (2, 16))
    documents = np.repeat([[0] * 7 + [1] * 9, [0] * 3 + [1] * 13], 1, axis=0).astype(np.int32)
    places = np.concatenate([np.arange(16) - 7 * (np.arange(16) > 6), np.arange(16) - 3 * (np.arange(16) > 2)])
    batch = Batch(tokens, tokens, places.reshape(2, 16), documents, np.arange(2))
    (micro,) = micro_batches(batch, 2, torch.device("cpu"), wanted_by(model))
    assert set(micro.arguments) == {"position_ids"}
    logits = model(micro.tokens, **micro.arguments)
    other = micro.tokens.clone()
    other[0, :7], other[1, :3] = 1, 2
    again = model(other, **micro.arguments)
    assert torch.equal(logits[0, 7:], again[0, 7:])
    assert torch.equal(logits[1, 3:], again[1, 3:])
    assert not torch.equal(logits[0, :7], again[0, :7])
