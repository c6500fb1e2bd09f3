"""Any schedule gives the losses and gradients of one process, with the memory that the schedule promises."""

from __future__ import annotations

import os
import signal
import weakref
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from parallel.pipeline_cases import TOLERANCE, build, loss, micro_batches, run_cases, run_step, tiny
from parallel.spread import whole
from scalewright.parallel import pipeline as runtime
from scalewright.parallel.execute import ActionTimes
from scalewright.parallel.mesh import Mesh, make_mesh
from scalewright.spec.errors import RunError
from scalewright.spec.grid import make_grid
from scalewright.spec.layout import Layout
from scalewright.spec.schedule import Action, peak_activations, schedule
from worlds import CPU, plain, run_world


def one_step(mesh: Mesh, layout: Layout) -> tuple[Any, dict[str, Any]]:
    """Losses [2] of one step and the gradients by name, of the stage that this rank holds."""
    parallel = build(tiny(2), layout, mesh)
    losses = parallel.executor.train(micro_batches(tiny(2), 2), loss, torch.tensor(40.0))
    return plain(losses), {w.name: plain(w.gradient) for w in parallel.weights if w.gradient is not None}


def test_two_ranks_give_the_losses_and_gradients_of_the_whole_model() -> None:
    """The same sums in the same order; only 1 / 40 is multiplied by here, and divided by there."""
    first, last = run_world(one_step, {"devices": 2, "pp": 2, "micro_batch": 2, "global_batch": 4})
    model, losses = whole(tiny(2)), torch.zeros(2)
    for micro in micro_batches(tiny(2), 2):
        token_loss, z_loss = loss(model(micro.tokens), micro.targets)
        ((token_loss + z_loss) / 40.0).backward()  # type: ignore[no-untyped-call]
        losses += torch.stack([token_loss.detach(), z_loss.detach()]) / 40.0
    torch.testing.assert_close(torch.tensor(first[0]) + torch.tensor(last[0]), losses)
    gradients = first[1] | last[1]
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(torch.tensor(gradients.pop(name)), parameter.grad)
    assert not gradients


# -- every schedule ------------------------------------------------------------------------------------

ONE = ["gpipe", "1f1b", "zb-h1"]
TWO = ["interleaved", "zb-interleaved", "zbv", "dualpipev"]
KINDS = [(kind, 1) for kind in ONE] + [(kind, 2) for kind in TWO]


def _case(kind: str, chunks: int, micros: int, model: tuple[str, int], **more: Any) -> dict[str, Any]:
    layout = {"schedule": kind, "virtual_stages": chunks, "global_batch": 2 * micros}
    return {"layout": {**layout, **more.pop("layout", {})}, "model": model, **more}


def _check(ranks: int, cases: list[dict[str, Any]], **layout: Any) -> None:
    base = {"devices": ranks, "pp": ranks, "micro_batch": 2, "global_batch": 2 * ranks, **layout}
    deviations = run_world(run_cases, base, cases)
    for case, *by_rank in zip(cases, *deviations, strict=True):
        for quantity in by_rank[0]:
            worst = max(rank[quantity] for rank in by_rank)
            assert worst < TOLERANCE, f"{case}: {quantity} deviates by {worst}"


def test_two_ranks_every_schedule() -> None:
    _check(2, [_case(kind, chunks, 5, ("llama", 4)) for kind, chunks in KINDS])


def test_two_ranks_tied_packed_with_auxiliary_losses() -> None:
    """Everything at once: a tied head, biases, packed documents, a loss on every block but the first."""
    more: dict[str, Any] = {"documents": True, "auxiliary": [1, 2, 3]}
    _check(2, [_case(kind, chunks, 4, ("gpt2", 4), **more) for kind, chunks in KINDS])


def test_four_ranks() -> None:
    cases = [_case(kind, 1, 6, ("llama", 4)) for kind in ONE]
    cases += [_case(kind, 2, 8 if kind == "dualpipev" else 5, ("llama", 8), tied=True) for kind in TWO]
    _check(4, cases)


