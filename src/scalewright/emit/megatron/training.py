"""Optimizer, learning rate, data and saves in Megatron-LM's arguments, both ways.

    lr_schedule cosine, decay_steps null     lr-decay-style cosine, lr-decay-iters = train-iters
    min_ratio 0.1                            min-lr = 0.1 x lr
    train.tokens                             train-iters, rounded up
Theirs counts the warm-up into lr-decay-iters, ours doesn't.
"""

from __future__ import annotations

from math import ceil
from typing import Any

from scalewright.emit.foreign import ForeignKeys, RunKeys, real, whole
from scalewright.emit.megatron.keys import ADAM, TRAINING
from scalewright.emit.megatron.model import Arguments
from scalewright.emit.rates import decay_length
from scalewright.emit.rules import Pair, inverse, put
from scalewright.emit.settings import Settings

STYLES = {"constant": "constant", "linear": "linear", "cosine": "cosine", "wsd": "WSD"}
OPTIMIZERS = {"adamw": "adam", "sgd": "sgd", "muon": "muon"}
STATES = {"adamw_bf16": "bf16", "adamw_8bit": "fp8"}  # their types, of Transformer Engine's
BETAS = Pair("optimizer.betas", ("adam-beta1", "adam-beta2"), (0.9, 0.999))


def write_training(s: Settings) -> Arguments:
    """Their arguments for everything but the network and the layout."""
    steps = s.take_steps()
    written = {**s.write(TRAINING), "train-iters": steps}
    return written | _optimizer(s) | _rates(s, steps) | _data(s) | _saves(s)


def _optimizer(s: Settings) -> Arguments:
    name = s.optimizer.name
    written: Arguments = {}
    if states := STATES.get(name):
        why = "Transformer Engine's states of that width, which scale and round otherwise"
        s.nearly("optimizer.name", f"adam, states in {states}", why)
        written |= {"optimizer": "adam", "use-precision-aware-optimizer": True,
                    "exp-avg-dtype": states, "exp-avg-sq-dtype": states}  # fmt: skip
    elif word := s.choose("optimizer.name", OPTIMIZERS, "Megatron-LM's optimizers are Adam, SGD and Muon"):
        written["optimizer"] = word
    momentum, adam = s.take("optimizer.momentum"), BETAS.write(s)
    return written | ({"sgd-momentum": momentum or 0.0} if name == "sgd" else {**adam, **s.write(ADAM)})


def _rates(s: Settings, steps: int) -> Arguments:
    schedule, lr = s.run.lr_schedule, s.values["optimizer.lr"]
    s.take_all("lr_schedule.")
    warmup = schedule.warmup_steps
    written: Arguments = {"lr-decay-style": STYLES[schedule.kind], "lr-warmup-iters": warmup}
    length = decay_length(schedule, steps)
    if schedule.kind == "wsd":
        written |= {"lr-wsd-decay-style": "linear", "lr-wsd-decay-iters": length, "lr-decay-iters": steps}
    elif schedule.kind != "constant":
        written["lr-decay-iters"] = max(1, warmup + length)
    written["min-lr"] = lr if schedule.kind == "constant" else float(f"{lr * schedule.min_ratio:.12g}")
    return written


def _data(s: Settings) -> Arguments:
    train, valid = s.take("data.train"), s.take("data.valid")
    paths = [train[0]["path"]]
    if len(train) > 1:
        paths = [item for source in train for item in (f"{source['weight']:g}", source["path"])]
    s.assume("data paths are prefixes of Megatron's .bin and .idx files: convert ours, or set --data-path")
    written: Arguments = {"train-data-path" if valid else "data-path": paths}
    if valid:
        written["valid-data-path"] = [source["path"] for source in valid]
    else:
        written["split"] = "100,0,0"
    every, batches = s.take("train.valid_every"), s.take("train.valid_batches")
    written["eval-iters"] = batches if every and valid else 0
    if every:
        written["eval-interval"] = every
    if s.states("data.document_mask") and s.take("data.document_mask"):
        written |= {"reset-attention-mask": True, "reset-position-ids": True}
    else:
        s.assume("documents of a row see each other (--reset-attention-mask turns fused attention off)")
    return written


