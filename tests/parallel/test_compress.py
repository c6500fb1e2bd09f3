"""Compressed gradients: layouts against one process that does the same, skipped steps, resumes, bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.rank_traffic import step_traffic, wire_bytes
from torch import Tensor

from layout_steps import assert_steps, assert_weights, build, rank_micros, run_of, train
from runs import bits, events, merge, rows, run, run_data, weights, worst
from scalewright.checkpoint.read import CheckpointReader, find_checkpoint
from scalewright.dry_run.dry_run import dry_run
from scalewright.parallel import parallelize
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.power_sgd import first_q, orthogonalize
from scalewright.parallel.replicate import GradientBuckets, HalfBuckets
from scalewright.parity.setup import set_up
from scalewright.plan.cost.memory import GIB
from scalewright.plan.predict import predict, price
from scalewright.spec.compress import LowRank, factors, kept_bytes, rank_of, read_compress
from scalewright.spec.errors import UserError
from scalewright.spec.grid import make_grid
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.placement import box, local_shape, place
from scalewright.spec.question import Question
from scalewright.spec.run import RunSpec
from worlds import one_rank, run_world

POWER = {"powersgd": {"rank": 2}}
RATE = 0.1
SGD = {"name": "sgd", "lr": RATE, "weight_decay": 0.0, "clip_norm": 1.0}
STEPS = 4
# A master that is an ulp off may be published as the next bf16 number, and later gradients are of other weights: seen
# from the third step on (4e-5 of a norm). Two steps have the first one's error in them.
IN_BF16 = 2
REGION = tuple[slice, ...]


class SmallBuckets(GradientBuckets):
    """Buckets of 4 KB: the tiny model has a dozen, so that one's messages are beside another's."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, bucket_bytes=4096, **keywords)


def train_compressed(mesh: Mesh, layout: Layout, data: dict[str, Any]) -> dict[str, Any]:
    parallelize.GradientBuckets = SmallBuckets  # type: ignore[misc]
    return train(build(mesh, data), IN_BF16 if layout.precision == "bf16" else STEPS)


# -- one process that does the same -----------------------------------------------------------------


