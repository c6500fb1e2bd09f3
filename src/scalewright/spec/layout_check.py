"""Checks of a layout against a model and a sequence length, made before any process starts.

    tp              divides heads and intermediate size; of it and the kv heads, one divides the other
    ep, etp         divide the experts, and their intermediate size
    pp x virtual    stages: no more than layers; `stage_layers` names them all, each at least one layer, but the ends:
                    one may hold the embedding alone, one the head (Llama 3 405B: 126 layers on 16 x 8 stages)
    schedule        its virtual stages and micro-batches; some are planned only; some split backwards
    cp, sp          divide the sequence
    recompute       not with a backward in two halves; every k-th of at least k layers; inputs fit the budget
    offload         of parameters needs zero_stage 3: only what is sharded can be fetched piece by piece

Every error names the two values in conflict and a fix. Of each sort of fixes that a check has, the first is offered,
nearest first, with which all checks pass, with the changes that must follow from it and in the fewest words:

    tp 3, 8 heads   ->   tp 2?  tp 4?  tp 1 with sp false? ...   ->   "use tp 2 with global_batch 8"

Keys that a run file leaves null stay null.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from scalewright.spec.common.formatting import counted
from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout, RecomputeBudget, RecomputeEvery, nearest_divisor
from scalewright.spec.memory import offloads_parameters
from scalewright.spec.model import ModelSpec
from scalewright.spec.placement import stage_layers
from scalewright.spec.recompute_budget import least_budget
from scalewright.spec.schedules.build import find_problem as find_schedule_problem
from scalewright.spec.schedules.kinds import find_kind
from scalewright.spec.zigzag import chunks


def check_layout(layout: Layout, model: ModelSpec, seq_len: int | None = None, *, train: bool = False) -> None:
    """Raises UserError when the layout can't cut this model or sequence; `train`: also when it can only be planned."""
    case = Case(layout, model, seq_len, train)
    if failure := _first_problem(case):
        index, problem = failure
        raise UserError(problem.what, "layout", _find_fix(case, index, problem))


def is_legal(layout: Layout, model: ModelSpec, seq_len: int | None = None, *, train: bool = False) -> bool:
    """Whether `check_layout` accepts the layout; faster where it doesn't, as no fix is looked for."""
    return _first_problem(Case(layout, model, seq_len, train)) is None


def _tensor(case: Case) -> Problem | None:
    tp, most = case.layout.tp, case.model.num_attention_heads
    conflict = _tensor_conflict(tp, case.model)
    return Problem(conflict, lambda: [({"tp": size} for size in near(tp, most) if size != tp)]) if conflict else None


def _tensor_conflict(tp: int, model: ModelSpec) -> str | None:
    sizes = [("num_attention_heads", model.num_attention_heads)]
    parts = [model.parts(layer) for layer in range(model.num_hidden_layers)]
    if any(mlp == "dense" for _, mlp in parts):
        sizes.append(("intermediate_size", model.intermediate_size))
    if model.mamba:
        sizes.append(("mamba.groups", model.mamba.groups))
    if model.deltanet:
        sizes.append(("deltanet.num_key_heads", model.deltanet.num_key_heads))
    if model.moe and model.moe.shared_size:
        sizes.append(("the shared experts' intermediate size", model.moe.shared_size))
    for name, size in sizes:
        if size % tp:
            return f"{name} {size} is not divisible by tp {tp}"
    kv = model.kv_heads
    if max(kv, tp) % min(kv, tp):
        return f"num_key_value_heads {kv} and tp {tp}: neither divides the other"
    if model.vocab_size < tp:
        return f"vocab_size {model.vocab_size} is less than tp {tp}"
    return None


