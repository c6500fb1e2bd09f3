"""A step with a number that isn't finite changes nothing, on any layout and with any optimizer; a run of them
stops, names the place, and leaves a checkpoint to go on from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import guard_parts
from forked import fork_cli
from loss_function import cross_entropy
from parallel import small_steps
from runs import events, merge, rows, run, run_data, weights, write_run
from scalewright.checkpoint.format import read_state
from scalewright.checkpoint.read import find_checkpoint
from scalewright.checkpoint.verify import Retention, commit_text, superfluous
from scalewright.parallel.mesh import Mesh
from scalewright.spec.errors import RunError, UserError
from scalewright.spec.layout import Layout
from scalewright.spec.run import RunSpec
from scalewright.train.columns import SKIPPED, STREAK
from scalewright.train.optimizer import Lion
from scalewright.train.step import KeptBuffers, Step
from worlds import one_rank, plain, run_world

OPTIMIZERS = {
    "fused adamw": lambda ps: torch.optim.AdamW(ps, lr=0.01, fused=True),
    "fused sgd": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, fused=True),
    "lion": lambda ps: Lion(ps, lr=0.01, weight_decay=0.1),
    "foreach adamw": lambda ps: guard_parts.plain_adam(ps, 0.01),
}


def states(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Every number of an optimizer's state; None where it has none yet, or zeros only."""
    found = []
    for group in optimizer.param_groups:
        for p in group["params"]:
            for key, value in sorted(optimizer.state.get(p, {}).items()):
                if value is not None and bool(torch.as_tensor(value).any()):
                    found.append((key, torch.as_tensor(value).clone()))
    return found


def same(mine: list[Any], other: list[Any]) -> bool:
    return [k for k, _ in mine] == [k for k, _ in other] and all(
        torch.equal(a, b) for (_, a), (_, b) in zip(mine, other, strict=True)
    )


# Not to look is how it goes on a GPU: the decision stays on the device, and the optimizer obeys a flag.
@pytest.mark.parametrize(
    ("name", "look"), [(name, look) for name in OPTIMIZERS for look in (True, False) if look or name != "foreach adamw"]
)
@pytest.mark.parametrize("bad", [{0}, {1, 2}], ids=["the first", "two in a row"])
def test_a_skipped_update_leaves_everything_as_it_was(name, look, bad):
    """Weights, moments and step counts are those before the step, to the bit; what follows is as if it had
    never been."""
    mesh, layout = one_rank()

    def train(numbers: list[int], bad: set[int]) -> tuple[list[torch.Tensor], list[Any]]:
        parallel = small_steps.build(mesh, layout)
        masters = [w.master for w in parallel.weights]
        optimizer = OPTIMIZERS[name](masters)
        poison = [1.0]
        step = Step(parallel, optimizer, lambda lo, t: cross_entropy(lo * poison[0], t, 0.0), mesh, 1.0, look=look)
        for number in numbers:
            poison[0] = float("nan") if number in bad else 1.0
            before, held = [m.detach().clone() for m in masters], states(optimizer)
            report = step(*small_steps.micros(number, range(small_steps.ROWS), 4))
            assert report[SKIPPED].item() == (number in bad)
            if number in bad:
                assert all(torch.equal(a, b) for a, b in zip(before, masters, strict=True))
                assert same(held, states(optimizer))
        return [m.detach() for m in masters], states(optimizer)

    mine, held = train([0, 1, 2, 3], bad)
    control, expected = train([number for number in range(4) if number not in bad], set())
    assert all(torch.equal(a, b) for a, b in zip(mine, control, strict=True))
    assert same(held, expected)


