"""The commands as functions: names or specs in, plain data out, with the keys of the command line.

    sw.predict("llama-3.1-8b", "dgx-h100", {"devices": 64, "tp": 2}, seq_len=8192)["step_time_s"]["p50"]
    sw.predict("llama-3.1-8b", "dgx-h100", devices=64, tp=2, seq_len=8192)          the same
    sw.plan("llama-3.1-8b", "dgx-h100", devices=64, seq_len=8192, global_batch=512)["best"][0]["layout"]
    sw.train("run.yaml", {"layout.devices": 2}, on_step=print).loss

Answers print as the command does, and show themselves in a notebook (`answers.py`).
Everything is imported when it is called: `import scalewright` stays free.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalewright.spec.errors import UserError

if TYPE_CHECKING:
    from scalewright.answers import Answer
    from scalewright.plan.answer import PlanAnswer
    from scalewright.plan.ask import OwnOptimizer
    from scalewright.spec.hardware.cluster import ClusterSpec
    from scalewright.spec.layout import Layout
    from scalewright.spec.model import ModelSpec
    from scalewright.spec.question import Question
    from scalewright.spec.run import RunSpec
    from scalewright.train.callbacks import Callback
    from scalewright.train.resolve import Overrides
    from scalewright.train.run import Result


def predict(
    model: str | Mapping[str, Any] | ModelSpec | Question, cluster: str | dict[str, Any] | ClusterSpec,
    layout: Layout | Mapping[str, Any] | None = None, seq_len: int | None = None, *, framework: str | None = None,
    software_version: str | None = None, options: Mapping[str, str] | None = None, optimizer: str | None = None,
    diloco: Mapping[str, Any] | None = None, tokens: float | None = None, price: float | None = None,
    currency: str | None = None, goodput: float | None = None, prices: str | None = None,
    commitment: str | None = None, cloud: str | None = None, region: str | None = None, explain: bool = True,
    **keys: Any,
) -> Answer:  # fmt: skip
    """What one layout costs: the keys of `scalewright predict --json`. Raises UserError.

    `model`: or a whole run, as `read` gives it. `keys` are keys of the layout, in the place of `layout` or
    over it; `optimizer` and `diloco` are a run file's `optimizer.name` (or your own: `mine:Lion,lr=1e-3`, which
    is run to measure it) and `diloco`. `price` is of a device and hour, `goodput` the share of the time that
    isn't lost to failures (plan/whole_run.py); without a price it is looked up by `commitment` and `cloud`, in
    your file `prices` first. `region` has the grid whose CO2 is counted (spec/prices.py).
    """
    from scalewright.answers import Answer
    from scalewright.plan.answer import answer
    from scalewright.plan.ask import ask, ask_layout
    from scalewright.plan.whole_run import Market, WholeRun

    given = {**_given(layout), **{key: value for key, value in keys.items() if value is not None}}
    place = find_place(cluster, given.get("devices"))
    question, notes = ask(
        model, place, seq_len, framework=framework, software_version=software_version, options=options,
        optimizer=_optimizer(optimizer), diloco=diloco,
    )  # fmt: skip
    run = WholeRun(tokens, price, currency, goodput, Market(prices, commitment, cloud, region)).of(question)
    run.check()
    prediction, assumed = ask_layout(question, notes, given)
    run = run.on(place)
    unread = [item._asdict() for item in question.unread]
    return Answer(answer(prediction, run=run, explain=explain, assumed=assumed, unread=unread).dump())


def _optimizer(name: str | None) -> str | OwnOptimizer | None:
    if name is None or ":" not in name:
        return name
    from scalewright.train.own_optimizer import measure_named

    return measure_named(name)


def _given(layout: Layout | Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The keys that are stated; the `dp` of an answer follows from the others."""
    keys = layout if layout is None or isinstance(layout, Mapping) else layout.dump()
    return {key: value for key, value in (keys or {}).items() if key != "dp"}


def find_place(cluster: str | dict[str, Any] | ClusterSpec, devices: Any = None) -> ClusterSpec:
    """The cluster; `local` is this machine, its cores shared by so many processes."""
    from scalewright.machine.local import find_cluster

    return find_cluster(cluster, devices if isinstance(devices, int) and 0 < devices < 10**4 else 1)