def _experts(case: Case) -> Problem | None:
    ep, etp, moe = case.layout.ep, case.layout.etp, case.model.moe
    if moe is None:
        if ep == etp == 1:
            return None
        axis = f"ep {ep}" if ep > 1 else f"etp {etp}"
        return Problem(f"{axis} but this model has no experts", lambda: [[{"ep": 1, "etp": 1}]])
    if moe.num_experts % ep:
        divisor = nearest_divisor(moe.num_experts, ep)
        return Problem(
            f"num_experts {moe.num_experts} is not divisible by ep {ep}",
            lambda: [({"ep": size} for size in (divisor, *near(ep, moe.num_experts)) if size != ep)],
        )
    if moe.moe_intermediate_size % etp:
        what = f"moe_intermediate_size {moe.moe_intermediate_size} is not divisible by etp {etp}"
        return Problem(what, lambda: [({"etp": size} for size in near(etp, etp - 1))])
    return None


def _stages(case: Case) -> Problem | None:
    layout, layers = case.layout, case.model.num_hidden_layers
    more = layout.stages - layers
    if more <= 0 or (more <= 2 and len(layout.stage_layers or ()) == layout.stages):
        return None
    by_hand = [0, *[1] * layers, 0][: layout.stages] if more <= 2 < layout.stages else None
    virtual = layout.stages // layout.pp
    subject = f"pp {layout.pp} is" if virtual == 1 else f"pp {layout.pp} x virtual_stages {virtual} are"
    return Problem(
        f"{subject} more than the model's {counted(layers, 'layers')}",
        lambda: [
            [{"stage_layers": by_hand}] if by_hand else [],
            ({"pp": pp} for pp in near(layout.pp, layout.pp - 1)),
            ({"virtual_stages": v} for v in near(virtual, virtual - 1)),
            ({"schedule": "interleaved", "virtual_stages": v} for v in near(virtual, virtual - 1)),
            [{"schedule": "1f1b", "virtual_stages": 1}],
        ],
    )


def _schedule(case: Case) -> Problem | None:
    layout = case.layout
    if layout.pp == 1:
        return None
    kind, virtual_stages = layout.schedule, layout.virtual_stages
    if problem := find_schedule_problem(kind, layout.pp, virtual_stages, layout.accumulation):
        return Problem(problem.what, lambda: _schedule_fixes(layout, problem.micro_batches))
    if case.train and not find_kind(kind).trained:
        instead = [{"schedule": "1f1b", "virtual_stages": 1}]
        if find_kind(kind).both_ways:
            instead.insert(0, {"schedule": "dualpipev"})
        return Problem(f"schedule {kind} can only be planned, not trained", lambda: [instead])
    return None


def _schedule_fixes(layout: Layout, micro_batches: int) -> list[Fixes]:
    """Other sizes, schedules and pipelines. `micro_batches`: a number that works; 0 if others are wrong."""
    kind, virtual_stages = layout.schedule, layout.virtual_stages
    plain, chunked = ("zb-h1", "zb-interleaved") if kind.startswith("zb-") else ("1f1b", "interleaved")
    sibling: Fix = {"schedule": plain}
    if virtual_stages > 1:
        sibling = {"schedule": chunked, "virtual_stages": virtual_stages}
    others: list[Fix] = [{"schedule": "dualpipev"}] if find_kind(kind).both_ways else []
    others += [sibling, {"schedule": "1f1b", "virtual_stages": 1}]
    sizes: Fixes = [{"virtual_stages": v} for v in (1, 2) if v != virtual_stages]
    if micro_batches:
        sizes = [{"global_batch": micro_batches * layout.micro_batch * layout.dp}]
    return [sizes, others, ({"pp": pp} for pp in near(layout.pp, layout.pp) if pp != layout.pp)]


def _stage_layers(case: Case) -> Problem | None:
    given, layout, layers = case.layout.stage_layers, case.layout, case.model.num_hidden_layers
    if given is None:
        return None
    conflict = None
    if len(given) != layout.stages:
        conflict = f"stage_layers has {len(given)} entries but the layout has {counted(layout.stages, 'stages')}"
    elif min(given) < 0 or min(given[1:-1], default=1) < 1:
        stage = next(stage for stage, count in enumerate(given) if count < (0 < stage < len(given) - 1))
        conflict = f"stage_layers gives stage {stage} {given[stage]} layers but each between the ends needs one"
    elif sum(given) != layers:
        conflict = f"stage_layers sums to {sum(given)} but the model has {counted(layers, 'layers')}"
    return Problem(conflict, lambda: [[{"stage_layers": None}]]) if conflict else None


