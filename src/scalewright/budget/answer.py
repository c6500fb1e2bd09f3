"""The answer of a budget: what it takes and brings, each with its band, and every law beside the one that was followed.

params, tokens   the followed law's; p10 and p90: from the lowest to the highest of the laws that ask the same question
loss             that law's, and the error that such fits had (laws.py)
days, cost       the plan's step time from p10 to p90; prices from the lowest to the highest; power, PUE and grid
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from scalewright.budget.amounts import Ask, given_keys
from scalewright.budget.laws import FOLDER, USUAL, Law, find_law, laws, worth_of
from scalewright.budget.recipe import recipes, usual
from scalewright.budget.serve import serve, serve_in_money
from scalewright.budget.shape import MIXTURE, make_shape, size_of
from scalewright.budget.solve import Solved, question_of
from scalewright.budget.solve import sizes as sizes_of
from scalewright.inference.answer import answer_inference
from scalewright.inference.ask import Wanted
from scalewright.inference.ask import ask as ask_serving
from scalewright.plan.search.run_file import run_file
from scalewright.plan.whole_run import LEFT_OUT
from scalewright.spec.base import read_yaml
from scalewright.spec.common.formatting import commented, count, counted
from scalewright.spec.errors import UserError
from scalewright.spec.flops import flops_per_token
from scalewright.spec.prices import COMMITMENTS, Band, buy_below, footprint, price_of, product
from scalewright.spec.run import CheckpointSpec, OptimizerSpec, ScheduleSpec, TrainSpec
from scalewright.spec.tensors import count as count_parameters

FLAT = 0.005  # of the loss: sizes within it are as good
FEW_EPOCHS = 4  # repeats that cost next to nothing (Muennighoff et al. 2023)
NEIGHBOURS = 5
INPUT, OUTPUT, TPOT_S, TTFT_S = 1024.0, 256.0, 0.05, 2.0  # a request that is served, and how fast
MOST_WARMUP = 2000  # steps: Llama 3's is 8,000, DeepSeek's 2,000


def answer(solved: Solved, out: Path | None = None, data: str | None = None) -> dict[str, Any]:
    """The keys of `budget --json`. Raises UserError where no run file can be made for `out`."""
    ask, law = solved.ask, solved.law
    notes = [f"law {law.name}"] if ask.law_name in (None, "all") else []
    loss = _loss(solved, notes)
    rows = [_row(solved, other) for other in _shown(ask)]
    bands = _bands(solved)
    takes = takes_of(solved, notes)
    serving = _serving(solved, takes["total"], notes) if ask.serve is not None else None
    keys: dict[str, Any] = {
        "given": given_keys(ask), "budget": takes["budget"], "model": _model(solved),
        "params": bands[0], "tokens": bands[1], "tokens_per_param": solved.tokens / solved.params,
        "loss": loss, "flat": _flat(solved), "mfu": takes["mfu"], "layout": takes["layout"],
        "total": takes["total"], "plan": takes["plan"], "meets_deadline": solved.meets_deadline,
        "recipe": _recipe(solved, loss), "laws": rows, "disagree": disagree(rows, ask), "more_tokens": _more(solved),
        "epochs": _epochs(solved), "serve": serving, "published": neighbours(solved.params, solved.tokens),
        "assumed": [*notes, *solved.notes, *takes["assumed"]],
    }  # fmt: skip
    run = run_text(solved, data)
    return keys | {"run_yaml": run, **({"run_file": str(out)} if out is not None and run else {})}


def _shown(ask: Ask) -> list[Law]:
    """All laws, the one that was named, or those that ask the same question."""
    if ask.law_name == "all":
        return list(laws().values())
    return [law for law in laws().values() if law is ask.law or (ask.law_name is None and law.spread)]


def _question(solved: Solved, law: Law) -> tuple[float, float]:
    """(parameters, tokens) of another law for the same FLOPs, or for what is fixed of the two."""
    ask = solved.ask
    free = ask.params is None and ask.model is None and ask.tokens is None
    params = None if free or (ask.tokens is not None and not ask.fixed) else float(size_of(solved.model, law.counts))
    if params is not None and ask.params is not None and law.counts == solved.law.counts:
        params = ask.params  # as it was given; the model is that to within a few percent
    asked = replace(ask, law_name=law.name, params=params, model=None, loss=None, days=None, money=None, energy=None,
                    device_hours=None, flops=None)  # fmt: skip
    amount = solved.flops if free or ask.amount is not None else None
    return sizes_of(asked, amount)


def _row(solved: Solved, law: Law) -> dict[str, Any]:
    """What one law makes of the same question; parameters in its own count."""
    params, tokens = _question(solved, law)
    loss = law.predict(params, tokens, solved.ask.unique)
    return {
        "name": law.name, "title": law.title, "params": params, "tokens": tokens, "counts": law.counts,
        "best_tokens": law.tokens(params),
        "loss": None if loss is None else float(loss), "tokenizer": law.tokenizer, "corpus": law.corpus,
        "range": {key: list(ends) for key, ends in law.range.items()},
        "inside": law.inside(params, law.k * params * tokens), "followed": law is solved.law,
        "why": law.why or None, "source": law.source,
    }  # fmt: skip


def _bands(solved: Solved) -> tuple[dict[str, float], dict[str, float]]:
    """Parameters (in the followed law's count) and tokens: that law's, between the least and the most of those that ask
    the same question. The run's own, of a real shape, are `model`'s."""
    ask, own = solved.ask, _question(solved, solved.law)
    found = [own]
    for law in laws().values():
        if law.spread and solved.model.moe is None:
            params, tokens = _question(solved, law)
            found.append((params * solved.params / size_of(solved.model, law.counts), tokens))
    bands = [
        {"p10": min(some), "p50": value, "p90": max(some)}
        for value, some in zip(own, zip(*found, strict=True), strict=True)
    ]
    for at, given in enumerate((ask.params or ask.model, ask.tokens)):
        if given is not None:
            bands[at] = dict.fromkeys(("p10", "p50", "p90"), own[at])
    return bands[0], bands[1]


def _loss_law(law: Law) -> Law:
    """The law whose loss is shown: the followed one's, the usual one's where that has none."""
    return law if law.form == "parametric" or law.loss or law.loss_of_flops else find_law(USUAL)


def _loss(solved: Solved, notes: list[str]) -> dict[str, Any]:
    law = _loss_law(solved.law)
    if law is not solved.law:
        notes.append(f"loss by {law.name}: {solved.law.name} has none")
    if solved.model.moe is not None and law.counts != MIXTURE:
        notes.append(f"loss as of a dense model with the active parameters, which {law.name} is of: an upper bound")
    params = size_of(solved.model, law.counts)
    value, error = float(law.predict(params, solved.tokens, solved.ask.unique)), law.error(params, solved.tokens)
    if value > (guess := math.log(solved.model.vocab_size)):
        notes.append(
            f"the law's loss, {value:.3g}, is worse than guessing, whose {guess:.3g} is shown: far from its range"
        )
        value = guess
    inside = law.inside(params, law.k * params * solved.tokens)
    return {
        "p10": value * (1 - error), "p50": value, "p90": value * (1 + error), "unit": "nats/token", "law": law.name,
        "tokenizer": law.tokenizer, "corpus": law.corpus, "inside": inside,
    }  # fmt: skip


def _flat(solved: Solved) -> dict[str, Any] | None:
    """The sizes that, with the same FLOPs, come within 0.5% of the best loss; None of a law without such losses."""
    law = _loss_law(solved.law)
    if law.form != "parametric":
        return None
    size = size_of(solved.model, law.counts)
    flops = law.k * size * solved.tokens
    grid = size * np.exp(np.linspace(-6, 6, 6001))
    losses = law.predict(grid, flops / (law.k * grid), solved.ask.unique)
    good = grid[losses <= losses.min() * (1 + FLAT)]
    low, high = float(good[0]), float(good[-1])
    return {"within": FLAT, "params": [low, high], "tokens": [flops / (law.k * high), flops / (law.k * low)]}


def _more(solved: Solved) -> list[dict[str, float]]:
    """What the same model has after more tokens: the optimum is no end."""
    law = _loss_law(solved.law)
    params = size_of(solved.model, law.counts)
    return [
        {"times": times, "tokens": times * solved.tokens,
         "loss": float(law.predict(params, times * solved.tokens, solved.ask.unique))}
        for times in (0.5, 1.0, 2.0, 5.0, 10.0)
    ]  # fmt: skip


def _epochs(solved: Solved) -> dict[str, float | bool] | None:
    """How often the tokens at hand are read, and what the repeats are worth."""
    unique, law = solved.ask.unique, find_law("muennighoff")
    if unique is None:
        return None
    epochs = max(1.0, solved.tokens / unique)
    decay, own = law.repeats["tokens"], _loss_law(solved.law)
    params = size_of(solved.model, own.counts)
    loses = own.predict(params, solved.tokens, unique) - own.predict(params, solved.tokens)
    return {
        "unique": unique, "epochs": epochs, "worth_tokens": float(worth_of(solved.tokens, unique, decay)),
        "params_worth": float(own.worth(params, solved.tokens, unique)[0]) / params,  # a share of them
        "last_token": math.exp(-(epochs - 1) / decay), "half_at": 1 + decay * math.log(2), "few": epochs <= FEW_EPOCHS,
        "loses_nats": float(loses),
    }  # fmt: skip


def disagree(rows: list[dict[str, Any]], ask: Ask) -> str | None:
    """How far the laws are apart, in a sentence."""
    key = "tokens" if ask.params is not None or ask.model is not None else "params"
    if len(rows) < 2 or ask.fixed:
        return None
    low, high = min(rows, key=lambda row: float(row[key])), max(rows, key=lambda row: float(row[key]))
    times = high[key] / low[key]
    reasons = [f"{row['name']}: {row['why']}" for row in (low, high) if row["why"]]
    words = {"params": "parameters", "tokens": "tokens"}[key]
    text = f"{count(low[key])} {words} ({low['name']}) to {count(high[key])} ({high['name']}), {times:.2g} times"
    counts = {row["counts"] for row in (low, high)}
    if len(counts) > 1 and key == "params":
        reasons.append("they count other parameters")
    return text + (f"; {'; '.join(reasons)}" if reasons else "; other corpora and schedules")


def _model(solved: Solved) -> dict[str, Any]:
    model, sequence = solved.model, solved.ask.seq_len
    sizes = count_parameters(model)
    return {
        "name": model.name, "params": sizes.total, "active": sizes.active, "tokens": solved.tokens,
        "non_embedding": size_of(model, "non-embedding"),
        "layers": model.num_hidden_layers, "hidden": model.hidden_size, "heads": model.num_attention_heads,
        "kv_heads": model.kv_heads, "intermediate": model.intermediate_size, "vocab": model.vocab_size,
        "seq_len": sequence, "flops_per_token": flops_per_token(model, sequence),
    }  # fmt: skip


def _recipe(solved: Solved, loss: dict[str, Any]) -> dict[str, Any]:
    rows = recipes(solved.params, size_of(solved.model, "non-embedding"), solved.tokens, loss["p50"])
    batch, rate = usual(rows)
    if solved.plan is not None:
        batch = float(solved.plan.goal.global_batch * solved.ask.seq_len)
    return {"batch_tokens": batch, "lr": rate, "steps": math.ceil(solved.tokens / batch), "fits": rows}


def _serving(solved: Solved, total: dict[str, Any] | None, notes: list[str]) -> dict[str, Any]:
    law = solved.law if solved.law.form == "parametric" else find_law(USUAL)
    if law is not solved.law:
        notes.append(f"serving by {law.name}: {solved.law.name} has no loss of a size and its tokens")
    params, tokens = _question(solved, law)
    if solved.place is not None or law is not solved.law:
        params, tokens = size_of(solved.model, law.counts), solved.tokens
    served = solved.ask.serve or 0.0
    keys = serve(law, params, tokens, served)
    notes.append("serving in FLOPs: each costs as much as one of training")
    if total is None or total["cost"] is None:
        return keys | {"money": None}
    training = Band(*(total["cost"][key] for key in ("p10", "p50", "p90")))
    money = serve_in_money(law, params, tokens, served, training, lambda size: _million(solved, law, size))
    if money is None:
        notes.append(f"no price of serving on {solved.place.name if solved.place else 'no cluster'}")
    else:
        words = f"{INPUT:g} tokens in and {OUTPUT:g} out a request, within {TPOT_S:g} s a token and {TTFT_S:g} s to the"
        notes.append(f"serving in money: {words} first, the cheapest layout of vLLM in 16 bits")
    return keys | {"money": money}


def _million(solved: Solved, law: Law, params: float) -> Band | None:
    """What a million tokens, in and out, cost where a model of this size is served; None where it can't be."""
    ask, place = solved.ask, solved.place
    if place is None:
        return None
    if params == size_of(solved.model, law.counts):
        model = solved.model
    else:
        model = make_shape(params, law.counts, ask.like, solved.model.vocab_size)
    try:
        question, load = ask_serving(model, place, Wanted(INPUT, OUTPUT, ttft_s=TTFT_S, tpot_s=TPOT_S), searched=True)
        cost = answer_inference(question, load, ask.paid, True, None, False)["cost_per_million"]
    except (UserError, KeyError):
        return None
    alone = cost["output_alone_band"]
    return Band(*(cost["all"] * alone[key] / alone["p50"] for key in ("p10", "p50", "p90")))


def takes_of(solved: Solved, notes: list[str]) -> dict[str, Any]:
    """What it takes: money, time, energy; nulls where there is no cluster."""
    own = solved.flops
    exact = flops_per_token(solved.model, solved.ask.seq_len) * solved.tokens
    budget: dict[str, Any] = {"flops": own, "model_flops": exact, "pf_days": own / 8.64e19}
    which = "active" if solved.model.moe is not None and solved.law.counts == "total" else solved.law.counts
    notes.append(f"FLOPs = {solved.law.k:g} x parameters ({which}) x tokens; model_flops has attention, too")
    empty = dict.fromkeys(("device_hours", "days", "cost", "energy_kwh", "co2_kg"))
    if solved.plan is None or solved.place is None or solved.devices is None:
        return {"budget": budget | empty, "mfu": None, "layout": None, "total": None, "plan": None, "assumed": []}
    ask, best = solved.ask, solved.plan.best[0]
    hours = solved.device_hours
    days = solved.days
    prediction = best.prediction
    early, late = (seconds / prediction.step_time_s for seconds in prediction.band_s)
    spread = Band(hours * early, hours, hours * late)
    print_ = footprint(spread, solved.place, ask.market.region, ask.pue)
    price = solved.price
    cost = None if price is None else hours * price[1]
    total: dict[str, Any] = {
        "days": spread.times(days / hours).dump(),
        "device_hours": spread.dump(),
        "cost": None if price is None else product(spread, Band(*price)).dump(),
        "energy_kwh": print_.energy_kwh.dump(),
        "co2_kg": print_.co2_kg.dump(),
        "currency": solved.currency, "goodput": solved.goodput, "left_out": LEFT_OUT,
    }  # fmt: skip
    budget |= {
        "device_hours": hours, "days": days, "cost": cost, "energy_kwh": print_.energy_kwh.median,
        "co2_kg": print_.co2_kg.median, "currency": solved.currency, "price": None if price is None else price[1],
    }  # fmt: skip
    facts = prediction.dump()
    chosen = {
        "devices": solved.devices, "device": solved.place.device.id, "cluster": solved.place.name,
        "step_time_s": facts["step_time_s"], "tokens_per_s": facts["tokens_per_s"], "memory_gib": facts["memory_gib"],
        "fits": facts["fits"], "risk": facts["risk"], "bottleneck": facts["bottleneck"],
    }  # fmt: skip
    assumed = [*question_of(solved)[1], *print_.assumed]
    if ask.goodput is None:
        spares = round((solved.paid - 1) * solved.devices)
        held = f", {counted(spares, 'spare devices')} paid for as the others" if spares else ""
        words = f"failures as in Llama 3's run, saves at their best interval{held}"
        assumed.append(f"goodput {100 * solved.goodput:.4g}% ({words})")
    return {
        "budget": budget,
        "mfu": facts["mfu"],
        "layout": best.keys,
        "total": total,
        "plan": chosen,
        "assumed": assumed,
    }


def side_by_side(all_solved: Sequence[Solved]) -> list[dict[str, Any]]:
    """A row for each cluster, of the same question; `order`: by the cost of a FLOP, else by days; late ones last."""
    rows: list[dict[str, Any]] = []
    for solved in all_solved:
        takes = takes_of(solved, [])
        budget, total, million = takes["budget"], takes["total"], solved.tokens / 1e6
        rows.append({
            "cluster": solved.place.name if solved.place else None, **takes["plan"], "mfu": takes["mfu"],
            "params": count_parameters(solved.model).total, "tokens": solved.tokens,
            **{key: value for key, value in budget.items() if key != "model_flops"},
            "total": total, "meets_deadline": solved.meets_deadline,
            "cost_per_million_tokens": None if budget["cost"] is None else budget["cost"] / million,
            "energy_per_million_tokens": budget["energy_kwh"] / million, **_markets(solved, budget["device_hours"]),
        })  # fmt: skip
    for_a_flop = [math.inf if row["cost"] is None else row["cost"] / row["flops"] for row in rows]
    late = [row["meets_deadline"] is False for row in rows]
    ranked = sorted(range(len(rows)), key=lambda at: (late[at], for_a_flop[at], rows[at]["days"]))
    for order, at in enumerate(ranked):
        rows[at]["order"] = order + 1
    return rows


def _markets(solved: Solved, hours: float) -> dict[str, Any]:
    """The run's cost by each commitment that the list has, the price below which buying pays, and that of serving."""
    asked, place = solved.ask.market, solved.place
    rents: dict[str, float] = {}
    for commitment in COMMITMENTS:
        with suppress(UserError):
            rents[commitment] = hours * price_of(place or "", commitment, asked.cloud, asked.prices).median
    buy = None if solved.price is None or place is None else buy_below(solved.price[1], place)
    served = _million(solved, solved.law, solved.params) if solved.ask.serve is not None else None
    return {"rents": rents, "buy_below": buy, "serve_per_million": served.dump() if served else None}


@lru_cache(maxsize=1)
def _published() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read_yaml(FOLDER / "published.yaml")
    return rows


def neighbours(params: float, tokens: float) -> list[dict[str, Any]]:
    """Published runs of about this size and these tokens, the nearest first."""

    def distance(row: dict[str, Any]) -> float:
        return math.hypot(math.log(row.get("active", row["params"]) / params), math.log(row["tokens"] / tokens))

    rows = sorted(_published(), key=distance)[:NEIGHBOURS]
    return [row | {"tokens_per_param": row["tokens"] / row.get("active", row["params"])} for row in rows]


def run_text(solved: Solved, data: str | None = None) -> str | None:
    """The run file: the planned layout, the tokens, the recipe's batch and rate; None where `train` runs none such."""
    if solved.plan is None:
        return None
    question, batch = solved.plan.question, solved.plan.goal.global_batch * solved.ask.seq_len
    rate = usual(recipes(solved.params, size_of(solved.model, "non-embedding"), solved.tokens, None))[1]
    warmup, saves = int(min(MOST_WARMUP, max(1, solved.tokens / batch // 50))), solved.rhythm
    decided = {
        "optimizer": OptimizerSpec(lr=float(f"{rate:.3g}")), "lr_schedule": ScheduleSpec(warmup_steps=warmup),
        "train": TrainSpec(tokens=float(f"{solved.tokens:.6g}")),
        "checkpoint": CheckpointSpec(every=max(1, round(saves.best_s / solved.plan.best[0].prediction.step_time_s))),
    }  # fmt: skip
    text = run_file(replace(solved.plan, question=replace(question, run=question.run.model_copy(update=decided))), data)
    if text is None:
        return None
    active = " active" if solved.model.moe is not None else ""
    size = f"{count(solved.params)}{active} parameters, {count(solved.tokens)} tokens"
    return commented(f"{size}, {solved.flops:.3g} FLOPs by {solved.law.name}.") + text


def why_no_run_file(solved: Solved) -> UserError:
    """What to do where a run file was asked for and there is none."""
    if solved.plan is None:
        return UserError("a run file needs its machine", "--out", "add --cluster dgx-h100 --devices 64")
    return UserError(f"`train` can't run this layout: {solved.plan.best[0].untrainable}", "--out", "leave out --out")
