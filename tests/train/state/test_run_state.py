"""A run's state is all there: what is before a save is what is after a load, bit for bit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from runs import assert_same_bits, bits, events, merge, rows, run, run_data, weights
from scalewright.checkpoint.format import COMMIT
from scalewright.checkpoint.read import CheckpointReader, find_checkpoint
from scalewright.checkpoint.verify import commit_text
from scalewright.parallel.mesh import Mesh
from scalewright.serve.load import load_model
from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout
from scalewright.spec.run import RunSpec
from scalewright.train.batches import DataPosition
from scalewright.train.loss import build_loss
from scalewright.train.network import build_network, first_weights, load_python
from scalewright.train.optimizer import build_optimizer
from scalewright.train.state.group_state import decode, encode
from scalewright.train.state.run_state import RunState
from scalewright.train.step import Step
from worlds import one_rank, run_world

OWN_MODEL = {"python": "stateful:build"}
VECTOR_MODEL = {"python": "stateful:build", "scalar": False}  # ZeRO cuts no single number
OWN_OPTIMIZER = {"python": "stateful:Adaptive", "lr": 0.05}
ADAMW = {"name": "adamw", "lr": 1e-2, "weight_decay": 0.1}
ONE = {"devices": 1, "micro_batch": 4}
ZERO0 = {"devices": 2, "zero_stage": 0, "micro_batch": 2}
ZERO1 = {"devices": 2, "zero_stage": 1, "micro_batch": 2}
ZERO3 = {"devices": 2, "zero_stage": 3, "micro_batch": 2}
PIPELINE = {"devices": 2, "pp": 2, "zero_stage": 0, "micro_batch": 2}
SAVES = {"checkpoint": {"at_end": True}, "train": {"steps": 6}}

slow = pytest.mark.slow
CASES = [
    pytest.param(ONE, {"model": OWN_MODEL, "optimizer": ADAMW}, id="one-model-adamw"),
    pytest.param(ONE, {"model": OWN_MODEL, "optimizer": OWN_OPTIMIZER}, id="one-model-own"),
    pytest.param(ZERO0, {"model": OWN_MODEL, "optimizer": ADAMW}, id="zero0-model-adamw"),
    pytest.param(ZERO1, {"model": VECTOR_MODEL, "optimizer": OWN_OPTIMIZER}, id="zero1-model-own", marks=slow),
    pytest.param(ZERO3, {"model": VECTOR_MODEL, "optimizer": OWN_OPTIMIZER}, id="zero3-model-own", marks=slow),
    pytest.param(ZERO3, {"optimizer": OWN_OPTIMIZER}, id="zero3-own", marks=slow),
    pytest.param(PIPELINE, {"optimizer": OWN_OPTIMIZER}, id="pp2-own", marks=slow),
    pytest.param(PIPELINE, {"optimizer": {**OWN_OPTIMIZER, "python": "stateful:Local"}}, id="pp2-by-rank", marks=slow),
]


# -- the same run -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("layout", "parts"), CASES)
def test_resume_is_bitwise(tmp_path, layout, parts):
    """6 steps at once == 3, a save and 3 more: lines, weights, buffers, optimizer, and state.json."""
    data = run_data(tmp_path, **merge({"layout": layout, **SAVES}, parts))
    straight = run({**data, "out_dir": str(tmp_path / "straight")}).out_dir
    run(data, steps=3)
    again = run(data)
    assert again.resumed_from == 3
    assert bits(again.out_dir) == bits(straight)
    assert_same_bits(weights(again.out_dir, optimizer=True), weights(straight, optimizer=True))
    mine, wanted = state_json(again.out_dir), state_json(straight)
    for key in ("optimizer", "optimizer_ranks", "optimizer_groups"):
        assert mine.get(key) == wanted.get(key), key


def test_a_product_that_underflows_is_saved_and_taken(tmp_path):
    """NAdam multiplies each step's momentum: 1e-44 after seven of 5e-7, and 0 after the eighth."""
    nadam = {"python": "torch.optim:NAdam", "lr": 1e-3, "betas": [1e-6, 0.9]}
    data = run_data(tmp_path, optimizer=nadam, layout=ONE, **{**SAVES, "train": {"steps": 9}})
    straight = run({**data, "out_dir": str(tmp_path / "straight")}).out_dir
    run(data, steps=7)
    assert 0 < state_json(data["out_dir"])["optimizer"]["mu_product"]["*"] < torch.finfo().tiny
    again = run(data)
    assert (again.resumed_from, bits(again.out_dir)) == (7, bits(straight))
    assert state_json(again.out_dir)["optimizer"] == state_json(straight)["optimizer"]