class Simulated:
    """n replicas one after the other, on one device; sums of tensors part by part, as tp ranks hold them."""

    def __init__(self, data: dict[str, Any], compress: Any) -> None:
        layout = Layout.parse(data["layout"])
        self.replicas, self.compress = layout.dp, read_compress(compress)
        precision = {"precision": layout.precision, "global_batch": 8, "micro_batch": layout.micro_batch}
        self.built = build(one_rank()[0], {**data, "layout": {"devices": 1, **precision}, "train": {"steps": 1}})
        self.regions: dict[str, list[tuple[tuple[int, ...], REGION, bool]]] = {}
        grid = make_grid(layout, 2)
        for placement in place(ModelSpec.parse(data["model"]), layout):
            coords = {grid.coords(rank)["tp"]: grid.coords(rank) for rank in reversed(range(grid.world))}
            boxes = {box(placement, coords[tp], grid.size_of): coords[tp] for tp in coords}
            for (offsets, sizes), where in boxes.items():
                shape = local_shape(placement, where, grid.size_of)
                partial = bool(placement.grad_sum)
                shrinks = factors(shape, rank_of(self.compress), stacked=False, partial=partial)[0] > 0
                region = tuple(slice(o, o + n) for o, n in zip(offsets, sizes, strict=True))
                self.regions.setdefault(placement.tensor.name, []).append((offsets, region, shrinks))
        self.errors: dict[Any, list[Tensor]] = {}
        self.q: dict[Any, Tensor] = {}

    def steps(self, count: int) -> dict[str, Any]:
        """Losses and norms, and the weights at the end, as `layout_steps.train` gives them."""
        parallel = self.built.network.parallel
        held, reports = parallel.weights, []
        for step in range(count):
            shares = [
                rank_micros(step, rank, self.replicas, self.built.run.layout.micro_batch)
                for rank in range(self.replicas)
            ]
            tokens = sum(micro.targets.numel() for micros in shares for micro in micros)
            loss, gradients = 0.0, []
            for micros in shares:
                loss += parallel.executor.train(micros, self.built.loss, torch.tensor(float(tokens)))[0].item()
                gradients.append([gradient.clone() for gradient in held.take_gradients()])
            summed = [
                self.sum_of(weight.name, [replica[index] for replica in gradients], step)
                for index, weight in enumerate(held.trained())
            ]
            norm = torch.stack([g.double().square().sum() for g in summed]).sum().sqrt().item()
            with torch.no_grad():
                for weight, gradient in zip(held.trained(), summed, strict=True):
                    weight.master -= RATE * min(1.0, 1.0 / (norm + 1e-6)) * gradient
            held.publish()
            reports.append([loss, norm])
        return {"steps": reports, "weights": {weight.name: weight.master.detach() for weight in held}}

    def sum_of(self, name: str, gradients: list[Tensor], step: int) -> Tensor:
        out = torch.zeros_like(gradients[0])
        for offsets, region, shrinks in self.regions[name]:
            parts = [gradient[region] for gradient in gradients]
            if isinstance(self.compress, str):
                rounded = torch.stack([narrow(part, self.compress) for part in parts])
                out[region] = narrow(rounded.sum(0), self.compress)
            elif shrinks and step >= self.compress.powersgd.start_after:
                out[region] = self.low_rank((name, offsets), parts)
            else:
                out[region] = torch.stack(parts).sum(0)
        return out

    def low_rank(self, key: tuple[str, tuple[int, ...]], parts: list[Tensor]) -> Tensor:
        """Algorithms 1 and 2, with torch's QR: another basis of the same columns."""
        errors = self.errors.setdefault(key, [torch.zeros_like(part) for part in parts])
        if key not in self.q:
            self.q[key] = first_q(*key, (1, parts[0].shape[1], rank_of(self.compress)))[0]
        m = [part + error for part, error in zip(parts, errors, strict=True)]
        p = torch.linalg.qr(torch.stack([matrix @ self.q[key] for matrix in m]).sum(0)).Q
        self.errors[key] = [matrix - p @ (p.T @ matrix) for matrix in m]
        self.q[key] = torch.stack([matrix.T @ p for matrix in m]).sum(0)
        return p @ self.q[key].T


def narrow(x: Tensor, kind: str) -> Tensor:
    """fp32 rounded to 8 bits, or to 11 of numbers that aren't far below the largest."""
    if kind == "bf16":
        return x.bfloat16().float()
    scale = 2.0 ** (14 - x.abs().max().log2().floor().item())
    return (x * scale).half().float() / scale


DP2 = {"devices": 2, "zero_stage": 0, "micro_batch": 4}
CASES = [
    pytest.param(DP2, POWER, id="powersgd-dp2"),
    pytest.param({**DP2, "devices": 4, "micro_batch": 2}, POWER, id="powersgd-dp4", marks=pytest.mark.slow),
    pytest.param({**DP2, "micro_batch": 2}, POWER, id="powersgd-accumulated"),
    pytest.param({**DP2, "precision": "bf16"}, POWER, id="powersgd-bf16", marks=pytest.mark.slow),
    pytest.param(DP2, {"powersgd": {"rank": 3, "start_after": 2}}, id="powersgd-from-step-3", marks=pytest.mark.slow),
    pytest.param({**DP2, "devices": 4, "tp": 2}, POWER, id="powersgd-dp2-tp2"),
    pytest.param(
        {**DP2, "devices": 4, "pp": 2, "micro_batch": 2}, POWER, id="powersgd-dp2-pp2", marks=pytest.mark.slow
    ),
    pytest.param({**DP2, "devices": 4, "pp": 2, "micro_batch": 2, "schedule": "zb-h1"}, POWER, id="powersgd-zb-h1"),
    pytest.param(DP2, "bf16", id="bf16-dp2"),
    # with sp each tp rank rounds its part of a norm's gradient, and one device has no such parts
    pytest.param({**DP2, "devices": 4, "tp": 2, "sp": False}, "bf16", id="bf16-dp2-tp2", marks=pytest.mark.slow),
    pytest.param({**DP2, "devices": 4, "micro_batch": 2}, "fp16", id="fp16-dp4", marks=pytest.mark.slow),
    pytest.param({**DP2, "devices": 4, "pp": 2, "micro_batch": 2}, "fp16", id="fp16-dp2-pp2"),
]