def _sequence(case: Case) -> Problem | None:
    layout, model, seq_len = case.layout, case.model, case.seq_len
    if layout.cp > 1 and layout.cp_kind == "ulysses" and model.num_attention_heads % (layout.tp * layout.cp):
        return Problem(
            f"num_attention_heads {model.num_attention_heads} is not divisible by tp x cp = "
            f"{layout.tp * layout.cp}, which cp_kind ulysses needs",
            lambda: [({"cp": cp} for cp in near(layout.cp, layout.cp - 1)), [{"cp_kind": "ring"}]],
        )
    routes = layout.tp > 1 and model.moe is not None  # each rank of tp routes its part of the tokens
    split = chunks(layout.cp_kind, layout.cp) * (layout.tp if layout.sp or routes else 1)
    if seq_len is None or seq_len % split == 0:
        return None
    nearest = max(1, round(seq_len / split)) * split
    owners = [f"cp {layout.cp}"] if layout.cp > 1 else []
    owners += [f"sp over tp {layout.tp}"] if layout.sp else [f"routers on tp {layout.tp}"] if routes else []
    without: Fixes = [{"sp": False}] if layout.sp and not routes else []
    what = f"seq_len {seq_len} is not divisible by the {split} parts that {' and '.join(owners)} cut it into"
    return Problem(what, lambda: [[{"seq_len": nearest}, {"seq_len": nearest + split}], without])


def _offload(case: Case) -> Problem | None:
    layout = case.layout
    if not offloads_parameters(layout) or layout.zero_stage == 3:
        return None
    problem = f"offload {layout.offload} needs zero_stage 3 but it is {layout.zero_stage}"
    return Problem(problem, lambda: [[{"zero_stage": 3}], [{"offload": "optimizer"}]])


def _recompute(case: Case) -> Problem | None:
    layout = case.layout
    plain = find_kind(layout.schedule).whole
    if case.train and layout.pp > 1 and plain is not None and layout.recompute != "none":
        virtual = layout.virtual_stages if plain == "interleaved" else 1
        reruns = f"recompute {_kind(layout)} would run the blocks again for both"
        what = f"schedule {layout.schedule} splits each backward in two and {reruns}"
        return Problem(what, lambda: [[{"schedule": plain, "virtual_stages": virtual}], [{"recompute": "none"}]])
    return None


def _recompute_size(case: Case) -> Problem | None:
    layout, model, kind = case.layout, case.model, case.layout.recompute
    if isinstance(kind, RecomputeEvery) and kind.every > 1:
        most = max(stage_layers(model, layout))
        if kind.every > most:
            owner = "a stage has" if layout.pp > 1 else "the model has"
            what = f"recompute {_kind(layout)} is more than the {most} layers that {owner}"
            return Problem(what, lambda: [[{"recompute": {"every": most}}], [{"recompute": "none"}]])
    if isinstance(kind, RecomputeBudget) and kind.budget > 0:
        least = least_budget(model, layout, case.seq_len or model.context)
        if kind.budget < least:
            return Problem(
                f"recompute {_kind(layout)} is less than the blocks' inputs alone: "
                f"they take {least:.3f} of what recompute none keeps",
                lambda: [[{"recompute": {"budget": ceil(100 * least) / 100}}], [{"recompute": "full"}]],
            )
    return None


def _kind(layout: Layout) -> str:
    return as_text(layout.recompute if isinstance(layout.recompute, str) else layout.recompute.dump())


CHECKS = (_tensor, _experts, _stages, _schedule, _stage_layers, _sequence, _offload, _recompute, _recompute_size)


Fix = Mapping[str, Any]  # changes of the layout's keys, or of seq_len
Fixes = Iterable[Fix]  # fixes of one sort, nearest first
MOST_TRIED = 400  # fixes of one sort, which may have a hundred thousand