def state_json(out: str) -> dict[str, Any]:
    return dict(CheckpointReader(find_checkpoint(out)).state)


# -- before a save == after a load --------------------------------------------------------------------


def everything(state: RunState) -> dict[str, Any]:
    """All that a rank holds, walked without knowing what there is: {path: encoded value}."""
    found: dict[str, Any] = {}

    def walk(path: str, value: Any) -> None:
        if isinstance(value, Tensor):
            local = value.to_local() if hasattr(value, "to_local") else value
            found[path] = [str(local.dtype), list(local.shape), local.detach().flatten().tolist().__repr__()]
        elif isinstance(value, dict):
            for key, item in value.items():
                walk(f"{path}/{key}", item)
        else:
            found[path] = f"{type(value).__name__} {value!r}"

    names = {id(weight.master): weight.name for weight in state.weights}
    for weight in state.weights:
        walk(f"weight/{weight.name}", weight.master)
        walk(f"compute/{weight.name}", weight.resident)
    for name, buffer in state.buffers.named().items():
        walk(f"buffer/{name}", buffer)
    for key, value in state.optimizer.state.items():
        walk(f"state/{names.get(id(key), key)}", value)
    for number, group in enumerate(state.optimizer.param_groups):
        walk(f"group/{number}", {k: v for k, v in group.items() if k not in ("params", "initial_lr")})
    return found


def built(mesh: Mesh, data: dict[str, Any]) -> tuple[RunState, Step]:
    spec = RunSpec.parse(data)
    network = build_network(spec, mesh, bf16=spec.layout.precision == "bf16")
    optimizer = build_optimizer(spec.optimizer, network.parallel.weights, load_python, mesh)
    state = RunState(spec, network, optimizer, mesh)
    return state, Step(network.parallel, optimizer, build_loss("cross_entropy", 0.0, load_python), mesh, 1.0)


def save_and_load(mesh: Mesh, layout: Layout, data: dict[str, Any]) -> list[dict[str, Any]]:
    """This rank's state after two steps and a save, and that of a new one after its load."""
    from scalewright.parallel.inputs import Micro

    state, step = built(mesh, data)
    generator = torch.Generator().manual_seed(mesh.index("batch"))
    for _ in range(2):
        tokens = torch.randint(0, 67, (layout.micro_batch, 16), generator=generator)
        step([Micro(tokens, tokens.roll(-1, 1), {})] * layout.accumulation, torch.tensor(tokens.numel()))
    state.save(DataPosition(2, 16, 256), "r", {})
    before = everything(state)
    fresh, _ = built(mesh, data)
    place, notes = fresh.restore(CheckpointReader(find_checkpoint(data["out_dir"])))
    assert (place, notes) == (DataPosition(2, 16, 256), [])
    return [before, everything(fresh)]