def test_uneven_stages() -> None:
    cases = [
        _case("1f1b", 1, 3, ("gpt2", 6), layout={"stage_layers": [1, 5]}),
        _case("zb-h1", 1, 3, ("gpt2", 6), layout={"stage_layers": [4, 2]}),
        _case("zbv", 2, 3, ("gpt2", 7), layout={"stage_layers": [3, 1, 2, 1]}, auxiliary=[3]),
        _case("interleaved", 2, 3, ("llama", 7), layout={"stage_layers": [1, 2, 1, 3]}),
        _case("dualpipev", 2, 4, ("llama", 5)),  # balanced by cost
    ]
    _check(2, cases)


def test_pairs_that_a_schedule_would_compute_together() -> None:
    """Their inputs are both there first; done one after the other they give the same numbers."""
    _check(2, [_case("dualpipev", 2, micros, ("llama", 4), pairs=True) for micros in (4, 6)])


def test_few_micro_batches() -> None:
    cases = [_case(kind, chunks, m, ("llama", 4)) for kind, chunks in KINDS[:-1] for m in (1, 2)]
    _check(2, cases)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_schedule_and_number_of_micro_batches(ranks: int) -> None:
    cases = []
    for kind, chunks in [*KINDS, ("interleaved", 3), ("zb-interleaved", 3)]:
        for micros in (1, 2, 3, 4, 5, 7, 8, 9, 12):
            if kind != "dualpipev" or micros >= 2 * ranks:
                cases.append(_case(kind, chunks, micros, ("llama", ranks * chunks)))
    _check(ranks, cases)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_every_schedule_with_everything(ranks: int) -> None:
    cases = []
    for kind, chunks in KINDS:
        layers = ranks * chunks
        more: dict[str, Any] = {"documents": True, "auxiliary": list(range(layers))}
        cases += [_case(kind, chunks, 2 * ranks + 1, (name, layers), **more) for name in ("llama", "gpt2")]
    _check(ranks, cases)


@pytest.mark.slow
def test_compiled_blocks() -> None:
    compiled: dict[str, Any] = {"compile_blocks": True, "backend": "aot_eager"}
    kinds = [("1f1b", 1), ("zb-h1", 1), ("interleaved", 2), ("zbv", 2)]
    _check(2, [_case(kind, chunks, 3, ("llama", 4), **compiled) for kind, chunks in kinds])


# -- memory ------------------------------------------------------------------------------------------


class _Marked(torch.autograd.Function):
    """The identity; what it saves lives as long as its graph."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, live: Counter[str]) -> Tensor:
        mark = torch.zeros(1)
        live["now"] += 1
        live["peak"] = max(live["peak"], live["now"])
        weakref.finalize(mark.untyped_storage(), lambda: live.subtract(["now"]))
        ctx.save_for_backward(mark)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        return grad_outputs[0], None


def _mark(x: Tensor, live: Counter[str]) -> Tensor:
    """At a stage's input, below all else, so that it is held as long as anything of the graph."""
    out: Tensor = _Marked.apply(x, live)  # type: ignore[no-untyped-call]
    return out