@dataclass(frozen=True)
class Case:
    """A layout with the model and the sequence length that it is checked against."""

    layout: Layout
    model: ModelSpec
    seq_len: int | None
    train: bool

    def with_fix(self, fix: Fix) -> Case:
        """The case with a fix; nulls are derived again. Raises UserError when the layout is invalid."""
        changes = {key: value for key, value in fix.items() if key != "seq_len"}
        layout = Layout.parse({**self.layout.stated(), **changes})
        return replace(self, layout=layout, seq_len=fix.get("seq_len", self.seq_len))


@dataclass(frozen=True)
class Problem:
    """A failed check: what is wrong, and sorts of fixes to try, built only when they are needed."""

    what: str
    fixes: Callable[[], list[Fixes]]


def _first_problem(case: Case) -> tuple[int, Problem] | None:
    """The index of the first check that fails, and its problem; None when all pass."""
    problems = ((index, problem) for index, check in enumerate(CHECKS) if (problem := check(case)) is not None)
    return next(problems, None)


def _find_fix(case: Case, index: int, problem: Problem) -> str:
    """`use ...`: the first fix of each sort that passes all checks, else check `index`; two sorts at most."""
    for needed in (len(CHECKS), index + 1):
        working = [fix for fixes in problem.fixes() if (fix := _first_working(case, fixes, needed))]
        if working:
            return "use " + ", or ".join(list(dict.fromkeys(_words(case, fix) for fix in working))[:2])
    return ""


def _first_working(case: Case, fixes: Fixes, needed: int) -> Fix | None:
    """The first fix with which the first `needed` checks pass, among the nearest `MOST_TRIED`."""
    complete = (fix for start in fixes for fix in _completed(case, start))
    nearest = itertools.islice(complete, MOST_TRIED)
    return next((fix for fix in nearest if _passed(case, fix) >= needed), None)


def _completed(case: Case, fix: Fix) -> Iterator[Fix]:
    """A fix alone, and with changes that must follow: no sp without tp, other stages, another batch."""
    layout, full = case.layout, dict(fix)
    if fix.get("tp") == 1 and layout.sp:
        full["sp"] = False
    if layout.stage_layers is not None and {"pp", "virtual_stages", "schedule"} & set(fix):
        full["stage_layers"] = None
    yield full
    if "global_batch" not in full:
        sizes = {key: full.get(key, getattr(layout, key)) for key in ("tp", "pp", "cp")}
        samples = layout.micro_batch * max(1, layout.devices // (sizes["tp"] * sizes["pp"] * sizes["cp"]))
        yield {**full, "global_batch": max(1, round(layout.global_batch / samples)) * samples}
        yield {**full, "global_batch": 2 * sizes["pp"] * samples}


def _passed(case: Case, fix: Fix) -> int:
    """The number of checks that pass with a fix, before the first that fails."""
    try:
        failure = _first_problem(case.with_fix(fix))
    except UserError:
        return 0
    return len(CHECKS) if failure is None else failure[0]


def _words(case: Case, fix: Fix) -> str:
    """`{"tp": 1, "sp": False}` as `tp 1 with sp false`, without keys that would be derived to that value."""
    now = {**case.layout.stated(), "seq_len": case.seq_len}
    for key in [key for key in fix if key not in now]:
        shorter = {other: value for other, value in fix.items() if other != key}
        if shorter and case.with_fix(shorter) == case.with_fix(fix):
            fix = shorter
    parts = [f"{key} {as_text(value)}" for key, value in fix.items() if key not in now or value != now[key]]
    return " with ".join([parts[0], " and ".join(parts[1:])] if parts[1:] else parts)


def as_text(value: Any) -> str:
    """A value as a run file may have it, on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {as_text(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):  # of stages: 0,1x126,0
        runs = [(item, len(list(run))) for item, run in itertools.groupby(value)]
        return ",".join(f"{item}x{times}" if times > 1 else str(item) for item, times in runs)
    names = {None: "null", True: "true", False: "false"}
    return str(value) if type(value) in (int, float, str) else names[value]


def near(center: int, most: int) -> Iterator[int]:
    """1 to `most`, nearest to `center` first, the smaller of two before the larger."""
    return iter(sorted(range(1, most + 1), key=lambda number: (abs(number - center), number)))