@pytest.mark.parametrize(
    ("layout", "parts"),
    [
        (ONE, {"model": OWN_MODEL, "optimizer": OWN_OPTIMIZER}),
        pytest.param(ONE, {"model": OWN_MODEL, "optimizer": ADAMW}, marks=slow),
        ({**ZERO3, "precision": "bf16"}, {"optimizer": OWN_OPTIMIZER}),
        pytest.param(ZERO3, {"model": VECTOR_MODEL, "optimizer": OWN_OPTIMIZER}, marks=slow),
        ({"devices": 2, "zero_stage": 0, "micro_batch": 2}, {"model": OWN_MODEL, "optimizer": ADAMW}),
    ],
    ids=["one-own", "one-adamw", "zero3-bf16", "zero3-model", "zero0-adamw"],
)
def test_state_before_a_save_is_state_after_a_load(tmp_path, layout, parts):
    data = run_data(tmp_path, **merge({"layout": layout}, parts))
    if layout["devices"] == 1:
        mesh, _ = one_rank()
        ranks = [save_and_load(mesh, Layout.parse(layout), data)]
    else:
        ranks = run_world(save_and_load, data["layout"], data)
    for before, after in ranks:
        assert before.keys() == after.keys()
        assert {key for key in before if before[key] != after[key]} == set()
    if "model" in parts:
        buffers = [{k: v for k, v in before.items() if k.startswith("buffer/")} for before, _ in ranks]
        assert len(buffers[0]) == 3 * 4 + 4  # BatchNorm's three and `calls` a block; scratch isn't persistent
        assert all(found == buffers[0] for found in buffers)  # the same on every rank


# -- other layouts, other releases --------------------------------------------------------------------


def test_a_pipelines_save_goes_on_with_one_device_and_with_shards(tmp_path):
    """Numbers of both stages are there: a tensor without its own would begin anew, or raise a KeyError."""
    data = run_data(tmp_path, optimizer=OWN_OPTIMIZER, layout=PIPELINE, **SAVES)
    run(data, steps=3)
    numbers = state_json(data["out_dir"])["optimizer"]
    assert len(numbers["first"]) == len(weights(data["out_dir"]))
    assert numbers["updates"] == {"*": {"python": 3}}
    control = run({**data, "out_dir": str(tmp_path / "straight")}).out_dir
    for number, layout in enumerate((ONE, ZERO3)):
        out = tmp_path / f"other-{number}"
        shutil.copytree(data["out_dir"], out)
        base = {key: value for key, value in data.items() if key != "layout"}
        other = {**base, "layout": {"precision": "fp32", "global_batch": 8, **layout}, "out_dir": str(out)}
        assert run(other).resumed_from == 3
        for mine, wanted in zip(rows(out), rows(control), strict=True):
            assert mine["loss"] == pytest.approx(wanted["loss"], rel=1e-5)


def test_numbers_of_each_rank_need_the_ranks(tmp_path):
    local = {**OWN_OPTIMIZER, "python": "stateful:Local"}
    data = run_data(tmp_path, optimizer=local, layout=PIPELINE, **SAVES)
    run(data, steps=3)
    held = [rank["groups"][0]["held"]["now"] for rank in state_json(data["out_dir"])["optimizer_groups"]["ranks"]]
    assert held[0] != held[1]
    with pytest.raises(UserError, match="differs between the 2 ranks that saved it, and there are 1 now"):
        run({**data, "layout": {**ONE, "global_batch": 8, "precision": "fp32"}})


def test_a_save_without_buffers_goes_on_and_says_so(tmp_path):
    """Checkpoints of the release before: bare numbers, "*" for moments of a 0-dim weight too, no buffers."""

    data = run_data(tmp_path, model=OWN_MODEL, optimizer=ADAMW, layout=ONE, **SAVES)
    run(data, steps=3)
    folder = find_checkpoint(data["out_dir"])
    manifest = json.loads((folder / "manifest.json").read_text())
    gone = ("buffer/", "optimizer/exp_avg/scale", "optimizer/exp_avg_sq/scale")
    for boxes in (boxes for file in manifest["files"].values() for boxes in file.get("boxes", ())):
        patterns = [(name if isinstance(name, str) else name[0], name) for name in boxes["names"]]
        boxes["names"] = [name for pattern, name in patterns if not pattern.startswith(gone)]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    state = {"step": 3, "samples": 24, "tokens": 24 * 16, "seed": 3, "optimizer_name": "adamw"}
    state["optimizer"] = {"step": {"*": 3.0}, "exp_avg": {"*": 0.5}, "exp_avg_sq": {"*": 0.25}}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / COMMIT).write_text(commit_text(folder, 3))
    assert run(data).resumed_from == 3
    assert "saved no buffers" in events(data["out_dir"], "fault")[0]["message"]
    found = weights(data["out_dir"], optimizer=True)
    assert found["optimizer/exp_avg/embed.weight"].shape == (67, 24)
    assert found["optimizer/exp_avg/scale"].shape == ()


