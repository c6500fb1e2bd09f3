"""AdamW with states of two bytes and of one: the formula, the rounding, resumes, layouts."""

from __future__ import annotations

import shutil
import struct
import zlib
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from devices import ON_GPU
from layout_steps import Built, assert_steps, build, own_optimizer, run_of, train, train_on_rank
from runs import assert_same_bits, bits, merge, rows, run, run_data, weights, worst
from scalewright.checkpoint.read import CheckpointReader, find_checkpoint
from scalewright.parallel.weights import Weight, Weights, hold
from scalewright.parity.setup import set_up
from scalewright.spec.errors import UserError
from scalewright.spec.grid import make_grid
from scalewright.spec.layout import Layout
from scalewright.spec.optimizers import OPTIMIZERS
from scalewright.spec.placement import box, place, place_plain
from scalewright.spec.run import OptimizerSpec, RunSpec
from scalewright.train import packed_adamw
from scalewright.train.network import describe, load_python
from scalewright.train.optimizer import build_optimizer
from scalewright.train.packed_adamw import PackedAdamW
from scalewright.train.rounding import Bytes, Numbering, halves, key, levels, mixed, rounded
from scalewright.train.state.optimizer_state import gather_numbers, read_states, write_states
from scalewright.train.step import obeys_flag, update_unless
from worlds import CPU, one_rank, run_world

PACKED = ["adamw_bf16", "adamw_8bit"]
KEYS = {"lr": 0.01, "betas": [0.9, 0.95], "weight_decay": 0.1}
# Tensors of 4096 numbers and more: the smallest whose states are bytes.
WIDE = {"hidden_size": 64, "intermediate_size": 96}


def small(seed: int = 0) -> tuple[nn.Module, Weights]:
    """A matrix of 4,160 numbers (16 blocks of 256 and a part of one), and a bias."""
    torch.manual_seed(seed)
    module = nn.Linear(65, 64)
    mesh, layout = one_rank()
    return module, hold(module, place_plain(describe(module), layout), mesh)


def built(held: Weights, name: str, **keys: Any) -> PackedAdamW:
    spec = OptimizerSpec.parse({"name": name, **KEYS, **keys})
    optimizer = build_optimizer(spec, held, load_python, one_rank()[0], seed=5)
    assert isinstance(optimizer, PackedAdamW)
    return optimizer


def gradients(module: nn.Module, step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(p.shape, generator=generator) * 0.1 for p in module.parameters()]


