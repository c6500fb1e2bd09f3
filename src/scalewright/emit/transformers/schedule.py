"""Learning rates and optimizers in the Trainer's words, both ways.

ours                              theirs
constant                          constant, or constant_with_warmup
linear, min_ratio 0, r            linear, polynomial of power 1 down to lr_end = r lr
cosine, min_ratio 0, r            cosine, cosine_with_min_lr with min_lr_rate r
wsd, the last n updates           warmup_stable_decay with num_decay_steps n, decay_type linear

Their update k has the rate of our update k - 1: a warm-up starts with 0.
"""

from __future__ import annotations

from scalewright.emit.foreign import ForeignKeys, RunKeys, real_of, whole_of
from scalewright.emit.scripts.facts import Facts
from scalewright.emit.settings import Settings

Arguments = dict[str, object]
LATER = "their update k has the rate of our update k - 1, and a warm-up starts with 0"
OPTIMIZERS = {"adamw": "adamw_torch_fused", "sgd": "sgd", "lion": "lion_32bit"}
SMALLER = {"adamw_8bit": "adamw_bnb_8bit", "adamw_bf16": "adamw_torch_fused"}
READ_OPTIMIZERS = {
    "adamw_torch": "adamw", "adamw_torch_fused": "adamw", "adamw_hf": "adamw", "adamw_apex_fused": "adamw",
    "adamw_bnb_8bit": "adamw_8bit", "adamw_8bit": "adamw_8bit", "adamw_torch_8bit": "adamw_8bit",
    "paged_adamw_32bit": "adamw", "paged_adamw_8bit": "adamw_8bit", "sgd": "sgd", "lion_32bit": "lion",
    "paged_lion_32bit": "lion", "muon": "muon",
}  # fmt: skip
SHAPES = {
    "constant": "constant", "constant_with_warmup": "constant", "linear": "linear", "polynomial": "linear",
    "cosine": "cosine", "cosine_with_min_lr": "cosine", "cosine_warmup_with_min_lr": "cosine",
    "warmup_stable_decay": "wsd",
}  # fmt: skip


def write_schedule(s: Settings, facts: Facts) -> Arguments:
    """lr_scheduler_type, its arguments and the warm-up."""
    kind, ratio, warmup = facts["kind"], facts["min_ratio"], facts["warmup"]
    numbers: Arguments = {}
    if kind == "constant":
        name = "constant_with_warmup" if warmup else "constant"
    elif kind == "wsd":
        name = "warmup_stable_decay"
        numbers = {"num_decay_steps": facts["decay"], "min_lr_ratio": ratio, "decay_type": "linear"}
    elif not ratio:
        name = kind
    elif kind == "linear":
        name = "polynomial"
        numbers = {"lr_end": float(f"{s.values['optimizer.lr'] * ratio:.12g}"), "power": 1.0}
    else:
        name, numbers = "cosine_with_min_lr", {"min_lr_rate": ratio}
    arguments = {"lr_scheduler_kwargs": numbers} if numbers else {}
    return {"lr_scheduler_type": name, **arguments, "warmup_steps": warmup}


def check_decay(s: Settings, facts: Facts, title: str) -> None:
    """Reports a decay that ends before the run does, which their schedules don't have."""
    if facts["kind"] in ("linear", "cosine") and facts["start"] + facts["decay"] != facts["steps"]:
        why = f"{title}'s schedule ends with the run"
        s.nearly("lr_schedule.decay_steps", str(facts["steps"] - facts["start"]), why)
    if facts["kind"] != "constant" or facts["warmup"]:
        s.assume(LATER)


def write_optimizer(s: Settings, title: str) -> str:
    """The optimizer's name; what can't be said is reported."""
    name = s.optimizer.name
    if name in OPTIMIZERS:
        s.take("optimizer.name")
    elif name in SMALLER:
        s.nearly("optimizer.name", SMALLER[name], "its states are kept and rounded otherwise")
    else:
        s.drop("optimizer.name", f"{title} has no {name} for sharded matrices: AdamW in its place")
    if s.optimizer.kept_momentum and name == "sgd":
        s.drop("optimizer.momentum", f"{title}'s sgd is without momentum")
    else:
        s.take("optimizer.momentum")
    return {**OPTIMIZERS, **SMALLER}.get(name, "adamw_torch_fused")


def read_schedule(t: ForeignKeys, run: RunKeys, steps: int | None, name: str = "lr_scheduler_type") -> None:
    """The schedule of lr_scheduler_type (or of a key that means it), its arguments and the warm-up."""
    kind = str(t.take(name, "linear")).lower()
    schedule: dict[str, object] = {"kind": SHAPES.get(kind, "cosine")}
    if kind not in SHAPES:
        t.refuse(name, "taken as cosine: this shape isn't here")
    section = "lr_scheduler_kwargs."
    arguments = {key.removeprefix(section): t.take(key) for key in list(t.values) if key.startswith(section)}
    t.take("lr_scheduler_kwargs")
    schedule["warmup_steps"] = _warmup(t, steps)
    if kind == "constant":
        schedule["warmup_steps"] = 0
    if schedule["kind"] != "constant":
        schedule["min_ratio"] = _least(arguments, run)
    if schedule["kind"] == "wsd":
        schedule["decay_steps"] = whole_of(arguments.get("num_decay_steps"))
        if arguments.get("decay_type", "cosine") != "linear":
            t.assume("the decay of warmup_stable_decay is read as linear")
    run["lr_schedule"] = schedule


def _warmup(t: ForeignKeys, steps: int | None) -> int:
    """Updates of the warm-up: a number, or (below 1) a share of the run."""
    number, ratio = real_of(t.take("warmup_steps")), real_of(t.take("warmup_ratio"))
    share = number if number is not None and 0 < number < 1 else ratio if not number else None
    if share:
        if steps is None:
            t.assume(f"no warm-up: theirs is {share:g} of a run whose steps aren't given")
            return 0
        return int(-(-share * steps // 1))
    return int(number or 0)


def _least(arguments: dict[str, object], run: RunKeys) -> float:
    rate = real_of(arguments.get("min_lr_rate", arguments.get("min_lr_ratio")))
    if rate is None:
        lowest, highest = (real_of(arguments.get("min_lr", arguments.get("lr_end"))), run["optimizer"].get("lr"))
        rate = float(f"{lowest / highest:.9g}") if lowest and highest else 0.0
    return min(1.0, max(0.0, rate))


def read_optimizer(t: ForeignKeys, run: RunKeys, name: str = "optim") -> None:
    """The optimizer of `optim` (or of a key that means it)."""
    value = t.take(name)
    kind = str(value if value is not None else "adamw_torch_fused").lower()
    run["optimizer"]["name"] = READ_OPTIMIZERS.get(kind, "adamw")
    if kind not in READ_OPTIMIZERS:
        t.refuse(name, "an optimizer that isn't here: taken as AdamW")