# -- what is used elsewhere ---------------------------------------------------------------------------


def test_buffers_come_with_the_model_for_init_and_for_use(tmp_path):
    data = run_data(tmp_path, model=OWN_MODEL, optimizer=ADAMW, layout=ONE, **SAVES)
    out = run(data).out_dir
    saved = {name: tensor for name, tensor in weights(out).items() if name.startswith("buffer/")}
    module = load_model(out, trust_code=True)
    state = module.state_dict()
    for name in ("blocks.0.norm.running_mean", "blocks.0.calls", "mask"):
        assert torch.equal(state[name], saved[f"buffer/{name}"]), name
    mesh, _ = one_rank()
    spec = RunSpec.parse({**data, "init": out})
    network = build_network(spec, mesh, bf16=False)
    first_weights(spec, network, mesh)
    named = {f"buffer/{name}": tensor for name, tensor in network.parallel.buffers.named().items()}
    assert_same_bits({name: real(tensor) for name, tensor in named.items()}, saved)


def real(tensor: Tensor) -> Tensor:
    """A tensor as a checkpoint writes it."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


# -- values -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        7, True, 0.1, float("inf"), "train", None, (0.9, 0.95), [1, (2, "x")], {"a": {"b": 1.5}},
        torch.tensor(3.0), torch.tensor([7]), torch.tensor(0.1, dtype=torch.float64), torch.ones(2, 3).bool(),
        torch.tensor(1.5, dtype=torch.bfloat16), torch.tensor(2**62 + 1),
    ],
    ids=str,
)  # fmt: skip
def test_values_survive_json(value):
    back = decode(json.loads(json.dumps(encode(value))))
    assert type(back) is type(value)
    if isinstance(value, Tensor):
        assert (back.dtype, back.shape) == (value.dtype, value.shape)
        assert torch.equal(back, value)
    else:
        assert back == value


@pytest.mark.parametrize("value", [object(), torch.zeros(5000), torch.zeros(1, dtype=torch.complex64), {1: 2}])
def test_what_has_no_plain_form(value):
    with pytest.raises(TypeError):
        encode(value)


class TestGroups:
    """Which wins on a resume: the optimizer's own progress, or the run file."""

    def saved(self, tmp_path: Path) -> dict[str, Any]:
        data = run_data(tmp_path, optimizer=OWN_OPTIMIZER, layout=ONE, **SAVES)
        run(data, steps=3)
        return data

    def test_progress_is_kept_and_a_changed_setting_is_taken(self, tmp_path):
        """`decay` is the user's alone; `d` begins as d0, which the user changes: it begins anew."""
        data = self.saved(tmp_path)
        changed = {**OWN_OPTIMIZER, "decay": 0.5, "d0": 0.25}
        run({**data, "optimizer": changed}, steps=3)  # nothing to do, and nothing saved
        spec = RunSpec.parse({**data, "optimizer": changed})
        mesh, _ = one_rank()
        network = build_network(spec, mesh, bf16=False)
        optimizer = build_optimizer(spec.optimizer, network.parallel.weights, load_python, mesh)
        RunState(spec, network, optimizer, mesh).restore(CheckpointReader(find_checkpoint(data["out_dir"])))
        group = optimizer.param_groups[0]
        assert (group["k"], group["train_mode"], group["recent"]) == (3, False, (3, 1.0))
        assert (group["decay"], group["d0"], group["d"]) == (0.5, 0.25, 0.25)
        assert group["betas"] == (0.9, 0.99)
        assert optimizer.state["calls"] == 3  # type: ignore[index]