def update(module: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        for parameter, gradient in zip(module.parameters(), gradients(module, step), strict=True):
            parameter.grad = gradient
        optimizer.step()


# -- the formula ------------------------------------------------------------------------------------


def adamw(w: Tensor, m: Tensor, v: Tensor, g: Tensor, step: int, decay: float) -> tuple[Tensor, ...]:
    """One update by the textbook, fp32 (Loshchilov & Hutter 2019, algorithm 2)."""
    m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
    step_size = m / (1 - 0.9**step) / ((v / (1 - 0.95**step)).sqrt() + 1e-8)
    return w - 0.01 * (step_size + decay * w), m, v


def byte_wise(x: Tensor, table: list[float]) -> Tensor:
    """Numbers as they are after a byte: block by block, the nearest of all levels."""
    out = []
    for block in x.flatten().split(256):
        scale = block.abs().max()
        nearest = (block[:, None] / scale - torch.tensor(table)).abs().argmin(1)
        out.append(torch.tensor(table)[nearest] * scale)
    return torch.cat(out).view(x.shape)


def by_hand(index: int, name: str, step: int, seed: int) -> int:
    """The hash of one number, in whole numbers of Python."""

    def mix(x: int) -> int:
        for turn in range(3):
            x ^= x >> 16
            x = x * 0x045D9F3B & 0xFFFFFFFF if turn < 2 else x
        return x

    of_step = mix((step * (2**32 - 1640531535) + zlib.crc32(f"{seed} {name}".encode())) & 0xFFFFFFFF)
    return mix((index + of_step) & 0xFFFFFFFF)


def bf16_by_hand(x: float, noise: int) -> float:
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return float(struct.unpack("<f", struct.pack("<I", (bits + noise) & 0xFFFF0000))[0])


def test_bytes_are_the_textbooks_update_with_quantised_moments() -> None:
    module, held = small()
    optimizer = built(held, "adamw_8bit")
    w = [p.detach().clone() for p in module.parameters()]
    m, v = ([torch.zeros_like(x) for x in w] for _ in range(2))
    for step in range(1, 6):
        update(module, optimizer, range(step, step + 1))
        for index, g in enumerate(gradients(module, step)):
            decay = 0.1 if index == 0 else 0.0
            w[index], m[index], v[index] = adamw(w[index], m[index], v[index], g, step, decay)
            if index == 0:  # the bias is small, and keeps fp32
                m[0], v[0] = byte_wise(m[0], levels(True)), byte_wise(v[0], levels(False))
    for parameter, wanted in zip(module.parameters(), w, strict=True):
        # Five updates of weights near 0.1 whose rounding differs by 1e-8 each. A moment in the middle of two
        # levels may fall to either side: one level (1.4%) of one update (0.01 and less) of few numbers.
        far = (parameter - wanted).abs() > 1e-6
        assert far.float().mean() < 1e-3
        torch.testing.assert_close(parameter, wanted, rtol=0, atol=2e-3)
    states = optimizer.state[module.weight]
    assert states["exp_avg"].dtype == states["exp_avg_sq"].dtype == torch.uint8
    assert optimizer.state[module.bias]["exp_avg"].dtype == torch.float32


def test_bf16_states_are_rounded_by_place_step_and_name() -> None:
    """The first update's moments are known exactly: every bit of the state follows by hand."""
    module, held = small()
    optimizer = built(held, "adamw_bf16")
    update(module, optimizer, range(1, 2))
    for name, parameter, g in zip(("weight", "bias"), module.parameters(), gradients(module, 1), strict=True):
        first = torch.zeros_like(g).lerp(g, 1 - 0.9)
        second = torch.zeros_like(g).addcmul(g, g, value=1 - 0.95)
        state = optimizer.state[parameter]
        for index in range(0, g.numel(), 37):
            noise = by_hand(index, name, 1, 5)
            wanted = bf16_by_hand(first.flatten()[index].item(), noise & 0xFFFF)
            assert state["exp_avg"].flatten()[index].item() == wanted
            wanted = bf16_by_hand(second.flatten()[index].item(), noise >> 16)
            assert state["exp_avg_sq"].flatten()[index].item() == wanted


@pytest.mark.parametrize("name", PACKED)
def test_chunks_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, held = small()
    update(module, built(held, name), range(1, 4))
    other, other_held = small()
    monkeypatch.setattr(packed_adamw, "CHUNK", 512)
    update(other, built(other_held, name), range(1, 4))
    assert torch.equal(module.weight, other.weight)


# -- rounding and quantisation ----------------------------------------------------------------------


def test_rounding_keeps_the_mean_where_the_nearest_number_would_stay() -> None:
    """exp_avg_sq under beta2 0.999 and no gradient: 0.37 of it is left after 1,000 steps."""
    v, stuck = torch.ones(4096), torch.ones(4096, dtype=torch.bfloat16)
    places = Numbering((4096,), (0,), (4096,))
    for step in range(1000):
        hashes = mixed(places.of(0, 4096, CPU).add_(key("w", 0, torch.tensor(float(step)))))
        v = rounded(v * 0.999, halves(hashes)[1])
        stuck = (stuck.float() * 0.999).to(torch.bfloat16)
    # The mean of 4,096 walks of 1,000 steps of up to 1/256, in the last of which v is 0.37: 0.02 each
    assert abs(v.mean().item() - 0.999**1000) < 0.002
    assert (v == v.to(torch.bfloat16)).all()
    assert (stuck == 1).all()


@pytest.mark.parametrize("part", [((0, 0), (6, 10)), ((2, 0), (3, 10)), ((0, 4), (6, 3)), ((4, 5), (2, 5))])
def test_a_part_has_the_numbers_of_the_whole(part: tuple[tuple[int, int], tuple[int, int]]) -> None:
    (row, column), (height, width) = part
    whole = torch.arange(60, dtype=torch.int32).view(6, 10)
    wanted = whole[row : row + height, column : column + width].flatten()
    places = Numbering((height, width), (row, column), (6, 10))
    assert torch.equal(places.of(0, height * width, CPU), wanted)
    assert torch.equal(places.of(3, height * width - 1, CPU), wanted[3:-1])


@pytest.mark.parametrize("signed", [True, False])
def test_what_was_a_byte_is_the_same_byte_again(signed: bool) -> None:
    """Also of small numbers, of zeros, and of blocks that aren't full: checkpoints hold fp32."""
    table, generator = Bytes(signed, CPU), torch.Generator().manual_seed(0)
    x = torch.randn(256 * 40 + 19, generator=generator) * torch.logspace(-12, 3, 256 * 40 + 19)
    x = x if signed else x.abs()
    x[512:768] = 0
    codes, scales = table.pack(x)
    back = table.unpack(codes, scales)
    again, scales_again = table.pack(back)
    assert torch.equal(codes, again)
    assert torch.equal(scales, scales_again)
    assert torch.equal(table.unpack(again, scales_again), back)
    assert len(levels(signed)) == (255 if signed else 256)
    assert (back[512:768] == 0).all()
    # half of the widest step: 9/10 of a decade in 64 (signed) or 128 steps, of the block's largest number
    largest = x.abs()[: 256 * 40].view(-1, 256).max(1).values
    error = (back - x).abs()[: 256 * 40].view(-1, 256).max(1).values
    assert (error <= largest * 0.9 / (64 if signed else 128) / 2 * 1.0001).all()


# -- skipped steps, states, saves -------------------------------------------------------------------


@pytest.mark.parametrize("name", PACKED)
def test_a_skipped_update_leaves_weights_moments_and_steps(name: str) -> None:
    module, held = small()
    optimizer = built(held, name)
    assert obeys_flag(optimizer)
    control, control_held = small()
    update(control, built(control_held, name), range(1, 4))
    for number, skip in ((9, True), (1, False), (8, True), (2, False), (3, False)):
        before = [p.detach().clone() for p in module.parameters()]
        for parameter, gradient in zip(module.parameters(), gradients(module, number), strict=True):
            parameter.grad = gradient * float("nan") if skip else gradient
        update_unless(optimizer, torch.tensor(float(skip)))
        if skip:
            assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
    assert torch.equal(module.weight, control.weight)
    assert torch.equal(module.bias, control.bias)


@pytest.mark.parametrize("name", PACKED)
def test_states_take_the_tables_bytes(name: str) -> None:
    module, held = small()
    optimizer = built(held, name)
    update(module, optimizer, range(1, 2))
    for weight in held:
        kept = sum(value.nbytes for value in optimizer.state[weight.master].values())
        tensor = weight.placement.tensor
        assert kept == OPTIMIZERS[name].state_bytes(tensor, tensor.size)
    large = next(weight for weight in held if weight.placement.tensor.size > 4096)
    assert OPTIMIZERS[name].each == pytest.approx({"adamw_bf16": 4, "adamw_8bit": 2 + 8 / 256}[name])
    ratio = OPTIMIZERS[name].state_bytes(large.placement.tensor, large.placement.tensor.size) / 4160
    assert ratio == pytest.approx(OPTIMIZERS[name].each, rel=0.01)


class Moved(TorchDispatchMode):
    """Bytes of large tensors that operators read and write."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func.is_view:
            return result
        written = [
            value
            for argument, value in zip(func._schema.arguments, args, strict=False)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        out = [value for value in kwargs.values() if isinstance(value, Tensor)]
        fresh = [value for value in [result] if isinstance(value, Tensor)] if not written and not out else []
        overwritten = written if func._schema.name == "aten::copy_" else []
        read = [v for v in args if isinstance(v, Tensor) and not any(v is w for w in overwritten)]
        for tensors in ({(v.data_ptr(), v.dtype): v for v in read}.values(), written + out + fresh):
            self.bytes += sum(tensor.nbytes for tensor in tensors if tensor.numel() > 1000)
        return result


@pytest.mark.parametrize("name", PACKED)
def test_an_update_moves_the_tables_bytes(name: str) -> None:
    torch.manual_seed(0)
    module = nn.Linear(640, 64)  # 160 blocks of 256
    mesh, layout = one_rank()
    optimizer = built(hold(module, place_plain(describe(module), layout), mesh), name)
    update(module, optimizer, range(1, 2))
    for flag in (0, OPTIMIZERS[name].flag):
        with Moved() as moved:
            if flag:
                update_unless(optimizer, torch.zeros(()))
            else:
                optimizer.step()
        # the bias, scales and numbers a tensor are left out of the table
        wanted = (OPTIMIZERS[name].update + flag) * module.weight.numel()
        assert moved.bytes == pytest.approx(wanted, rel=0.005)


@pytest.mark.parametrize("name", PACKED)
def test_state_out_and_in_again_is_the_same_run(name: str) -> None:
    module, held = small()
    optimizer = built(held, name)
    update(module, optimizer, range(1, 4))
    tensors, numbers = read_states(optimizer, held)
    numbers, _ = gather_numbers(numbers, held, one_rank()[0])
    assert numbers == {"step": {"*": numbers["step"]["*"]}}
    saved = {
        f"{kind}/{weight}": (state.clone() if isinstance(state, Tensor) else state())
        for weight, by_kind in tensors.items()
        for kind, state in by_kind.items()
    }
    other, other_held = small(seed=9)
    other.load_state_dict(module.state_dict())
    fresh = built(other_held, name)
    kinds = ["exp_avg", "exp_avg_sq"]
    write_states(fresh, other_held, kinds, lambda k, w: saved.get(f"{k}/{w.name}"), numbers)
    for mine, theirs in zip(module.parameters(), other.parameters(), strict=True):
        a, b = optimizer.state[mine], fresh.state[theirs]
        assert a.keys() == b.keys()
        assert all(torch.equal(a[kind], b[kind]) and a[kind].dtype == b[kind].dtype for kind in a)
    update(module, optimizer, range(4, 7))
    update(other, fresh, range(4, 7))
    assert torch.equal(module.weight, other.weight)


ZERO3 = {"devices": 2, "zero_stage": 3, "micro_batch": 2}
ONE = {"devices": 1, "micro_batch": 4}
SAVES = {"checkpoint": {"at_end": True}, "train": {"steps": 4}}


@pytest.mark.parametrize(
    ("name", "layout"), [pytest.param("adamw_bf16", ONE, marks=pytest.mark.slow), ("adamw_8bit", ZERO3)]
)
def test_resume_is_bitwise(tmp_path: Any, name: str, layout: dict[str, Any]) -> None:
    """4 steps at once == 2, a save and 2 more; and the save goes on with another layout."""
    optimizer = {"name": name, "lr": 3e-3, "weight_decay": 0.1}
    data = run_data(tmp_path, **merge({"layout": layout, **SAVES}, {"optimizer": optimizer, "model": WIDE}))
    straight = run({**data, "out_dir": str(tmp_path / "straight")}).out_dir
    other = tmp_path / "other"
    shutil.copytree(run(data, steps=2).out_dir, other)
    assert run(data).resumed_from == 2
    assert bits(data["out_dir"]) == bits(straight)
    assert_same_bits(weights(data["out_dir"], optimizer=True), weights(straight, optimizer=True))
    moved = {**data["layout"], **(ZERO3 if layout is ONE else {**ONE, "zero_stage": 0})}
    assert run({**data, "out_dir": str(other), "layout": moved}).resumed_from == 2
    # another layout's sums, and for bytes its blocks: half a level of a moment in a few of its updates
    assert worst(rows(other), rows(straight), "loss") < (1e-5 if name == "adamw_bf16" else 1e-3)
    kinds = {n.split("/")[1] for n in CheckpointReader(find_checkpoint(other)).manifest.tensors if "/" in n}
    assert kinds == {"exp_avg", "exp_avg_sq"}


# -- learning, layouts ------------------------------------------------------------------------------


@pytest.mark.slow  # three runs of 50 steps
def test_it_learns_as_adamw_does(tmp_path: Any) -> None:
    """50 steps: the losses stay within 2% of fp32 states' (a moment in a byte is off by 1.4% at most, in bf16
    by 0.8%, without a bias), and the mean of the last ten within 0.5%."""
    losses = {}
    for name in ("adamw", *PACKED):
        optimizer = {"name": name, "lr": 3e-3, "betas": [0.9, 0.999], "weight_decay": 0.1}
        data = run_data(tmp_path, out_dir=str(tmp_path / name), optimizer=optimizer, model=WIDE)
        losses[name] = [row["loss"] for row in rows(run({**data, "train": {"steps": 50}}).out_dir)]
    assert losses["adamw"][-1] < 0.8 * losses["adamw"][0]
    for name in PACKED:
        assert losses[name] != losses["adamw"]
        assert max(abs(a / b - 1) for a, b in zip(losses[name], losses["adamw"], strict=True)) < 0.02
        assert sum(losses[name][-10:]) == pytest.approx(sum(losses["adamw"][-10:]), rel=0.005)


def cut_optimizer(layout: Layout) -> Any:
    """What the ranks of a layout do, by one process: an update of every part that some rank holds."""

    def make(on_one: Built) -> torch.optim.Optimizer:
        spec, model = on_one.run.optimizer, on_one.run.model
        assert isinstance(spec, OptimizerSpec)
        grid, whole = make_grid(layout, 2), {w.name: w for w in on_one.network.parallel.weights}
        parts: list[Weight] = []
        for placement in place(model, layout):  # type: ignore[arg-type]
            weight = whole[placement.tensor.name]
            boxes = {box(placement, grid.coords(rank), grid.size_of) for rank in range(grid.world)}
            for offsets, sizes in sorted(boxes):
                region = tuple(slice(o, o + n) for o, n in zip(offsets, sizes, strict=True))
                part = nn.Parameter(weight.master.detach()[region].clone())
                parts.append(replace(weight, master=part, compute=part, box=(offsets, sizes)))
        inner = build_optimizer(spec, Weights(parts), load_python, on_one.mesh, seed=on_one.run.seed)
        return Cut(inner, parts, whole)

    return make


class Cut(torch.optim.Optimizer):
    """An optimizer of parts, of which each is an own parameter."""

    def __init__(self, inner: torch.optim.Optimizer, parts: list[Weight], whole: dict[str, Weight]) -> None:
        super().__init__([part.master for part in parts], {})
        self.inner, self.parts, self.whole = inner, parts, whole

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        regions = [tuple(slice(o, o + n) for o, n in zip(*part.box, strict=True)) for part in self.parts]
        for part, region in zip(self.parts, regions, strict=True):
            gradient = self.whole[part.name].master.grad
            assert gradient is not None
            part.master.grad = gradient[region].clone()
        self.inner.step()
        for part, region in zip(self.parts, regions, strict=True):
            self.whole[part.name].master[region].copy_(part.master)


EIGHT_BITS = {"name": "adamw_8bit", "lr": 3e-3, "betas": [0.9, 0.95], "weight_decay": 0.1, "clip_norm": 1.0}
CUTS: list[dict[str, Any]] = [
    {"devices": 2, "zero_stage": 3, "micro_batch": 4},
    {"devices": 2, "tp": 2, "micro_batch": 4},
    {"devices": 2, "pp": 2, "micro_batch": 2},
    {"devices": 4, "tp": 2, "zero_stage": 1, "micro_batch": 4},
]


@pytest.mark.parametrize("layout", CUTS, ids=str)
def test_a_layouts_bytes_are_those_of_its_cuts(layout: dict[str, Any]) -> None:
    """Blocks of 256 follow a rank's own parts: one process with the same parts has the same losses."""
    keys = {**layout, "global_batch": 8, "precision": "fp32"}
    data = run_of(optimizer=EIGHT_BITS, layout=keys, model=WIDE)
    one = merge(data, {"layout": {"devices": 1, "tp": 1, "pp": 1, "zero_stage": 0, "micro_batch": 4}})
    mesh, _ = one_rank()
    wanted = train(build(mesh, one), 4, cut_optimizer(Layout.parse(keys)))
    plain = train(build(mesh, one), 4, own_optimizer)
    for rank in run_world(train_on_rank, keys, data, 4):
        assert_steps(rank["steps"], wanted["steps"], 1e-5)  # sums in another order, as everywhere
    if "pp" in layout:  # whole tensors: one device's own
        assert wanted["steps"] == plain["steps"]
    else:
        assert wanted["steps"] != plain["steps"]