def plan(
    model: str | Mapping[str, Any] | ModelSpec | Question, cluster: str | dict[str, Any] | ClusterSpec,
    devices: int | None = None, seq_len: int | None = None, global_batch: int | None = None, *,
    nodes: int | None = None, global_batch_tokens: int | None = None, objective: str = "time",
    fix: Mapping[str, Any] | None = None, memory_headroom: float | None = None, margin: float = 0.02, top: int = 5,
    precision: str = "auto", framework: str | None = None, software_version: str | None = None,
    options: Mapping[str, str] | None = None, optimizer: str | None = None, diloco: Mapping[str, Any] | None = None,
    tokens: float | None = None, price: float | None = None, currency: str | None = None, goodput: float | None = None,
    prices: str | None = None, commitment: str | None = None, cloud: str | None = None, region: str | None = None,
    scaling: Sequence[int] | None = None, why_not: Mapping[str, Any] | None = None,
    yours: Layout | Mapping[str, Any] | None = None, out: str | Path | None = None, force: bool = False,
    data: str | None = None, emit: bool = False, explain: bool = True, tell: Callable[[int, int], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Answer:  # fmt: skip
    """The best layouts of a run: the keys of `scalewright plan --json`. Raises UserError.

    `fix` holds axes to a value or a list of them; within `margin` of the fastest the simplest layout comes
    first, and `simpler_than` names the fastest; `why_not` asks about one layout; `yours` is a layout to beat:
    its cost, and the gain of single changes to it (a mapping needs neither sizes nor precision); `scaling`
    plans the same run on other device counts; `out` writes the run file (over one that was edited only with
    `force`). `emit` answers with the file of a question (`read`) in the best layout, in its trainer's words,
    and what changed in it; `out` is where it is written, then. `tell(done, total)` is called as the search
    goes, and one that `stop()` has ended answers with what it has: `complete` is false then.
    """
    from scalewright.answers import Answer
    from scalewright.plan import defaults
    from scalewright.plan.ask import answer_plan, ask
    from scalewright.plan.search.objective import Goal
    from scalewright.plan.whole_run import Market, WholeRun
    from scalewright.spec.question import Question

    if emit:  # refused at once, not after the search
        from scalewright.emit.in_place import check_rewrite

        check_rewrite(model, out, data, force)
    place = find_place(cluster, devices)
    question, notes = ask(
        model, place, seq_len, framework=framework, software_version=software_version, options=options,
        optimizer=_optimizer(optimizer), diloco=diloco,
    )  # fmt: skip
    counts = [defaults.check_whole("devices", count) for count in scaling or ()]
    wanted = {"devices": devices, "nodes": nodes, "global_batch": global_batch}
    wanted |= {"global_batch_tokens": global_batch_tokens}
    sizes = defaults.resolve_sizes(wanted, place, question.seq_len)
    assumed = [*notes.length]
    if question.states_layout:
        question = question.resized(sizes.get("devices"), sizes.get("global_batch"))
        assumed += question.notes({*sizes, "micro_batch"})  # a plan decides on the micro-batch
        layout = question.layout
        sizes = {"devices": layout.devices, "global_batch": layout.global_batch}
        precision = layout.precision if precision == "auto" else precision
        yours = {} if yours is None else yours
    sizes, filled = defaults.plan_sizes(sizes, counts, place)
    goal = Goal(
        sizes["devices"], sizes["global_batch"], objective=objective, fixed=fix or {}, precision=precision,
        headroom=memory_headroom, top=top, margin=margin, price=price,
    )  # fmt: skip
    cost = None
    if yours is not None:  # before the search: a layout that is refused is refused at once
        stated = "auto" if precision == "any" else precision
        sized = {**sizes, "precision": question.layout.precision if question.states_layout else stated}
        cost = predict(question, place, {**sized, **yours} if isinstance(yours, Mapping) else yours)
    answer = answer_plan(
        question, goal, [*assumed, *filled, *notes.used(max([goal.devices, *counts]), place)],
        run=WholeRun(tokens, price, currency, goodput, Market(prices, commitment, cloud, region)), counts=counts,
        why_not=why_not, out=None if emit else out, data=data, explain=explain, tell=tell, stop=stop, force=force,
    )  # fmt: skip
    if cost is not None:
        answer = answer.beside(cost)
    if emit:
        changed = seq_len is not None or optimizer is not None or diloco is not None  # more than its layout
        own = model if isinstance(model, Question) and not changed else question
        answer = replace(answer, emitted=_emitted(own, answer, out, force))
    trainer = question.form or question.framework
    source = {"trainer": trainer, "source": question.source} if question.source is not None else None
    unread = [item._asdict() for item in question.unread]
    return Answer(replace(answer, source=source, unread=unread).dump())


def _emitted(question: Question, answer: PlanAnswer, out: str | Path | None, force: bool) -> dict[str, object]:
    """The question's own file in the best layout, and what changed in it; writes it to `out`."""
    from scalewright.emit.in_place import rewrite
    from scalewright.plan.predict import layout_keys
    from scalewright.spec.layout import Layout

    best = answer.plan.trainable if question.form is None else answer.plan.best[0]
    none = {"files": {}, "diff": "", "in_place": False, "written": []}
    if best is None:
        return none | {"refused": "`train` runs no layout of this plan"}
    try:
        layout = Layout.parse(_given(layout_keys(best.prediction.request)), "layout")
        rewritten = rewrite(question, layout, answer.run_yaml)
    except UserError as error:  # the plan is worth showing without it
        return none | {"refused": str(error)}
    written = rewritten.save(Path(out), force, question.source) if out is not None else []
    return rewritten.dump() | {"written": [str(path) for path in written]}


def goodput(
    source: str | Path | None = None, *, devices: int | None = None, cluster: str | ClusterSpec | None = None,
    params: float | None = None, save_s: float | None = None, restart_s: float | None = None,
    detect_s: float | None = None, failures_per_device_hour: float | None = None, interval_s: float | None = None,
    spares: int | None = None, storage_bytes_per_s: float | None = None, days: float | None = None,
    price: float | None = None, currency: str | None = None, prices: str | None = None, commitment: str | None = None,
    cloud: str | None = None, region: str | None = None, trials: int = 200, seed: int = 0,
) -> Answer:  # fmt: skip
    """The share of a run's time that trains, and what takes the rest: the keys of `scalewright goodput --json`.

    `source`: a run file, or a run's folder, whose own ledger is in the answer; or neither, with `devices`. `params`
    are those of the model (12 bytes each in a checkpoint), `storage_bytes_per_s` what all devices write together,
    `days` days of work. What isn't given is usual (goodput/setting.py), or by the list (`price`). Raises UserError.
    """
    from scalewright.answers import Answer
    from scalewright.goodput.answer import answer
    from scalewright.goodput.facts import paid, read_facts
    from scalewright.goodput.setting import Asked
    from scalewright.plan.whole_run import Market

    asked = Asked(
        devices, save_s, restart_s, detect_s, failures_per_device_hour, interval_s, spares, storage_bytes_per_s, days,
    )  # fmt: skip
    asked.check()
    facts = read_facts(source, cluster, devices, params)
    money = paid(facts, price, currency, Market(prices, commitment, cloud, region))
    return Answer(answer(asked, facts.run, money, step=facts.step, ledger=facts.ledger, trials=trials, seed=seed))


def inference(
    model: str | Mapping[str, Any] | ModelSpec, cluster: str | dict[str, Any] | ClusterSpec,
    input_len: float | None = None, output_len: float | None = None, *, concurrency: float | None = None,
    rate: float | None = None, precision: str | None = None, kv_precision: str | None = None,
    layout: Mapping[str, Any] | None = None, engine: str | None = None, engine_version: str | None = None,
    ttft_s: float | None = None, tpot_s: float | None = None, prefix_hit: float | None = None,
    speculate: Mapping[str, Any] | None = None, max_seqs: int | None = None, memory_share: float | None = None,
    offline: bool = False, price: float | None = None, currency: str | None = None, prices: str | None = None,
    commitment: str | None = None, cloud: str | None = None, region: str | None = None, search: bool = False,
    devices: int | None = None, explain: bool = True, measured: str | Path | Mapping[str, Any] | None = None,
) -> Answer:  # fmt: skip
    """What serving a model takes and gives: the keys of `scalewright inference --json`. Raises UserError.

    Lengths are means, in tokens; `concurrency` is of requests in flight, `rate` of requests a second; with neither,
    `ttft_s` and `tpot_s` (seconds) say how many. `layout` has `tp`, `pp`, `ep`, `replicas`, `attention_dp`, `prefill`;
    `search` finds the cheapest, of at most `devices`. `speculate`: `tokens`, `accept`, `cost` of guesses.
    `measured`: what `scalewright bench serve` wrote, of the server that is asked about.
    """
    from scalewright.answers import Answer
    from scalewright.inference.answer import answer_inference
    from scalewright.inference.ask import Wanted, ask
    from scalewright.inference.checks import check_types
    from scalewright.inference.rehearse import as_measured, read_server, rehearsed
    from scalewright.plan.whole_run import Market, WholeRun

    given = Wanted(
        input_len, output_len, concurrency, rate, precision, kv_precision, layout, engine, engine_version, ttft_s,
        tpot_s, prefix_hit, speculate, max_seqs, memory_share, offline,
    )  # fmt: skip
    check_types({**vars(given), "price": price, "devices": devices})
    server = None if measured is None else read_server(measured)
    given = given if server is None else as_measured(given, server, search)
    place = find_place(cluster, devices)
    question, asked = ask(model, place, given, searched=search)
    paid = WholeRun(1.0, price, currency, market=Market(prices, commitment, cloud, region))
    answer = answer_inference(question, asked, paid, search, devices, explain)
    return Answer(answer if server is None else answer | rehearsed(question, asked, server))


def train(
    run: str | Path | dict[str, Any] | RunSpec, overrides: Overrides = (), *, steps: int | None = None,
    simulate: bool = False, quiet: bool = False, force: bool = False, memory_check: bool = True,
    on_start: Callable[[list[int]], None] | None = None, on_step: Callback | None = None,
    on_valid: Callback | None = None, on_event: Callback | None = None,
) -> Result:  # fmt: skip
    """Trains what a run file (or a RunSpec, or plain data) describes, with overrides.

    These are `key=value` texts, or a dictionary: `{"layout.devices": 2}`. `steps` stops early, at that step
    of the run. `simulate` lets CPU processes stand in for more devices than this machine has. `force`
    replaces files in the run's folder that no run wrote. `memory_check` false also starts what needs more
    memory than is free. `on_start` gets the local workers' process ids.

    `on_step(row)` gets the training rows of metrics.jsonl as they are written, `on_valid` those of
    validation, `on_event` the lines of events.jsonl, all in this process. One that returns "stop" lets the
    run save and end with the next step or two; the result is as usual then. An exception ends the run.

    Raises UserError for a mistake in the run, RunError when it failed, Stopped when a signal asked it to stop
    and it saved.
    """
    from scalewright.dry_run.fits_here import check_memory
    from scalewright.train.run import train as train_run

    return train_run(
        run, overrides, steps=steps, simulate=simulate, quiet=quiet, force=force,
        check_memory=check_memory if memory_check else None, on_start=on_start, on_step=on_step, on_valid=on_valid,
        on_event=on_event,
    )  # fmt: skip


def read(source: str | Path, model: str | None = None) -> Question:
    """A run as another trainer's configuration, script or command line has it, or a run file of ours.

    It stands in the place of a model in `predict` and `plan`; `model`: in the place of the file's. Raises UserError.
    """
    from scalewright.emit.question import question

    return question(str(source), model)


def budget(
    *, flops: float | None = None, device_hours: float | None = None, days: float | None = None,
    money: float | None = None, energy: float | None = None, loss: float | None = None, params: float | None = None,
    tokens: float | None = None, model: str | Mapping[str, Any] | ModelSpec | None = None,
    cluster: str | dict[str, Any] | ClusterSpec | None = None, devices: int | None = None, law: str | None = None,
    serve: float | None = None, unique: float | None = None, like: str | None = None, vocab: int | None = None,
    seq_len: int = 4096, price: float | None = None, currency: str | None = None, prices: str | None = None,
    commitment: str | None = None, cloud: str | None = None, goodput: float | None = None, region: str | None = None,
    pue: float | None = None, out: str | Path | None = None, data: str | None = None, force: bool = False,
    clusters: Sequence[str] = (), tell: Callable[[str], None] = lambda text: None,
) -> Answer:  # fmt: skip
    """Size, tokens, layout, loss and cost of a budget, or what a size and its tokens take: `scalewright budget --json`.

    One amount: `flops`, `device_hours`, `money`, `energy` (kWh), `loss` (nats a token), or `days` on `devices` of
    `cluster`; `params` (or a `model`) and `tokens` hold one of the two, and both together are priced. `law`: a name, or
    "all" to see every one. `serve`: tokens to serve later; `unique`: tokens at hand, more are repeats. `price` is of a
    device and hour. `clusters`: the same on each, side by side; the answer is of the cheapest. Raises UserError.
    """
    from scalewright.answers import Answer
    from scalewright.budget.amounts import Ask
    from scalewright.budget.answer import answer, side_by_side, why_no_run_file
    from scalewright.budget.solve import solve_budget
    from scalewright.plan.whole_run import Market
    from scalewright.spec.common.files import check_replaceable, write_signed
    from scalewright.spec.presets import load_model_spec

    if out is not None:
        check_replaceable(Path(out), force)
    ask = Ask(
        flops=flops, device_hours=device_hours, days=days, money=money, energy=energy, loss=loss, params=params,
        tokens=tokens, model=None if model is None else load_model_spec(model), devices=devices, law_name=law,
        serve=serve, unique=unique, like=like, vocab=vocab, seq_len=seq_len, price=price, currency=currency,
        goodput=goodput, market=Market(prices, commitment, cloud, region), pue=pue,
    )  # fmt: skip
    if clusters and cluster is not None:
        raise UserError("--cluster and --clusters are both given", "budget", "keep one of them")
    places = [None if name is None else find_place(name, devices) for name in clusters or (cluster,)]
    all_solved = [solve_budget(ask, place, tell) for place in places]
    rows = side_by_side(all_solved) if clusters else []
    solved = all_solved[min(range(len(rows)), key=lambda at: rows[at]["order"])] if rows else all_solved[0]
    keys = answer(solved, None if out is None else Path(out), data) | ({"clusters": rows} if rows else {})
    if out is not None:
        if keys["run_yaml"] is None:
            raise why_no_run_file(solved)
        write_signed(out, keys["run_yaml"], force)
    return Answer(keys)


def explain(term: str, run: str | Path | None = None) -> Answer:
    """What a term of the field means, and its number for a run: the keys of `scalewright explain --json`.

    `run`: a run file, a run's folder, or JSON of `plan` or `predict`; without one the newest folder below ./runs, else
    an example. Raises UserError for an unknown term, with the nearest ones.
    """
    from scalewright.answers import Answer
    from scalewright.learn.explain.answer import explain as look_up

    return Answer(look_up(term, run))


def lab(
    name: str, *, short: bool = False, seed: int = 0, out: str | Path | None = None, force: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> Answer:  # fmt: skip
    """Runs a lab's experiment on this machine: the keys of `scalewright lab NAME --json`.

    `short`: with fewer sizes and repetitions; `out`: a page of it, `force` replaces a file there. Raises UserError for
    an unknown lab, with the nearest ones, or where a package that it needs is missing.
    """
    from scalewright.answers import Answer
    from scalewright.learn.lab.answer import run_lab
    from scalewright.report.answer import write_answer

    keys = run_lab(name, train, short=short, seed=seed, tell=tell)
    if out is not None:
        keys["page"] = str(out)
        write_answer(keys, out, force)
    return Answer(keys)


def diagnose(
    *paths: str | Path, model: str | None = None, cluster: str | None = None, layout: Mapping[str, Any] | None = None,
    seq_len: int | None = None, configuration: str | Path | None = None, what_if: Sequence[str] = (),
    against: str | Path | None = None,
) -> Answer:  # fmt: skip
    """Where the time of a run went and what would help, with the keys of `scalewright diagnose --json`.

    Paths are traces of PyTorch's profiler, flight recorder dumps or memory snapshots, gzipped or not, or
    folders of them; or logs of training, to which `configuration` (another trainer's, as `read` takes it),
    `model`, `cluster`, `layout` and `seq_len` add what they don't state, or a run's folder. `what_if` are
    costs of a trace to change, as `compute=0.8`; `against` is a path of the same, or JSON of `diagnose`,
    `predict` or `plan`, to compare with. Raises UserError for a path that holds none.
    """
    from scalewright.answers import Answer
    from scalewright.diagnose.diagnose import diagnose as diagnose_paths
    from scalewright.diagnose.logs.given import Given

    configured = read(configuration, model) if configuration is not None else None
    given = Given(model, cluster, dict(layout or {}), seq_len, configured)
    other = Path(against) if against is not None else None
    return Answer(diagnose_paths([Path(path) for path in paths], given, what_if, other))
