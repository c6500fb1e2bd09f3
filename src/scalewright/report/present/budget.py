"""A budget as blocks: the model, its tokens and loss, what they take, where the laws disagree; and a fit to own runs.

24.8B parameters on 474B tokens: 64 x h100-sxm for 30 days
model     llama-24.9b: 50 layers of 6,144, ...
loss      2.05 nats a token (1.96 to 2.13), by besiroglu on MassiveText: beyond what it was fitted to
takes     30 days (24.6 to 36.5), 46.1k device-hours, 184k USD (107k to 576k), ...
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scalewright.report.present.blocks import Block, Line, Note, Shown, Table
from scalewright.spec.common.formatting import count, counted, decimal, share

JSON = Mapping[str, Any]
BEYOND = "beyond what was fitted"
RENTS = {
    "on_demand": "on demand", "reserved_1y": "1 year", "reserved_3y": "3 years", "block": "block", "spot": "spot",
}  # fmt: skip


def show_budget(answer: JSON) -> Shown:
    """The answer of `budget`."""
    model, plan, budget = answer["model"], answer["plan"], answer["budget"]
    active = f" ({count(model['active'])} active)" if model["active"] != model["params"] else ""
    size = f"{count(model['params'])} parameters{active} on {count(model['tokens'])} tokens"
    title = f"{size}: {budget['flops']:.3g} FLOPs"
    if plan:
        late = " (too late)" if answer["meets_deadline"] is False else ""
        title = f"{size}: {plan['devices']:,} x {plan['device']} for {_time(budget['days'])}{late}"
    head = [*_deadline(answer), _model(answer), _loss(answer), *_takes(answer), Line("next", _next(answer))]
    head.append(Line("assumed", ", ".join(answer["assumed"]), listed=True))
    return Shown(
        title, head, [*_clusters(answer), *_doubts(answer), *_serve(answer), *_epochs(answer), *_tables(answer)]
    )


def _deadline(answer: JSON) -> Iterator[Line]:
    """Whether it ends within the days that were given: late on all its devices, nothing below is what was asked for."""
    if (met := answer["meets_deadline"]) is not None:
        takes = f"{_time(answer['budget']['days'])} on {counted(answer['plan']['devices'], 'devices')}"
        wanted = _time(answer["given"]["days"])
        text = f"within {wanted}: {takes}" if met else f"not met: {takes}, of {wanted} given"
        yield Line("deadline", text, "good" if met else "bad")


def _model(answer: JSON) -> Line:
    model = answer["model"]
    heads = f"{model['heads']} heads ({model['kv_heads']} kv)"
    each = "an active parameter" if model["active"] != model["params"] else "a parameter"
    shape = f"{model['layers']} layers of {model['hidden']:,}, {heads}, vocabulary {model['vocab']:,}"
    return Line("model", f"{model['name']}: {shape}; {decimal(answer['tokens_per_param'], 3)} tokens {each}")


def _loss(answer: JSON) -> Line:
    loss = answer["loss"]
    beyond = "" if loss["inside"] else f"; {BEYOND}"
    text = f"{loss['p50']:.3f} nats a token ({loss['p10']:.2f} to {loss['p90']:.2f}), by {loss['law']}"
    return Line("loss", f"{text} on {loss['corpus']}, {loss['tokenizer']}{beyond}", "" if loss["inside"] else "warn")


def _span(band: JSON | None, unit: str = "") -> str:
    if band is None:
        return ""
    return f"{count(band['p50'])}{unit} ({count(band['p10'])} to {count(band['p90'])})"


def _time(days: float, ends: Sequence[float] = ()) -> str:
    """`30.0 days (24.6 to 36.5)`; short ones in hours or minutes."""
    times, unit = next(((n, unit) for n, unit in ((1, "days"), (24, "hours")) if days * n >= 1), (1440, "minutes"))
    usual, *band = (decimal(value * times, 3) for value in (days, *ends))
    return f"{usual} {unit}" + (f" ({' to '.join(band)})" if band else "")


def _weight(band: JSON, small: str, large: str) -> str:
    """In thousands of the small unit where it is that much."""
    times, unit = (1e3, large) if band["p50"] >= 1e3 else (1.0, small)
    return f"{_span({key: value / times for key, value in band.items()})} {unit}"


def _takes(answer: JSON) -> Iterator[Line]:
    total, budget, plan = answer["total"], answer["budget"], answer["plan"]
    if not total:
        yield Line(
            "takes", f"{budget['flops']:.3g} FLOPs ({decimal(budget['pf_days'], 3)} PF-days); --cluster: time and money"
        )
        return
    cost = f", {_span(total['cost'])} {total['currency']}" if total["cost"] else ", no price known (--price)"
    energy = f"{_weight(total['energy_kwh'], 'kWh', 'MWh')}, {_weight(total['co2_kg'], 'kg', 't')} of CO2"
    hours = f"{count(budget['device_hours'])} device-hours"
    days = _time(budget["days"], [total["days"][key] for key in ("p10", "p90")])
    yield Line("takes", f"{days} for these tokens, {hours}{cost}; {energy}")
    keys = answer["layout"]
    axes = " · ".join(f"{key} {keys[key]}" for key in ("tp", "pp", "cp", "ep", "dp") if keys[key] > 1)
    batch = f"batch {count(answer['recipe']['batch_tokens'])} tokens, lr {answer['recipe']['lr']:.2g}"
    layout = f"{axes or 'one device'} · zero {keys['zero_stage']}: {share(answer['mfu'])} MFU"
    yield Line("layout", f"{layout}, {decimal(plan['step_time_s']['p50'], 3)} s a step; {batch}")


def _next(answer: JSON) -> str:
    if answer.get("run_file"):
        return f"scalewright train {answer['run_file']}"
    if answer["plan"]:
        return "add `--out run.yaml --data DIR`, then scalewright train run.yaml; `--law all`, `--serve 1T`"
    return "add `--cluster dgx-h100 --devices 64` for layout, time and cost; `--law all` for every law"


def _ends(row: JSON) -> str:
    """Its days, and whether that is after the deadline."""
    return decimal(row["days"], 3) + (" (late)" if row["meets_deadline"] is False else "")


def _clusters(answer: JSON) -> Iterator[Block]:
    """The same on several clusters, the cheapest first."""
    clusters = sorted(answer.get("clusters", ()), key=lambda row: float(row["order"]))
    if not clusters:
        return
    rows = [
        [row["cluster"], f"{row['devices']:,}", _ends(row), share(row["mfu"]), count(row["params"]),
         _span(row["total"]["cost"]), decimal(row["cost_per_million_tokens"], 3), _span(row["total"]["energy_kwh"]),
         _span(row["total"]["co2_kg"])]
        for row in clusters
    ]  # fmt: skip
    heads = ("cluster", "devices", "days", "MFU", "params", "cost", "a million tokens", "kWh", "kg CO2")
    yield Table(heads, rows, f"side by side; money in {answer['budget'].get('currency', 'USD')}", spare=("kg CO2",))
    kinds = [kind for kind in RENTS if any(kind in row["rents"] for row in clusters)]
    serves = any(row["serve_per_million"] for row in clusters)
    rows = [
        [row["cluster"], decimal(row["price"], 3), *(count(row["rents"].get(kind)) for kind in kinds),
         count(row["buy_below"]), *([_span(row["serve_per_million"])] if serves else ())]
        for row in clusters
    ]  # fmt: skip
    served = ("a million served",) if serves else ()
    yield Table(("cluster", "an hour", *(RENTS[kind] for kind in kinds), "buy below", *served), rows, "rent or buy",
                "The whole run by each way to rent; a device bought for less, over four years, is cheaper")  # fmt: skip


def _doubts(answer: JSON) -> Iterator[Block]:
    flat = answer["flat"]
    if flat and answer["params"]["p10"] < answer["params"]["p90"]:
        sizes, tokens = (" to ".join(map(count, flat[key])) for key in ("params", "tokens"))
        text = f"{sizes} parameters (on {tokens} tokens) come within {100 * flat['within']:.1f}% of that loss"
        yield Line("as good", f"{text} for the same FLOPs: the smallest is the cheapest to serve")
    if answer["disagree"]:
        yield Line("laws", answer["disagree"])
    if answer["plan"] and answer["plan"]["risk"] != "fits":
        yield Line("memory", f"{answer['plan']['risk']} to fit", "warn")


def _serve(answer: JSON) -> Iterator[Block]:
    serve = answer["serve"]
    if not serve:
        return
    best, own, money = serve["params"], serve["optimum"], serve["money"]
    lines = [
        f"in FLOPs: {count(best)} parameters on {count(serve['train_tokens'])} tokens have the same loss, and cost "
        f"{serve['total_flops']:.3g} FLOPs in all, {100 * (1 - serve['ratio']):.1f}% less than {own['total_flops']:.3g}"
    ]
    if money:
        cheap, start = money["best"], money["optimum"]
        bill = f"{_span(cheap['total'])} ({count(cheap['train']['p50'])} to train)"
        dear = f"{count(start['total']['p50'])} ({count(start['train']['p50'])} to train) for {count(start['params'])}"
        lines.append(
            f"in {answer['total']['currency']}: {count(cheap['params'])} on {count(cheap['tokens'])} tokens, "
            f"{bill}, {100 * money['saves']:.1f}% less than {dear}; a FLOP of serving costs "
            f"{decimal(money['weight'], 2)} times one of training"
        )
    if half := serve["half_size"]:
        lines.append(
            f"half the size ({count(half['params'])}) on {count(half['train_tokens'])} tokens pays from "
            f"{count(half['break_even_tokens'])} tokens served on"
        )
    else:
        lines.append("half the size never comes to that loss")
    yield Note(f"training, and serving {count(serve['tokens'])} tokens", lines)


def _epochs(answer: JSON) -> Iterator[Block]:
    epochs = answer["epochs"]
    if epochs:
        read, unique, new = map(count, (answer["model"]["tokens"], epochs["unique"], epochs["worth_tokens"]))
        worth = f"{read} tokens of {unique} are worth {new} new ones"
        last = f"a token of the last epoch {share(epochs['last_token'])} of a new one (half at {epochs['half_at']:.0f})"
        if epochs["params_worth"] < 1:
            last += f", and {share(epochs['params_worth'])} of the parameters would do as well with new ones"
        loses = f"; repeats cost {epochs['loses_nats']:.3f} nats"
        yield Line("epochs", f"{epochs['epochs']:.3g}: {worth}, {last}{loses}", "" if epochs["few"] else "warn")


def _tables(answer: JSON) -> Iterator[Block]:
    held = {"params", "tokens"} <= answer["given"].keys()
    tokens = "best_tokens" if held else "tokens"
    heads = ("law", "params", tokens.replace("_", " "), "loss", "fitted to", "counts", "inside", "corpus", "source")
    rows = [
        [row["name"] + (" *" if row["followed"] else ""), count(row["params"]), count(row[tokens]),
         f"{row['loss']:.3f}" if row["loss"] else "–", " to ".join(map(count, row["range"]["params"])), row["counts"],
         yes(row["inside"]), row["corpus"], row["source"]]
        for row in answer["laws"]
    ]  # fmt: skip
    note = (
        "* followed. "
        + ("Best tokens: of that size; the loss is of the tokens given. " if held else "")
        + "Parameters as each counts them; don't compare losses: each has its own tokenizer and corpus"
    )
    yield Table(heads, rows, "what each law says", note, spare=("source", "corpus", "inside"))
    why = [f"{row['name']}: {row['why']}" for row in answer["laws"] if row["why"]]
    if why:
        yield Note("why some stand apart", why, few=3)
    rows = [[f"{row['times']:g} x", count(row["tokens"]), f"{row['loss']:.3f}"] for row in answer["more_tokens"]]
    yield Table(("tokens", "", "loss"), rows, "the same model on more tokens", detail=not held)
    keys = ("params", "tokens", "tokens_per_param")
    rows = [[row["name"], *(count(row[key]) for key in keys), row["source"]] for row in answer["published"]]
    yield Table(
        ("run", "params", "tokens", "a param", "source"), rows, "published runs nearby", few=3, spare=("source",)
    )
    rows = [
        [row["name"], count(row["batch"]), f"{row['lr']:.2g}" if row["lr"] else "–", yes(row["inside"]), row["source"]]
        for row in answer["recipe"]["fits"]
    ]
    yield Table(("by", "batch (tokens)", "lr", "in its range", "source"), rows, "batch and learning rate", detail=True)


def yes(value: object) -> str:
    return "yes" if value else "no"


def show_fit(answer: JSON) -> Shown:
    """The answer of `budget fit`."""
    law, ends = answer["law"], answer["intervals"]
    rows = [[key, decimal(law[key], 4), *(decimal(end, 3) for end in ends[key])] for key in law]
    head = [Line("law", "L = {E:.4g} + {A:.4g} / N^{alpha:.4g} + {B:.4g} / D^{beta:.4g}".format(**law))]
    left = answer["leave_largest_out"]
    if left:
        size = f"{count(left['params'])} parameters, {count(left['tokens'])} tokens"
        text = f"{left['predicted']:.4f} predicted without it, {left['measured']:.4f} measured"
        text += f": {left['error_pct']:+.2f}% ({size})"
        head.append(Line("largest", text, "good" if abs(left["error_pct"]) <= 2 else "warn"))
    head.append(Line("residual", f"{answer['residual_pct']:.2f}% (median), {answer['worst_pct']:.2f}% at worst"))
    head += [Line("note", text, "warn") for text in answer["notes"]]
    if more := answer["extrapolated"]:
        beyond = f"; {BEYOND}: {more['beyond']:.3g} times the FLOPs of the largest run" if more["beyond"] > 1 else ""
        text = f"{count(more['params'])} parameters on {count(more['tokens'])} tokens: {more['loss']['p50']:.3f}"
        text += f" ({more['loss']['p10']:.3f} to {more['loss']['p90']:.3f}){beyond}"
        head.append(Line("then", text, "warn" if more["beyond"] > 1 else ""))
    blocks: list[Block] = [Table(("", "fit", "p10", "p90"), rows, "intervals of runs drawn again")]
    runs = [[row["name"], count(row["params"]), count(row["tokens"]), f"{row['loss']:.4f}", f"{row['error_pct']:+.2f}%"]
            for row in answer["runs"]]  # fmt: skip
    blocks.append(Table(("run", "params", "tokens", "loss", "fit"), runs, few=15))
    return Shown(f"a law of your own, from {counted(len(runs), 'runs')}", head, blocks)
