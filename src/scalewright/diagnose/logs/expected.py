"""What the planner expects of this trainer, model, layout and machine, beside what the log shows.

    --from FILE, or all arguments in the log ──► Question     ──► plan.predict ──► p10, p50, p90
    only some facts, the flags' over them    ──► a table's row ──┘
    the usual step                           ──► as expected | slower: 12% beyond p90 | faster than expected

A configuration is compared at the sizes that its log states: those ran. The user's flags go over both. By step time
where the batch is known; else by tokens/s or TFLOP/s a device, which need none. Measured and predicted TFLOP/s may
count operations differently.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from scalewright.diagnose.logs.facts import DIMS, Facts, facts_of
from scalewright.diagnose.logs.given import Given
from scalewright.diagnose.logs.log import Log
from scalewright.diagnose.logs.times import Usual
from scalewright.plan.defaults import check_whole, resolve_sizes
from scalewright.plan.explain import smallest_fix
from scalewright.plan.predict import Prediction, predict_table, price, resolve_rows, together
from scalewright.plan.rows.row_model import known_name
from scalewright.spec.common.formatting import gib, short_time
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.layout import Layout
from scalewright.spec.layout_check import check_layout
from scalewright.spec.presets import is_preset, load_model_spec
from scalewright.spec.question import Question

COLUMNS = {
    "devices": "n_devices", "virtual_stages": "vpp", "micro_batch": "mbs", "global_batch": "gbs", "seq_len": "seq",
} | {key: key for key in ("tp", "pp", "cp", "ep", "precision", "recompute", *DIMS)}  # fmt: skip
KEYS = {*COLUMNS, "sp", "zero_stage", "dp_replicate", "schedule", "etp", "nodes", "global_batch_tokens"} - {*DIMS}
SIZES = ("devices", "tp", "pp", "cp", "ep", "micro_batch", "global_batch")  # that logs state, and ran
ANY_CLUSTER = "dgx-h100"  # sizes are checked; only `nodes` asks how many devices are in one
NEEDED = {  # a fact -> what it is called, and the flag that states it
    "model": ("model", "--model MODEL"),
    "device": ("kind of device", "--cluster CLUSTER"),
    "devices": ("number of devices", "--layout devices=N"),
    "seq_len": ("sequence length", "--seq-len TOKENS"),
    "batch": ("batch", "--layout global_batch=SEQUENCES"),
}

APART = 2.0  # a rate with recomputation counted is 4/3 of one without: what differs by more isn't that


def expected(log: Log, measured: Usual, given: Given) -> tuple[dict[str, object] | None, str]:
    """`expected` of the answer, or None and a line on why; raises UserError for a flag that can't be."""
    if given.configured is not None:
        return _by_configuration(log, measured, given, given.configured)
    row, facts, why = _stated(log, measured, given)
    if row is None:
        return None, why
    try:
        prediction = _predicted(log, row, facts, given)
    except UserError as error:
        why = f"it can't be predicted: {error}"
        if given != Given():
            raise UserError(why, "diagnose", "change the flags") from None
        return None, f"{why}; --model, --cluster and --layout change it"
    noted = _noted(log.run, prediction, [*facts]) if log.run and given.model is None else prediction.dump()
    machine = {"cluster": row["device"], "devices": facts["devices"]}
    return _answer(noted, measured, "global_batch" in facts) | machine, ""


def fitting(log: Log, measured: Usual, given: Given, needed_gib: float | None) -> tuple[str, str]:
    """What the planner counts for a run that ran out of memory, and the single change that would fit; else why not.

    `needed_gib`: what its device held and was asked for; the peaks of changed layouts are scaled to it.
    """
    try:
        prediction, why = _priced(log, measured, given)
    except UserError as error:
        prediction, why = None, str(error)
    if prediction is None:
        return "", why
    usable, peak = prediction.usable_gib, prediction.peak_gib
    (fix,) = together([smallest_fix(prediction, max(peak, needed_gib or 0.0))])
    counted = f"the plan counts {gib(peak)} for this run, of {gib(usable)} that a device can use"
    if fix is None:
        return f"{counted}: it should fit; look for what else holds memory", ""
    best = f"{fix['change']}, with {gib(fix['peak_gib'])} and {short_time(fix['step_time_s'])} a step"
    return f"{counted}; {'what fits first is' if fix['fits'] else 'no single change fits, the nearest is'} {best}", ""