def count_live(mesh: Mesh, layout: Layout, kinds: list[tuple[str, int]]) -> list[list[int]]:
    """For every kind: the most (stage, micro-batch) alive at once here, and those left at the end."""
    counts = []
    for kind, chunks in kinds:
        kind_layout = Layout.parse({**layout.dump(), "schedule": kind, "virtual_stages": chunks})
        kind_mesh = make_mesh(make_grid(kind_layout), mesh.rank, CPU)
        spec = tiny(layout.pp * chunks)
        parallel = build(spec, kind_layout, kind_mesh)
        live: Counter[str] = Counter()
        for cut in parallel.model.stages.values():  # type: ignore[union-attr,operator]
            block = next(iter(cut.layers.values()))
            block.register_forward_pre_hook(lambda _, args, live=live: (_mark(args[0], live), *args[1:]))
        parallel.executor.train(micro_batches(spec, kind_layout.accumulation), loss, torch.tensor(100.0))
        counts.append([live["peak"], live["now"]])
    return counts


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_live_activations_are_those_of_the_schedule(ranks: int) -> None:
    kinds, micros = KINDS, 2 * ranks + 1
    layout = {"devices": ranks, "pp": ranks, "micro_batch": 2, "global_batch": 2 * micros}
    answers = run_world(count_live, layout, kinds)
    for (kind, chunks), *by_rank in zip(kinds, *answers, strict=True):
        expected = peak_activations(schedule(kind, ranks, chunks, micros))
        assert [[int(peak), 0] for peak in expected] == by_rank, kind


class _Outputs(runtime.Recorder):
    """A recorder that checks, when a backward begins, whether its stage's output is still held."""

    def __init__(self) -> None:
        self.alive: dict[tuple[int, int], Any] = {}
        self.held: list[bool] = []

    def before(self, action: Action) -> None:
        if action.kind in ("backward", "backward_input") and (action.stage, action.micro) in self.alive:
            self.held.append(self.alive[action.stage, action.micro]() is not None)


def outputs_alive(mesh: Mesh, layout: Layout) -> list[bool]:
    """For every backward of a stage that sends: is the memory of what it sent still held?"""
    spec = tiny(4)
    parallel = build(spec, layout, mesh)
    assert isinstance(parallel.executor, runtime.Pipeline)
    outputs, forwards = _Outputs(), Counter[int]()
    for stage, cut in parallel.executor.cuts.items():

        def note(_module: Any, _inputs: Any, out: Tensor, stage: int = stage) -> None:
            outputs.alive[stage, forwards[stage]] = weakref.ref(out.untyped_storage())
            forwards[stage] += 1

        if stage < 3:
            cut.register_forward_hook(note)
    parallel.executor.recorder = outputs
    parallel.executor.train(micro_batches(spec, layout.accumulation), loss, torch.tensor(100.0))
    return outputs.held


def test_outputs_are_freed_when_they_have_arrived() -> None:
    layout = {"devices": 4, "pp": 4, "schedule": "zb-h1", "micro_batch": 2, "global_batch": 12}
    *senders, last = run_world(outputs_alive, layout)
    assert senders == [[False] * 6] * 3
    assert last == []


# -- the actions, and their record ---------------------------------------------------------------------


def record(mesh: Mesh, layout: Layout) -> dict[str, Any]:
    """A step's timeline."""
    times = ActionTimes(mesh)
    run_step(tiny(4), layout, mesh, times)
    return times.gather(step=7)


def test_the_timeline_is_the_schedule() -> None:
    layout = {"devices": 2, "pp": 2, "schedule": "zbv", "micro_batch": 2, "global_batch": 8}
    picture = run_world(record, layout)[0]
    plan = schedule("zbv", 2, 2, 4)
    expected = {"schedule": "zbv", "ranks": 2, "virtual_stages": 2, "micro_batches": 4, "step": 7}
    assert {key: picture[key] for key in expected} == expected
    assert picture["rank_of"] == list(plan.rank_of)
    ends: dict[tuple[Any, ...], float] = {}
    for actions, planned in zip(picture["actions"], plan.actions, strict=True):
        assert [(a["kind"], a["stage"], a["micro"]) for a in actions] == [a[:3] for a in planned]
        times = [moment for a in actions for moment in (a["start_s"], a["end_s"])]
        assert times == sorted(times), "one thing after the other"
        assert times[0] >= 0
        ends |= {(a["kind"], a["stage"], a["micro"]): a["end_s"] for a in actions}
    for (kind, stage, micro), end in ends.items():
        if kind == "receive_activation":
            assert end > ends["forward", stage - 1, micro], "nothing arrives before it was made"


