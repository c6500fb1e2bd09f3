"""What is known of a run: from its run file by the planner, from its folder by what it wrote.

run.yaml    devices, bytes of its state, when it saves and validates, steps     + a cluster ──plan──► seconds of a step
folder      the same of its run.yaml; devices, seconds of steps and saves as measured (ledger.py)
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path

from scalewright.goodput.answer import Paid
from scalewright.goodput.ledger import Ledger, read_ledger
from scalewright.goodput.setting import Run
from scalewright.plan.predict import price
from scalewright.plan.whole_run import USUAL_CURRENCY, Market, WholeRun, habits_of
from scalewright.spec.errors import UserError
from scalewright.spec.hardware.cluster import LOCAL, ClusterSpec, load_cluster
from scalewright.spec.prices import Band
from scalewright.spec.question import Question
from scalewright.spec.run import RunSpec, load_run

MOST_PARAMS = 1e15
STATE_BYTES = 12.0  # of a parameter: weights in fp32 and AdamW's two states


@dataclass(frozen=True)
class Facts:
    """A run's numbers, its cluster, a step's seconds with their band, what it had; None: not known."""

    run: Run = field(default_factory=Run)
    cluster: ClusterSpec | None = None
    step: Band | None = None
    ledger: Ledger | None = None
    notes: tuple[str, ...] = ()


def read_facts(
    source: str | Path | None, cluster: str | ClusterSpec | None, devices: int | None, params: float | None = None
) -> Facts:
    """What a run file, a run's folder or neither has; `params`: of the model, where neither. Raises UserError."""
    place = load_cluster(cluster) if cluster is not None and cluster != LOCAL else None
    if params is not None and not 1 <= params <= MOST_PARAMS:
        raise UserError(f"params is {params:g}", "--params", "give the model's parameters, such as 70B")
    if source is None:
        state = None if params is None else params * STATE_BYTES
        return Facts(Run(per_node=place.devices_per_node if place else 8, state_bytes=state), place)
    if params is not None:
        raise UserError("--params and a run are both given", "--params", "leave it out: the run has its model")
    path = Path(source)
    if path.is_dir():
        return _folder(path, place)
    if not path.exists():
        how = "give a run file, a run's folder, or --devices N alone"
        raise UserError("no such run file or folder", str(path), how)
    run = load_run(path)
    if place is None and run.cluster != LOCAL:
        place = load_cluster(run.cluster)
    facts = _of_file(run, place, str(path))
    if place is None:
        return facts
    try:
        step = _step(run, place, str(path), devices)
        return replace(facts, step=step, run=replace(facts.run, step_s=step.median))
    except UserError as error:
        return replace(facts, notes=(*facts.notes, f"no step time: {error}"))


def _folder(path: Path, place: ClusterSpec | None) -> Facts:
    """A run that was or is: its own file as far as it can be read, and its ledger."""
    facts, asynchronous, notes = Facts(cluster=place), False, []
    try:
        run = load_run(path / "run.yaml")
        facts, asynchronous = _of_file(run, place, str(path)), run.checkpoint.async_
    except UserError as error:
        notes.append(f"without its run.yaml: {error.what}")
    ledger = read_ledger(path, asynchronous)
    saves, devices = sorted(ledger.saves), ledger.devices or facts.run.devices
    if devices is None:
        notes.append("1 device: neither its run.yaml nor its events have their number (--devices)")
    known = replace(
        facts.run, devices=devices or 1, step_s=ledger.step_s, source=str(path),
        save_s=saves[len(saves) // 2] if saves and not asynchronous else None,
    )  # fmt: skip
    step = Band(ledger.step_s, ledger.step_s, ledger.step_s) if ledger.step_s else None
    return replace(facts, run=known, step=step, ledger=ledger, notes=(*facts.notes, *notes))


def _of_file(run: RunSpec, place: ClusterSpec | None, source: str) -> Facts:
    """What a run file has of itself."""
    habits, tokens, steps = habits_of(Question(run, source=source)), run.train.tokens, run.train.steps
    if steps is None and tokens is not None:
        steps = ceil(tokens / (run.layout.global_batch * run.seq_len))
    notes = []
    if habits.evaluation:
        notes.append(f"a batch of validation takes a third of a step: {habits.evaluation:.2%} of the work")
    known = Run(
        **vars(habits), devices=run.layout.devices, per_node=place.devices_per_node if place else 8, steps=steps,
        source=source,
    )  # fmt: skip
    return Facts(known, place, notes=tuple(notes))


def _step(run: RunSpec, place: ClusterSpec, source: str, devices: int | None) -> Band:
    """Seconds of a step as the planner prices the run. Raises UserError for one that it can't."""
    question = Question(run, place, source=source)
    prediction = price(question if devices is None else question.resized(devices))
    low, high = prediction.band_s
    return Band(low, prediction.step_time_s, high)


def paid(facts: Facts, price: float | None, currency: str | None, market: Market) -> Paid:
    """What its device-hours cost: the given price, the cluster's, or the list's. Raises UserError."""
    whole = WholeRun(tokens=1.0, price=price, currency=currency, market=market)
    whole.check()
    if facts.cluster is None:
        if market != Market():
            raise UserError("prices and grids need a device", "--cluster", "add --cluster dgx-h100, or --price 2.5")
        alone = None if price is None else Band(price, price, price)
        return Paid(alone, (currency or USUAL_CURRENCY).upper(), notes=facts.notes)
    whole = whole.on(facts.cluster)
    if whole.price is not None:
        given = Band(whole.price, whole.price, whole.price)
        return Paid(given, (currency or USUAL_CURRENCY).upper(), whole.cluster, market.region, facts.notes)
    if whole.listed is None:
        unpriced = f"no cost: no price of {facts.cluster.device.id} is known (--price)"
        return Paid(None, None, whole.cluster, market.region, (*facts.notes, unpriced))
    words = f"price: {whole.listed.words}: a list's; --price gives yours"
    return Paid(whole.listed, whole.listed.currency, whole.cluster, market.region, (*facts.notes, words))