def _priced(log: Log, measured: Usual, given: Given) -> tuple[Prediction | None, str]:
    """The run's prediction, of what is known best; None and a line on why."""
    if given.configured is not None:
        place = _place(log.facts, given)
        return (_at_sizes(given.configured, place, log.facts, given) if place else None), NEEDED["device"][1]
    row, facts, why = _stated(log, measured, given)
    if row is None:
        return None, why
    return _predicted(log, row, facts, given), ""


def _predicted(log: Log, row: Mapping[str, Any], facts: Facts, given: Given) -> Prediction:
    """Of a log's own run, or of the facts that it states; raises UserError where it can't be."""
    if log.run is not None and given.model is None:
        return _at_sizes(replace(log.run, trainer=log.framework), str(row["device"]), facts, given)
    (request,) = resolve_rows([row])
    if isinstance(request, UserError):
        raise request
    return predict_table([request])[0]


def _by_configuration(log: Log, measured: Usual, given: Given, run: Question) -> tuple[dict[str, object] | None, str]:
    """The same of a run whose configuration is given: only the kind of device may be absent."""
    cluster = _place(log.facts, given)
    if cluster is None:
        return None, f"neither the log nor the configuration has a kind of device; add {NEEDED['device'][1]}"
    prediction = _noted(run, _at_sizes(run, cluster, log.facts, given), [*log.facts, *given.layout])
    layout = prediction["layout"]
    machine = {"cluster": cluster, "devices": layout["devices"], "layout": layout}
    return _answer(prediction, measured, batch=True) | machine, "; ".join(_disagreements(run, log.facts))


def _noted(run: Question, prediction: Prediction, stated_keys: list[str]) -> Mapping[str, Any]:
    """The keys of `Prediction.dump`; `stated_keys` are those of which nothing is assumed."""
    dump = prediction.dump()
    return dump | {"assumed": [*run.notes(stated_keys), *dump["assumed"]]}


def _at_sizes(run: Question, cluster: str, facts: Facts, given: Given) -> Prediction:
    """The run at the sizes that its log states, then those of the flags; raises UserError where it can't be."""
    place, length = load_cluster(cluster), given.seq_len or facts.get("seq_len") or run.seq_len
    ran = {key: facts[key] for key in SIZES if isinstance(facts.get(key), int)}
    stated = {**run.layout.dump(), **ran, **given.layout}
    for total, size in (("nodes", "devices"), ("global_batch_tokens", "global_batch")):
        if total in given.layout:
            del stated[size]
    full = Layout.parse(resolve_sizes(stated, place, length), "layout")
    check_layout(full, run.model, length)
    return price(replace(run, cluster=place).with_length(length).with_layout(full))


def _disagreements(run: Question, facts: Facts) -> list[str]:
    """Where the log and the configuration aren't of the same run, in words."""
    configured, lines = facts_of(run), []
    for keys, words in ((SIZES, "the log's is taken"), (("layers", "hidden", "heads"), "is it of this run?")):
        lines += [
            f"{key.replace('_', ' ')} is {facts[key]:,} in the log and {configured[key]:,} in the "
            f"configuration: {words}"
            for key in keys
            if isinstance(facts.get(key), int) and configured.get(key) not in (None, facts[key])
        ]
    return lines