class _Matmuls(TorchDispatchMode, runtime.Recorder):
    """A recorder that counts matrix products by kind of action."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.kind = ""

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: Any = None
    ) -> Any:
        self.counts[self.kind] += function.overloadpacket.__name__ in ("mm", "addmm", "bmm")
        return function(*arguments, **(keywords or {}))

    def before(self, action: Action) -> None:
        self.kind = action.kind
        self.__enter__()

    def after(self, action: Action) -> None:
        self.__exit__(None, None, None)


def count_matmuls(mesh: Mesh, layout: Layout) -> dict[str, int]:
    """A step's matrix products, by kind of action."""
    matmuls = _Matmuls()
    run_step(tiny(2), layout, mesh, matmuls)
    return dict(matmuls.counts)


def test_every_stage_splits_its_backward_in_half() -> None:
    """The first one too, at its embedding: no rank waits for it there, but the schedule counts on it."""
    layout = {"devices": 2, "pp": 2, "schedule": "zb-h1", "micro_batch": 2, "global_batch": 8}
    for linears, counts in zip((7, 8), run_world(count_matmuls, layout), strict=True):  # the head is one
        for kind in ("forward", "backward_input", "backward_weight"):
            assert counts[kind] == 4 * linears, kind


class _Syncs:
    """A GradientSync that records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def clear(self) -> None:
        self.calls.append(("clear",))

    def begin(self, stage: int, last: bool) -> None:
        self.calls.append(("begin", stage, last))

    def end(self, stage: int, last: bool) -> None:
        self.calls.append(("end", stage, last))

    def finish(self) -> None:
        self.calls.append(("finish",))


def record_syncs(mesh: Mesh, layout: Layout) -> list[tuple[Any, ...]]:
    """The calls that a step makes of the gradient sums."""
    syncs = _Syncs()
    run_step(tiny(8), layout, mesh, gradients=syncs)
    return syncs.calls


@pytest.mark.parametrize("kind", ["1f1b", "zb-h1", "interleaved", "zbv", "dualpipev"])
def test_gradient_sums_are_called_with_each_stages_last_backward(kind: str) -> None:
    layout = {"devices": 2, "pp": 2, "schedule": kind, "micro_batch": 2, "global_batch": 8}
    for calls in run_world(record_syncs, layout):
        assert calls[0] == ["clear"]
        assert calls[-1] == ["finish"]
        pairs = list(zip(calls[1:-1:2], calls[2:-1:2], strict=True))
        assert all(begin == ["begin", *end[1:]] and end[0] == "end" for begin, end in pairs)
        stages = {begun[1] for begun, _ in pairs}
        for stage in stages:
            assert [begun[2] for begun, _ in pairs if begun[1] == stage] == [False] * 3 + [True]


# -- a rank that dies ------------------------------------------------------------------------------


def die(mesh: Mesh, layout: Layout, how: str) -> None:
    """The last stage fails at the third micro-batch, while the others wait for its gradients."""
    spec = tiny(4)
    parallel = build(spec, layout, mesh)
    calls = Counter[str]()

    def failing(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        calls["loss"] += 1
        if calls["loss"] == 3:
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ArithmeticError("no such loss")
        return loss(logits, targets)

    parallel.executor.train(micro_batches(spec, layout.accumulation), failing, torch.tensor(100.0))


@pytest.mark.parametrize(("how", "message"), [("killed", "killed by SIGKILL"), ("raises", "no such loss")])
def test_a_rank_that_dies_takes_the_others_down(how: str, message: str) -> None:
    layout = {"devices": 4, "pp": 4, "micro_batch": 2, "global_batch": 16}
    with pytest.raises(RunError, match=message) as caught:
        run_world(die, layout, how)
    assert str(caught.value).startswith("worker 3")