def poisoned(mesh: Mesh, layout: Layout, place: str) -> dict[str, Any]:
    """Three steps of SGD, with a NaN in the second: what changed in it, the reports, and the weights."""
    parallel = small_steps.build(mesh, layout)
    trained = parallel.weights.trained()
    optimizer = torch.optim.SGD([w.master for w in trained], lr=0.5, momentum=0.9)
    poison = [False]

    def loss(logits: Any, targets: Any) -> Any:
        total, extra = cross_entropy_of(mesh, logits, targets)
        return (total * float("nan") if poison[0] and place == "loss" else total), extra

    step = Step(parallel, optimizer, loss, mesh, 1.0)
    changed, reports = False, []
    for number in range(3):
        poison[0] = number == 1
        held = [w.master.detach().clone() for w in trained]
        moments = states(optimizer)
        victim = trained[-1]
        mine = mesh.rank == mesh.world - 1 and victim.master.numel()
        if poison[0] and mine and place == "gradient":
            take = parallel.weights.take_gradients

            def spoil(take: Any = take) -> Any:
                gradients = take()
                gradients[-1].view(-1)[0] = float("inf")
                return gradients

            parallel.weights.take_gradients = spoil  # type: ignore[method-assign]
        if poison[0] and mine and place == "weight":
            with torch.no_grad():
                victim.master.view(-1)[0] = float("nan")
            parallel.weights.publish()
        report = step(*small_steps.micros(number, small_steps.own_rows(mesh), layout.micro_batch))
        reports.append([report[SKIPPED].item(), report[STREAK].item(), *report[:3].nan_to_num(-1).tolist()])
        if poison[0]:
            if mine and place == "weight":
                with torch.no_grad():
                    victim.master.copy_(held[-1])
                parallel.weights.publish()
            if place == "gradient" and mine:
                parallel.weights.take_gradients = take  # type: ignore[method-assign]
            same_weights = all(torch.equal(a, w.master) for a, w in zip(held, trained, strict=True))
            changed = not (same_weights and same(moments, states(optimizer)))
    return {
        "changed": changed,
        "steps": reports,
        "weights": {w.name: [w.box, plain(w.true(w.master))] for w in parallel.weights},
    }


def cross_entropy_of(mesh: Mesh, logits: Any, targets: Any) -> Any:
    """The loss of a layout: over this rank's columns under tp."""
    from runs import MODEL
    from scalewright.train.loss import build_loss

    return build_loss("cross_entropy", 0.0, lambda _: None, mesh, MODEL["vocab_size"])(logits, targets)


@pytest.fixture(scope="module")
def control():
    mesh, layout = one_rank()
    return poisoned(mesh, layout.replace(micro_batch=4, global_batch=8), "loss")


LAYOUTS = {
    "zero 0": small_steps.zero(0),
    "zero 1": small_steps.zero(1),
    "zero 2": small_steps.zero(2),
    "zero 3": small_steps.zero(3),
    "offload": small_steps.zero(3, offload="optimizer"),
    "tp": small_steps.zero(0, tp=2),
    "pipeline": small_steps.zero(0, pp=2, schedule="zb-h1"),
}


@pytest.mark.parametrize(
    ("layout", "place"),
    [
        ("zero 0", "loss"),
        ("zero 3", "weight"),
        ("pipeline", "gradient"),
        ("tp", "weight"),
        ("offload", "gradient"),
        *(
            pytest.param(layout, place, marks=pytest.mark.slow)
            for layout in LAYOUTS
            for place in ("loss", "gradient", "weight")
        ),
    ],
)
def test_a_skipped_step_equals_one_devices(control, layout, place):
    """Wherever the NaN came from, every rank leaves the update out, and the next step is one device's."""
    assert control["steps"][1][:2] == [1, 1]
    assert not control["changed"]
    for found in run_world(poisoned, LAYOUTS[layout], place):
        assert not found["changed"]
        assert [step[:2] for step in found["steps"]] == [[0, 0], [1, 1], [0, 0]]
        for at in (0, 2):
            assert found["steps"][at][2:] == pytest.approx(control["steps"][at][2:], rel=1e-5, abs=1e-7)
        for name, (where, values) in found["weights"].items():
            whole = torch.tensor(control["weights"][name][1])
            part = whole[tuple(slice(o, o + s) for o, s in zip(*where, strict=True))]
            mine = torch.tensor(values).reshape(where[1])
            torch.testing.assert_close(mine, part, rtol=0, atol=float(1e-5 * whole.abs().max()))


EXPLODES = {"optimizer": {"lr": 1e6, "clip_norm": 0.0}, "checkpoint": {"every": 1, "at_end": True}}