def table_row(log: Log, measured: Usual, given: Given) -> tuple[dict[str, object] | None, str]:
    """The log as a row of a table of runs, with its measured step; or None and a line on why."""
    row, facts, why = _stated(log, measured, given)
    if row is None:
        return None, why
    if "global_batch" in facts and measured.step_time_s is not None:
        return row | {"step_time_s": measured.step_time_s}, ""
    rate = measured.tokens_per_s_per_device
    if rate is None and measured.tokens_per_s is not None:
        rate = measured.tokens_per_s / facts["devices"]
    if rate is None:
        return None, "neither a step time with its batch nor tokens/s is in it"
    return row | {"tokens_per_s_per_device": rate}, ""


def _stated(log: Log, measured: Usual, given: Given) -> tuple[dict[str, object] | None, Facts, str]:
    """The run as a row of a table, and its facts; no row where something is absent, and what that is."""
    place = _place(log.facts, given)
    facts = _facts(log, given, place)
    rate = measured.tokens_per_s_per_device or measured.tokens_per_s or measured.tflops
    # A preset or a shape; a path that a log names isn't opened.
    shaped = is_preset(_model_name(str(facts.get("model", "")))) or {"layers", "hidden", "heads"} <= facts.keys()
    known = {
        "model": given.model is not None or shaped,
        "device": place is not None,
        "devices": "devices" in facts,
        "seq_len": "seq_len" in facts,
        "batch": bool(rate) or "global_batch" in facts,
    }
    absent = [NEEDED[key] for key, here in known.items() if not here]
    if not absent:
        return _row(log, facts, place, given), facts, ""
    names = ", ".join(name for name, _ in absent)
    if not known["model"] and facts.get("model"):
        names = names.replace("model", f"the shape of {facts['model']}")
    flags = [flag for _, flag in absent if not flag.startswith("--layout")]
    layout = ",".join(flag.removeprefix("--layout ") for _, flag in absent if flag.startswith("--layout"))
    add = " ".join(flags + [f"--layout {layout}"] * bool(layout))
    return None, facts, f"not in the log: {names}; to compare with what it should take, add {add}"