def test_parity_refuses_what_one_device_does_not_compute() -> None:
    run = RunSpec.parse(run_of(optimizer=EIGHT_BITS, layout={"devices": 2, "zero_stage": 3}))
    with pytest.raises(UserError, match=r"adamw_8bit quantises .* compare with .*adamw_bf16"):
        set_up(run, device="cpu", steps=2)


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("device", ON_GPU)
def test_a_gpu_updates_as_a_cpu_does(device: str, name: str) -> None:
    """Rounding is by integers, which no device changes; a moment whose last bit differs moves a level."""
    answers = []
    for chosen in ("cpu", device):
        module, _ = small()
        module.to(chosen)
        mesh = replace(one_rank()[0], device=torch.device(chosen))
        held = hold(module, place_plain(describe(module), one_rank()[1]), mesh)
        optimizer = built(held, name)
        for step in range(1, 4):
            for parameter, gradient in zip(module.parameters(), gradients(module, step), strict=True):
                parameter.grad = gradient.to(chosen)
            optimizer.step()
        answers.append([p.detach().cpu() for p in module.parameters()])
    for there, here in zip(answers[1], answers[0], strict=True):
        far = (there - here).abs() > 1e-6
        assert far.float().mean() < 1e-3
        torch.testing.assert_close(there, here, rtol=0, atol=2e-3)