def _saves(s: Settings) -> Arguments:
    written: Arguments = {"log-interval": 1, "log-throughput": True}
    s.take("profile.steps")
    if every := s.save_steps():
        folder = f"{s.run.folder}/megatron"
        written |= {"save": folder, "load": folder, "save-interval": every}
    return written


def read_training(t: ForeignKeys, run: RunKeys) -> None:
    """Everything but the network and the layout."""
    t.read((*TRAINING, *ADAM), run)
    optimizer = run.setdefault("optimizer", {})
    why = "an optimizer that isn't here: taken as AdamW"
    optimizer["name"] = t.choose("optimizer", inverse(OPTIMIZERS), "adam", "adamw", why)
    widths = {t.take("exp-avg-dtype"), t.take("exp-avg-sq-dtype")}
    kinds = [name for name, width in STATES.items() if width in widths]
    if len(kinds) == 1 and optimizer["name"] == "adamw":
        optimizer["name"] = kinds[0]
    betas = [t.take(*key) for key in zip(BETAS.foreign, BETAS.absent, strict=True)]
    if optimizer["name"] != "sgd":
        optimizer["betas"] = [real(beta) for beta in betas]
    if (momentum := t.take("sgd-momentum")) is not None and optimizer["name"] == "sgd":
        optimizer["momentum"] = real(momentum)
    optimizer.setdefault("weight_decay", 0.01)
    steps, samples = t.take("train-iters"), t.take("train-samples")
    if steps is None and samples is not None:
        steps = ceil(whole(samples) / run.get("layout", {}).get("global_batch", 1))
    if steps is not None:
        put(run, "train.steps", whole(steps))
    _read_rates(t, run, whole(steps) if steps is not None else None)
    _read_data(t, run)


def _read_rates(t: ForeignKeys, run: RunKeys, steps: int | None) -> None:
    schedule: dict[str, object] = {"kind": t.shape("lr-decay-style", inverse(STYLES), "linear")}
    warmup = t.take("lr-warmup-iters")
    fraction, samples = t.take("lr-warmup-fraction"), t.take("lr-warmup-samples")
    decay, wsd = t.take("lr-decay-iters"), t.take("lr-wsd-decay-iters")
    t.take("lr-wsd-decay-style")
    batch = run.get("layout", {}).get("global_batch", 1)
    decayed, ended = t.take("lr-decay-samples"), t.take("lr-wsd-decay-samples")
    if decay is None and decayed is not None:
        decay = whole(decayed) // batch
    if wsd is None and ended is not None:
        wsd = whole(ended) // batch
    length = whole(decay) if decay is not None else steps
    if not whole(warmup or 0) and samples is not None:  # printed arguments have lr_warmup_iters 0 beside it
        warmup = whole(samples) // batch
    if warmup is None and fraction is not None and length:
        warmup = int(real(fraction) * length)
    elif warmup is None and fraction is not None and real(fraction):
        t.assume(f"no warm-up: theirs is {fraction} of a run whose steps aren't given")
    first = whole(warmup) if warmup is not None else 0
    schedule["warmup_steps"] = first
    if schedule["kind"] == "wsd":
        schedule["decay_steps"] = whole(wsd) if wsd is not None else None
    elif decay is not None and length is not None and length != steps:
        schedule["decay_steps"] = max(0, length - first)
    least, most = t.take("min-lr"), run["optimizer"].get("lr")
    if schedule["kind"] != "constant":
        ratio = real(least) / most if least is not None and most else 0.0
        schedule["min_ratio"] = min(1.0, float(f"{ratio:.9g}"))
    run["lr_schedule"] = schedule


def _read_data(t: ForeignKeys, run: RunKeys) -> None:
    train = t.take_first("train-data-path", "data-path")
    valid = t.take("valid-data-path")
    t.take("test-data-path"), t.take("per-split-data-args-path")
    if train is not None:
        put(run, "data.train", sources(train))
    if valid is not None:
        put(run, "data.valid", sources(valid))


def sources(value: Any) -> list[dict[str, object]]:
    """`0.3 a 0.7 b` or `a b` as sources with weights."""
    items = [str(item) for item in (value if isinstance(value, list) else str(value).split())]
    try:
        weights = [float(item) for item in items[::2]]
    except ValueError:
        return [{"path": item} for item in items]
    if len(items) % 2 or not items:
        return [{"path": item} for item in items]
    return [{"path": path, "weight": weight} for path, weight in zip(items[1::2], weights, strict=True)]