@pytest.mark.parametrize(("layout", "compress"), CASES)
def test_a_layout_is_one_process_that_does_the_same(layout: dict[str, Any], compress: Any) -> None:
    """Losses, norms and, under SGD, weights: sums in another order, as of every layout."""
    keys = {"global_batch": 8, "precision": "fp32", **layout}
    data = run_of(layout=keys, optimizer=SGD, train={"compress": compress})
    steps = IN_BF16 if keys["precision"] == "bf16" else STEPS
    wanted = Simulated(data, compress).steps(steps)
    ranks = run_world(train_compressed, keys, data)
    for rank in ranks:
        assert_steps(rank["steps"], wanted["steps"], 1e-5)
    # A gradient between two 16-bit numbers falls to either side: few of a tensor's do
    assert_weights(ranks, wanted["weights"], 1e-5, of_norm=isinstance(compress, str))
    plain = Simulated(data, {"powersgd": {"start_after": STEPS}}).steps(steps)
    assert wanted["steps"] != plain["steps"]  # it is another run than without


def test_gram_schmidt_gives_an_orthonormal_basis_and_zeros_for_what_is_none() -> None:
    generator = torch.Generator().manual_seed(0)
    p = torch.randn(3, 40, 4, generator=generator) * torch.tensor([1e-6, 1.0, 1e4, 1e-12])
    p[..., 1] = p[..., 0] * 5 + 1e-4 * p[..., 1]  # nearly along the first
    q = orthogonalize(p.clone())
    torch.testing.assert_close(q.mT @ q, torch.eye(4).expand(3, 4, 4), rtol=0, atol=1e-6)
    dependent = torch.cat([p[..., :2], p[..., :1] - p[..., 1:2], p[..., 3:]], -1)
    dependent[..., 3] = 0
    q = orthogonalize(dependent)
    assert (q[..., 2:] == 0).all()
    torch.testing.assert_close(q[..., :2].mT @ q[..., :2], torch.eye(2).expand(3, 2, 2), rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", [1e-30, 1e-9, 1.0, 1e30])
def test_fp16_can_not_overflow_and_keeps_what_is_not_finite(size: float) -> None:
    half = HalfBuckets(torch.float16)
    x = torch.randn(4, 10, generator=torch.Generator().manual_seed(0)) * size
    back = half.unpack(half.pack(x))
    # 2^-12 of a number, or what is 2^-29 of the largest
    assert ((back - x).abs() <= 2**-11 * x.abs() + 2.0**-38 * x.abs().max()).all()
    assert torch.equal(half.unpack(half.pack(torch.zeros(2, 4))), torch.zeros(2, 4))
    for bad in (float("inf"), float("nan")):
        x[2, 3] = bad
        assert not torch.isfinite(half.unpack(half.pack(x))[2, 3])


# -- skipped steps, saves ---------------------------------------------------------------------------


def skip_one(mesh: Mesh, layout: Layout, data: dict[str, Any]) -> list[bool]:
    """Whether error and Q change in a step, in one that is skipped, and in one after it."""
    built = build(mesh, data)
    compression, poison = built.network.parallel.compression, [False]
    assert compression is not None
    inner = built.loss

    def loss(logits: Tensor, targets: Tensor) -> Any:
        total, extra = inner(logits, targets)
        return total * (float("nan") if poison[0] else 1.0), extra

    built.loss = loss
    changed = []
    for bad in (False, True, False):
        poison[0] = bad
        before = {name: tensor.clone() for name, tensor in compression.state().items()}
        train(built, 1)
        assert all(torch.isfinite(tensor).all() for tensor in compression.state().values())
        changed.append(not all(torch.equal(t, before[name]) for name, t in compression.state().items()))
    assert compression.steps == 3
    return changed


def test_a_skipped_step_leaves_the_error_as_it_was() -> None:
    keys = {**DP2, "global_batch": 8, "precision": "fp32"}
    data = run_of(layout=keys, optimizer=SGD, train={"compress": POWER})
    assert run_world(skip_one, keys, data) == [[True, False, True]] * 2


SAVES = {"checkpoint": {"at_end": True}, "train": {"steps": 4, "compress": POWER}}


def test_resume_is_bitwise_and_another_layout_begins_without_an_error(tmp_path: Path) -> None:
    data = run_data(tmp_path, **merge({"layout": {**DP2, "global_batch": 8}}, SAVES))
    straight = run({**data, "out_dir": str(tmp_path / "straight")}).out_dir
    run(data, steps=2)
    reader = CheckpointReader(find_checkpoint(data["out_dir"]))
    errors = [reader.read_of_rank("compress/error/layers.0.mlp.up.weight", rank) for rank in range(2)]
    assert all(error is not None and error.any() for error in errors)
    assert not torch.equal(errors[0], errors[1])  # type: ignore[arg-type]
    assert run(data).resumed_from == 2
    assert bits(data["out_dir"]) == bits(straight)
    mine, wanted = (weights(out, optimizer=True) for out in (data["out_dir"], straight))
    assert mine.keys() == wanted.keys()
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in mine.items())
    other = {**data, "out_dir": str(tmp_path / "other")}
    run(other, steps=2)
    moved = {**data["layout"], "devices": 4, "micro_batch": 2}
    assert run({**other, "layout": moved}).resumed_from == 2
    messages = [event["message"] for event in events(other["out_dir"], "fault")]
    assert any("error is of another layout (layout.devices changed)" in message for message in messages)
    assert worst(rows(other["out_dir"])[:3], rows(straight)[:3], "loss") < 1e-5  # no error is missed yet