def test_a_run_that_diverges_stops_and_keeps_what_is_good(tmp_path):
    """Exit code 1, one line with step, rank and place; nothing non-finite is shown as a number; the finite
    checkpoint outlives newer ones that aren't, and a resume takes it. Which number overflows first, and
    whether at step 2 or 3, depends on the order in which a processor's kernels sum up."""
    data = run_data(tmp_path, **merge(EXPLODES, {"layout": {"micro_batch": 4}, "checkpoint": {"keep": 1}}))
    process = fork_cli(tmp_path, "train", str(write_run(tmp_path, data)))
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    first = re.search(r"step (\d): .*grad_norm nan \(first on rank 0\); its update was left out", errors)
    assert first is not None
    bad = int(first[1])
    assert f"error: stopped at step {bad + 2}: " in errors
    assert re.search(r"'layers\.\d.*' \((forward|backward)\) on rank 0", errors)
    assert "Traceback" not in errors
    out = tmp_path / "out"
    assert [row["grad_norm"] is None for row in rows(out)] == [False] * (bad - 1) + [True] * 3
    assert [row.get("skipped", False) for row in rows(out)] == [False] * (bad - 1) + [True] * 3
    found = events(out, "nonfinite")
    assert [(e["step"], e["action"], e["rank"]) for e in found] == [
        (bad, "skipped", 0),
        (bad + 1, "skipped", 0),
        (bad + 2, "stopped", 0),
    ]
    assert found[0]["values"]["grad_norm"] == "nan"
    assert not events(out, "finish")
    assert sorted(path.name for path in (out / "checkpoints").iterdir()) == [
        f"step-{number:08d}" for number in (bad - 1, bad + 1)
    ]
    assert (out / "report.html").exists()
    listed = fork_cli(tmp_path, "checkpoint", "ls", str(out))
    text, _ = listed.communicate(timeout=60)
    assert text.count("not finite") == 1
    again = merge(data, {"optimizer": {"lr": 1e-3}, "train": {"steps": bad + 1}})
    with pytest.raises(RunError, match=f"ended at step {bad + 1}"):  # finite, but far too large
        run(again)
    assert events(out, "resume")[0]["step"] == bad - 1
    assert any(f"step-{bad + 1:08d}: its numbers aren't finite" in e.get("message", "") for e in events(out))


def test_which_checkpoints_are_kept(tmp_path):
    """The newest finite ones, and the newest of all; a save without the key counts as finite."""
    folders = []
    for number, finite in enumerate([True, None, True, True, False, False]):
        folder = tmp_path / f"step-{number:08d}"
        folder.mkdir()
        text = "{}" if finite is None else f'{{"finite": {str(finite).lower()}}}'
        (folder / "state.json").write_text(text)
        (folder / "manifest.json").write_text("{}")
        (folder / "COMMIT").write_text(commit_text(folder, number))
        folders.insert(0, folder)
    kept = [f.name for f in folders if f not in superfluous(folders, Retention(3))]
    assert kept == ["step-00000005", "step-00000003", "step-00000002", "step-00000001"]


MOODY = {"data": {"python": "parts:Counting", "seq_len": 16}, "checkpoint": {"at_end": True}}


@pytest.mark.parametrize(
    ("backward", "layout", "says"),
    [
        (False, {"micro_batch": 4}, "the output of 'blocks.1.norm' (forward) on rank 0"),
        (False, {"devices": 2, "zero_stage": 3, "micro_batch": 2}, "'blocks.1.norm' (forward) on rank 1"),
        (True, {"devices": 2, "zero_stage": 0, "micro_batch": 2}, "'blocks.1' (backward) on rank 1"),
    ],
)
def test_the_first_bad_module_is_named(tmp_path, backward, layout, says):
    """Where the number went bad, not where it was noticed; and on whose rank."""
    model = {"python": "guard_parts:moody", "bad": list(range(67)), "backward": backward}
    if "devices" in layout:
        model["rank"] = 1
    with pytest.raises(RunError) as caught:
        run(run_data(tmp_path, **merge(MOODY, {"model": model, "layout": layout})))
    assert "stopped at step 3" in str(caught.value)
    assert says in str(caught.value)
    assert [event.get("again") for event in events(tmp_path / "out", "nonfinite")] == [True, True, None]


@pytest.mark.parametrize("layout", [{"micro_batch": 4}, {"devices": 2, "zero_stage": 3, "micro_batch": 4}])
def test_a_bad_weight_is_named(tmp_path, layout):
    """No module is looked for; the rank is that of the shard. What is saved is checked, too."""
    model = {"python": "guard_parts:with_a_bad_weight"}
    changes = merge(MOODY, {"model": model, "layout": layout, "train": {"guard": {"nonfinite": "stop"}}})
    rank = layout.get("devices", 1) - 1
    with pytest.raises(RunError, match=rf"stopped at step 1: .* in the weight 'blocks.1.up.weight' on rank {rank}"):
        run(run_data(tmp_path, **changes))
    state = read_state(find_checkpoint(tmp_path / "out"))
    assert (state["finite"], state["nonfinite"]) == (False, ["blocks.1.up.weight"])