def _facts(log: Log, given: Given, place: str | None) -> Facts:
    """The log's facts with the user's over them, and what follows from them."""
    facts = dict(log.facts)
    if given.model is not None:
        load_model_spec(given.model)
        facts = {key: value for key, value in facts.items() if key not in DIMS} | {"model": given.model}
    if given.seq_len is not None:
        facts["seq_len"] = check_whole("seq_len", given.seq_len)
    facts |= _layout(given.layout, place, facts.get("seq_len"))
    ranks = math.prod(facts.get(key, 1) for key in ("tp", "pp", "cp"))
    if "dp_shard" in facts:
        facts["dp"] = facts["dp_shard"] * facts.get("dp_replicate", 1)
    if "devices" not in facts and "dp" in facts and "tp" in facts:
        facts["devices"] = facts["dp"] * ranks
    if "global_batch" not in facts and {"micro_batch", "devices"} <= facts.keys():
        accumulation = facts.get("grad_accum", 1 if log.framework in ("torchtitan", "maxtext") else None)
        if accumulation is not None:
            facts["global_batch"] = facts["micro_batch"] * max(1, facts["devices"] // ranks) * accumulation
    # A block of arguments has all of them: what isn't in it is off.
    if "heads" in facts and str(log.framework).startswith("megatron") and given.model is None:
        facts.setdefault("recompute", "none")
        facts.setdefault("zero_stage", 0)
    return facts


def _layout(layout: Mapping[str, Any], place: str | None, seq_len: int | None) -> Facts:
    """The user's layout, checked; nodes and tokens of a batch as devices and sequences."""
    for key in layout.keys() - KEYS:
        raise UserError(f"a log isn't compared with {key}", "--layout", "leave it out")
    for key, other, flag in (("nodes", place, "--cluster"), ("global_batch_tokens", seq_len, "--seq-len")):
        if key in layout and other is None:
            raise UserError(f"{key} needs {flag}, as the log doesn't state it", "--layout", f"add {flag}")
    if not isinstance(layout.get("recompute", ""), str):
        raise UserError("recompute is compared as a word", "--layout recompute", "use none, selective or full")
    return resolve_sizes(layout, load_cluster(place or ANY_CLUSTER), seq_len or 1)


def _place(facts: Facts, given: Given) -> str | None:
    """The cluster or the device; of a driver's long name the longest beginning that is known."""
    if given.cluster is not None:
        load_cluster(given.cluster)
        return given.cluster
    words = str(facts.get("device", "")).removeprefix("NVIDIA ").replace("-SXM4", "").split()
    for count in range(len(words), 0, -1):
        for joined in (" ".join(words[:count]), "-".join(words[:count])):
            with suppress(UserError):
                return joined if load_cluster(joined) else None
    return None


def _model_name(name: str) -> str:
    """A model as the presets name it: without an organisation, `llama3 8B` as `llama-3-8b`."""
    plain = known_name(name)
    return plain if is_preset(plain) else known_name(re.sub(r"^[\w.-]+/", "", name))


def _row(log: Log, facts: Facts, place: str | None, given: Given) -> dict[str, object]:
    """The facts as a row of a table of runs; a model of the user's own is a file."""
    row = {column: facts[key] for key, column in COLUMNS.items() if facts.get(key) is not None}
    name = _model_name(str(facts.get("model", "")))
    if is_preset(name):
        row["model"] = name
    elif given.model is not None:
        row["model"] = str(Path(given.model).expanduser().resolve())
    if facts.get("sp") is not None:
        row["sp"] = int(facts["sp"])
    if facts.get("zero_stage") is not None:
        row["sharding"] = "hsdp" if facts.get("dp_replicate", 1) > 1 else str(facts["zero_stage"])
    options = [f"{key}={facts[key]}" for key in ("schedule", "etp") if facts.get(key)]
    return row | {"framework": log.framework or "", "device": place, "options": ";".join(options)}


def _answer(prediction: Mapping[str, Any], measured: Usual, batch: bool) -> dict[str, object]:
    band, tflops = prediction["step_time_s"], prediction["tflops_per_device"]
    assumed = list(prediction.get("assumed", []))
    # how many times the devices that it is priced on share the work, by the log's own rate of each
    times = band["p50"] * tflops / ((measured.step_time_s or math.inf) * (measured.tflops or math.inf))
    if batch and measured.step_time_s is not None and (measured.tflops is None or 1 / APART < times < APART):
        seconds, by = measured.step_time_s, "step time"
    elif measured.tokens_per_s_per_device is not None:
        rate = prediction["tokens_per_s_per_device"]
        seconds, by = band["p50"] * rate / measured.tokens_per_s_per_device, "tokens/s"
    elif measured.tokens_per_s is not None:
        seconds, by = band["p50"] * prediction["tokens_per_s"] / measured.tokens_per_s, "tokens/s"
    else:
        seconds, by = band["p50"] * tflops / (measured.tflops or tflops), "TFLOP/s"
    if batch and measured.step_time_s is not None and by != "step time":
        rate = f"{measured.step_time_s:.3g} s a step at the log's {measured.tflops:.4g} TFLOP/s a device"
        assumed.insert(0, f"{rate} is work of {times:.2g} times as many devices as are given: compared by {by}")
    return {
        **{key: band[key] for key in ("p10", "p50", "p90")},
        "verdict": verdict(band, seconds),
        "measured_s": seconds,
        "compared_by": by,
        "tflops": tflops,
        "tokens_per_s_per_device": prediction["tokens_per_s_per_device"],
        "assumed": assumed,
    }


def verdict(band: Mapping[str, float], seconds: float) -> str:
    """A measured step time beside a band, in words; all in seconds.

    >>> verdict({"p10": 0.9, "p50": 1.0, "p90": 1.2}, 1.5)
    'slow: 25% beyond p90'
    """
    if seconds > band["p90"]:
        return f"slow: {100 * (seconds / band['p90'] - 1):.0f}% beyond p90"
    return "as expected" if seconds >= band["p10"] else "faster than expected"