# -- bytes ------------------------------------------------------------------------------------------


MODEL = {
    "vocab_size": 37,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
COUNTED: list[Any] = [
    ({"devices": 2, "zero_stage": 0}, POWER),
    pytest.param({"devices": 3, "zero_stage": 0}, "bf16", marks=pytest.mark.slow),
    pytest.param({"devices": 4, "tp": 2, "zero_stage": 0}, POWER, marks=pytest.mark.slow),
    pytest.param({"devices": 4, "pp": 2, "zero_stage": 0, "global_batch": 4}, "fp16", marks=pytest.mark.slow),
    ({"devices": 4, "pp": 2, "zero_stage": 0, "global_batch": 4}, POWER),
]


def send(mesh: Mesh, layout: Layout, data: dict[str, Any]) -> dict[str, list[int]]:
    """{"axis kind": [calls, bytes]} of this rank's second step."""
    from scalewright.dry_run.rehearse import Player
    from scalewright.dry_run.watch import Watch
    from scalewright.parallel.mesh import make_mesh
    from scalewright.train.network import build_network

    spec = RunSpec.parse(data)
    mesh = make_mesh(make_grid(layout, 2), mesh.rank, mesh.device, share=False)
    network = build_network(spec, mesh, bf16=False)
    for weight in network.parallel.weights:
        torch.nn.init.zeros_(weight.master)
    with Watch(mesh) as watch:
        player = Player(spec, network.parallel, mesh, 8, watch)
        player.warm_up()
        watch.clear()
        player.step(player.micros(), torch.tensor(1))
    return {f"{c.axis} {c.kind}": [c.count, c.bytes] for c in watch.collectives if c.axis != "control"}


@pytest.mark.parametrize(("layout", "compress"), COUNTED, ids=str)
def test_what_is_sent_is_counted_by_spec_dry_run_and_planner(layout: dict[str, Any], compress: Any) -> None:
    keys = {"global_batch": 12, "precision": "fp32", **layout}
    data = {
        **run_of(layout=keys, train={"compress": compress, "steps": 1}),
        "model": MODEL,
        "data": {"train": "nowhere", "seq_len": 8},
    }
    chosen, spec = read_compress(compress), RunSpec.parse(data)
    model, parsed = ModelSpec.parse(MODEL), spec.layout
    seen = run_world(send, keys, data)
    played = dry_run(data)
    for rank, sent in enumerate(seen):
        table = step_traffic(model, parsed, 8, rank, bf16=False, compress=chosen)
        assert sent == {f"{axis} {kind}": [t.count, t.bytes] for (axis, kind), t in table.items()}
        group = next(group for group in played.groups if rank in group.ranks)
        counted = {f"{axis} {kind}": list(n) for (axis, kind, _), n in group.step.traffic.items() if n[0]}
        assert {key: n for key, n in counted.items() if "control" not in key} == sent
    cluster = load_cluster("dgx-h100")
    predicted = price(Question(spec, cluster))
    tables = [step_traffic(model, parsed, 8, rank, bf16=False, compress=chosen) for rank in range(len(seen))]
    most = max(sum(t.bytes for (axis, _), t in table.items() if axis == "dp_shard") for table in tables)
    # parts of a bucket are filled up to an even size: at most two numbers a rank, in either message
    slack = 8 * parsed.dp if isinstance(compress, str) else 1
    assert predicted.comm_bytes["dp"] == pytest.approx(most, abs=slack)
    plain = [step_traffic(model, parsed, 8, rank, bf16=False) for rank in range(len(seen))]
    saved = wire_bytes(tables[0], "dp_shard") / wire_bytes(plain[0], "dp_shard")
    assert saved == pytest.approx(0.5, rel=0.01) if isinstance(compress, str) else saved < 0.4
    if isinstance(chosen, LowRank):
        errors = max(group.dump()["memory_bytes"]["buffers"] for group in played.groups)
        numbers, columns = compressed(model, parsed, rank_of(chosen))
        assert errors >= kept_bytes(numbers, columns)
        memory = predicted.memory_gib["buffers"] * GIB
        without = predict(model, cluster, parsed, 8).memory_gib["buffers"] * GIB
        assert memory - without == pytest.approx(kept_bytes(numbers, columns), rel=1e-9)


def compressed(model: ModelSpec, layout: Layout, rank: int) -> tuple[int, int]:
    """Numbers of the fullest pipeline rank's matrices that are compressed, and of their Qs."""
    grid, totals = make_grid(layout, 2), []
    for pp in range(layout.pp):
        coords = {**grid.coords(0), "pp": pp}
        shapes = [
            (local_shape(placement, coords, grid.size_of), placement)
            for placement in place(model, layout)
            if pp * layout.virtual_stages <= placement.stages[0] < (pp + 1) * layout.virtual_stages
        ]
        sizes = [
            (torch.Size(shape).numel(), factors(shape, rank, stacked=False, partial=bool(placement.grad_sum))[1])
            for shape, placement in shapes
        ]
        totals.append((sum(n for n, q in sizes if q), sum(q for _, q in sizes)))
    return max(totals)


def test_parity_refuses_what_one_device_does_not_send() -> None:
    run = RunSpec.parse(run_of(layout={"devices": 2, "zero_stage": 0}, train={"compress": "bf16"}))
    with pytest.raises(UserError, match=r"bf16 changes what replicas send .*train.compress=none"):
        set_up(run, device="cpu", steps=2)