def test_one_bad_batch_is_passed_over(tmp_path):
    """Two steps are left out, and the run finishes; a run whose last step was bad has not. Each is run again at once,
    and its numbers are good then: every second call is one of those."""
    spec = merge(MOODY, {"model": {"python": "guard_parts:moody"}, "layout": {"micro_batch": 8}})
    spec = merge(spec, {"loss": {"python": "guard_parts:sometimes", "bad": [3, 5]}, "train": {"steps": 6}})
    guard_parts.sometimes.calls = 0
    out = run(run_data(tmp_path, **spec)).out_dir
    assert [row.get("skipped", False) for row in rows(out)] == [False, False, True, True, False, False]
    assert [(e["step"], e["again"]) for e in events(out, "nonfinite")] == [(3, False), (4, False)]
    assert all("rank 0's device or memory is to be suspected" in e["message"] for e in events(out, "nonfinite"))
    assert all(torch.isfinite(tensor).all() for tensor in weights(out).values())
    guard_parts.sometimes.calls = 0
    last = merge(spec, {"loss": {"bad": [6]}, "out_dir": str(tmp_path / "last")})
    last["loss"] = {"python": "guard_parts:sometimes", "bad": [6]}
    with pytest.raises(RunError, match="ended at step 6 with loss nan"):
        run(run_data(tmp_path, **last))
    assert not events(tmp_path / "last", "finish")
    guard_parts.sometimes.calls = 0
    stop = merge(spec, {"out_dir": str(tmp_path / "stop"), "train": {"guard": {"nonfinite": "stop"}}})
    with pytest.raises(RunError, match="stopped at step 3"):
        run(run_data(tmp_path, **stop))


def test_what_a_module_counts_is_put_back():
    """A user's buffers after a skipped step are those before it."""
    model = guard_parts.moody()
    buffers = KeptBuffers(model)
    buffers.keep()
    model(torch.zeros(1, 4, dtype=torch.long))
    assert model.seen == 1
    buffers.put_back_unless(torch.tensor(True))
    assert model.seen == 1
    buffers.put_back_unless(torch.tensor(False))
    assert model.seen == 0
    assert not KeptBuffers(small_steps.build(*one_rank()).model).stages


def test_only_buffers_that_change_are_copied():
    """A mask's copy is made once; a running mean's is made anew, and is what a skipped step goes back to."""
    from scalewright.train.step import KeptBuffers

    model = torch.nn.BatchNorm1d(2)
    model.register_buffer("mask", torch.ones(512, 512))
    buffers = KeptBuffers(model)
    buffers.keep()
    first = {name: kept.copy for (_, name), kept in buffers.kept.items()}
    model(torch.randn(4, 2))
    buffers.put_back_unless(torch.tensor(True))
    mean = model.running_mean.clone()
    buffers.keep()
    second = {name: kept.copy for (_, name), kept in buffers.kept.items()}
    assert second["mask"] is first["mask"]
    assert torch.equal(second["running_mean"], mean)
    model(torch.randn(4, 2))
    buffers.put_back_unless(torch.tensor(False))
    assert torch.equal(model.running_mean, mean)
    assert model.num_batches_tracked == 1


def test_a_buffer_that_a_forward_replaces_is_put_back():
    """As in `self.mean = 0.9 * self.mean + 0.1 * x.mean()`: the module then has another tensor."""
    model = torch.nn.Module()
    model.register_buffer("mean", torch.ones(2))
    buffers = KeptBuffers(model)
    for keep, wanted in ((True, float("nan")), (False, 1.0)):
        model.mean = torch.ones(2)
        buffers.keep()
        model.mean = model.mean * float("nan")
        buffers.put_back_unless(torch.tensor(keep))
        assert torch.allclose(model.mean, torch.full((2,), wanted), equal_nan=True)
        assert model.state_dict()["mean"] is not None


@pytest.mark.parametrize("guard", [{"nonfinite": "ignore"}, {"stop_after": -1}, {"stopafter": 2}])
def test_the_keys_are_strict(guard):
    with pytest.raises(UserError):
        RunSpec.parse(run_data(Path(), train={"guard": guard}))
