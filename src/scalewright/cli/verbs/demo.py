"""`scalewright demo`: the main job, end to end, in one command, on this machine and the text that comes along.

    plan for this machine -> Shakespeare -> tokens -> train on 2 processes as planned -> one is killed ->
    resume -> evaluate -> sample -> a diagnosis of its own run, beside what was predicted -> report

Everything lands in one folder, with the run file to start one's own from.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from scalewright.cli.options import Json, option
from scalewright.cli.output import only_answer, print, print_json
from scalewright.spec.common.heartbeat import Heartbeat
from scalewright.spec.errors import RunError, UserError

if TYPE_CHECKING:
    from scalewright.plan.search.search import Choice, Plan
    from scalewright.spec.hardware.cluster import ClusterSpec


def demo(
    out: Annotated[Path, option("DIR", "Where everything is written.")] = Path("runs/demo"), json: Json = False
) -> None:
    """The main job in one command: text to trained model.

    Plans for this machine, prepares a text, trains a small model on two processes, has one killed,
    resumes, evaluates, prints a sample and writes a report, predicted beside measured. Takes minutes.
    """
    with only_answer(json):
        summary = run_demo(out, json)
    if json:
        print_json(summary)


VOCABULARY, SEQ_LEN, BATCH = 1024, 256, 4
DEVICES = 2  # processes
UNPLANNED = {"devices": DEVICES, "zero_stage": 0, "micro_batch": BATCH // DEVICES, "global_batch": BATCH}
VALID_BATCHES = 8  # of the run's own validations
STEPS = 560  # two minutes or so on two cores of 0.1 TFLOP/s; small batches learn most per token here
TRACED = 3  # of them, the last ones
PARTS = {"compute": "compute", "exposed_communication": "communication", "exposed_copy": "memcpy", "idle": "idle"}
MODEL = {
    "name": "demo", "vocab_size": VOCABULARY, "hidden_size": 224, "intermediate_size": 608, "num_hidden_layers": 5,
    "num_attention_heads": 7, "num_key_value_heads": 7, "context": SEQ_LEN, "tie_word_embeddings": True,
}  # fmt: skip


@dataclass
class Summary:
    """The contents of `summary.json`; a null is a part that isn't there."""

    seconds: float = 0.0
    first_loss_s: float | None = None
    steps: int = 0
    tokens_per_s: float | None = None
    validation_bits_per_byte: float | None = None
    resumes: int = 0
    predicted_step_time_s: float | None = None
    predicted_p10_s: float | None = None
    predicted_p90_s: float | None = None
    layout: dict[str, object] | None = None  # what the planner chose, or UNPLANNED
    measured_step_time_s: float | None = None
    report: str | None = None


def run_demo(out: Path, quiet: bool = False) -> dict[str, object]:
    """Runs the whole demo into `out`; returns the summary, which also lies there as summary.json."""
    with Heartbeat("demo", enabled=not quiet) as heart:

        def say(step: str, text: str) -> None:
            if not quiet:
                print(f"{step:>4}  {text}", file=sys.stderr, flush=True)
            heart.heard()
            if step:  # training has a display of its own
                heart.now("" if step in ("3/8", "4/8") else f"{'':>4}  {text.partition(':')[0]}")

        return _steps(out, quiet, say)


def _steps(out: Path, quiet: bool, say: Callable[[str, str], None]) -> dict[str, object]:
    from scalewright.data.prepare import prepare
    from scalewright.launch.begin import prepare_workers
    from scalewright.spec.base import write_yaml
    from scalewright.train.run import PRELOAD

    started = time.perf_counter()
    if aside := _set_aside(out):
        say("", f"an earlier demo was in {out}; it is in {aside} now")
    summary = Summary()
    layout = _plan(summary, say)
    prepare_workers(PRELOAD)  # not before: the probe of this machine wants it for itself
    say("2/8", "preparing Shakespeare's plays: text to tokens")
    data = prepare("shakespeare", out / "data", vocab_size=VOCABULARY, progress=None)
    say("", f"{data.input_bytes / 1e6:.1f} MB of text, {VOCABULARY} tokens in the vocabulary")
    run_file = out / "demo.yaml"
    write_yaml(run_file, _run(out, layout))
    _train(run_file, out, summary, started, say, quiet)
    say("5/8", "evaluating on text that it has not seen")
    summary.validation_bits_per_byte, lines = evaluation(out)
    for line in lines:
        say("", line)
    say("6/8", "continuing a prompt")
    sample = _sample(out)
    say("", "\n" + sample + "\n")
    _measure(out, summary)
    say("7/8", f"diagnosing its own run: steps beside the prediction, and traces of the last {TRACED}")
    for line in (beside(summary), *diagnosis(out / "traces")):
        say("", line)
    summary.seconds = round(time.perf_counter() - started, 1)
    summary.report = str(out / "report.html")
    (out / "summary.json").write_text(json.dumps(asdict(summary), indent=1) + "\n", encoding="utf-8")
    say("8/8", "writing the report")
    from scalewright.report.run import write_report

    write_report(out)
    say("", f"all of it took {summary.seconds:.0f} s; open {summary.report}")
    say("", f"your own: edit {run_file} and run `scalewright train {run_file}`")
    return asdict(summary)


def _set_aside(out: Path) -> Path | None:
    """Renames an earlier demo's folder, so that nothing is lost; raises UserError for a user's own."""
    if not (out / "demo.yaml").exists():
        for name in ("run.yaml", "summary.json", "sample.txt", "report.html"):
            if (out / name).exists():
                raise UserError(f"it holds {name}, and no demo wrote that", str(out), "give another --out")
        return None
    number = 1
    while (aside := out.with_name(f"{out.name}.old-{number}")).exists():
        number += 1
    return out.rename(aside)


def make_plan(cluster: ClusterSpec) -> Plan:
    """Every layout of the demo's model on two processes, priced."""
    from scalewright.plan.search.objective import Goal
    from scalewright.plan.search.search import search
    from scalewright.spec.model import ModelSpec
    from scalewright.spec.question import Question

    model = ModelSpec.parse(MODEL)
    return search(Question.of(model, SEQ_LEN, cluster), Goal(DEVICES, BATCH), explain=False)


def _plan(summary: Summary, say: Callable[..., None]) -> dict[str, object]:
    """Plans for this machine, prints the choice and the reason; returns the layout of the run. Where timing the machine
    fails, a layout that needs no plan, and no prediction."""
    say("1/8", "planning: how fast are this machine's kernels and messages, and which layout suits them?")
    from scalewright.machine.local import timed_cluster

    try:
        cluster = timed_cluster(DEVICES)
    except RunError as error:  # a machine too busy to time still shows the rest
        say("", str(error))
        say("", f"going on without a prediction, on a usual layout: dp {DEVICES}, zero 0")
        summary.layout = dict(UNPLANNED)
        return summary.layout
    plan = make_plan(cluster)
    chosen = next(choice for choice in plan.best if choice.trainable)
    prediction = chosen.prediction
    summary.predicted_step_time_s = round(prediction.step_time_s, 4)
    summary.predicted_p10_s, summary.predicted_p90_s = (round(seconds, 4) for seconds in prediction.band_s)
    summary.layout = chosen.layout.dump()
    for line in explain(plan, chosen):
        say("", line)
    return summary.layout


def explain(plan: Plan, chosen: Choice) -> list[str]:
    """Which layout, what a step of it should take, and why not the others."""
    from scalewright.plan.predict import bottleneck

    prediction = chosen.prediction
    low, high = prediction.band_s
    lines = [
        f"{plan.evaluated} layouts in {plan.seconds:.2f} s; the fastest: {outline(chosen)}",
        f"a step should take {prediction.step_time_s * 1e3:.0f} ms ({low * 1e3:.0f} to {high * 1e3:.0f})",
    ]
    load = prediction.request.chip.timings.load if prediction.request.chip.timings else None
    if load is not None and load > DEVICES / 2:
        lines[1] += f"; other work runs beside it (load {load:.1f}), and will slow it"
    seen = {outline(chosen)}
    for other in plan.best:
        name, seconds = outline(other), other.prediction.step_time_s
        if name not in seen and other.trainable:
            seen.add(name)
            lines.append(f"not {name}: {seconds * 1e3:.0f} ms; {bottleneck(other.prediction)}")
    return lines[:4]


def outline(choice: Choice) -> str:
    from scalewright.report.layouts import one_line

    return f"{one_line(choice.keys)} · {choice.prediction.request.precision}"


def beside(summary: Summary) -> str:
    predicted, measured = summary.predicted_step_time_s, summary.measured_step_time_s
    if not predicted or not measured:
        return "no prediction to compare the steps with"
    from scalewright.train.metrics.expectation import compare

    low, high = summary.predicted_p10_s or predicted, summary.predicted_p90_s or predicted
    return compare(predicted, low, high, measured)


def diagnosis(traces: Path) -> list[str]:
    """The time of the traced steps by its parts, and the causes in it with what they would gain."""
    from scalewright.diagnose.diagnose import diagnose

    try:
        answer = diagnose([traces])
    except UserError as error:
        return [f"its traces can't be read: {error}"]
    shares = answer["breakdown_pct"]
    parts = ", ".join(f"{name} {shares[key]:.0f}%" for key, name in PARTS.items() if shares[key] >= 0.5)
    lines = [f"{parts}; bound by {answer['bound_by']}"]
    for verdict in answer["verdicts"][:2]:
        lines.append(f"{verdict['cause']}, {verdict['gain_pct']['p50']:.0f}% to gain: {verdict['fix']}")
    return [*lines, f"more: `scalewright diagnose {traces}`"]


def _run(out: Path, layout: dict[str, object]) -> dict[str, object]:
    from scalewright.spec.layout import Layout

    return {
        "version": 1, "name": "demo", "out_dir": str(out), "device": "cpu", "model": MODEL,
        "layout": Layout.parse(layout).written(),
        "data": {"train": [{"path": str(out / "data")}], "valid": [{"path": str(out / "data")}], "seq_len": SEQ_LEN},
        "optimizer": {"name": "adamw", "lr": 1e-3, "weight_decay": 0.1, "betas": [0.9, 0.98]},
        "lr_schedule": {"kind": "cosine", "warmup_steps": 20, "min_ratio": 0.02},
        "train": {"steps": STEPS, "valid_every": STEPS // 7, "valid_batches": VALID_BATCHES},
        "checkpoint": {"every": STEPS // 8, "keep": 2}, "profile": {"steps": [*range(STEPS - TRACED + 1, STEPS + 1)]},
    }  # fmt: skip


def _train(run_file: Path, out: Path, summary: Summary, started: float, say: Callable[..., None], quiet: bool) -> None:
    from scalewright.api import train

    say("3/8", "training a Llama-shaped model on 2 processes; at some point one of them gets killed")
    with _Assassin(out, started) as watcher:
        try:
            train(run_file, quiet=quiet, on_start=watcher.begin)
        except RunError as error:
            if not watcher.struck:
                raise
            say("4/8", f"as planned: {error}")
            summary.resumes += 1
            train(run_file, quiet=quiet)
    summary.first_loss_s = watcher.first_loss_s


class _Assassin:
    """Watches the run's metrics from a thread; kills one worker once, when a checkpoint lies behind it."""

    def __init__(self, out: Path, started: float) -> None:
        self.metrics, self.checkpoints, self.started = out / "metrics.jsonl", out / "checkpoints", started
        self.first_loss_s: float | None = None
        self.struck = False
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, workers: list[int]) -> None:
        """Starts watching; `workers` are process ids."""
        self._thread = threading.Thread(target=self._watch, args=(workers[-1],), daemon=True)
        self._thread.start()

    def _watch(self, victim: int) -> None:
        from scalewright.spec.common.jsonl import read_jsonl

        while not self._done.wait(0.1):
            rows = [row for row in read_jsonl(self.metrics) if row["kind"] == "train"]
            if rows and self.first_loss_s is None:
                self.first_loss_s = round(time.perf_counter() - self.started, 1)
            saved = [int(p.parent.name.split("-")[1]) for p in self.checkpoints.glob("step-????????/COMMIT")]
            if saved and rows and rows[-1]["step"] > max(saved) + 3:
                self.struck = True
                os.kill(victim, getattr(signal, "SIGKILL", signal.SIGTERM))
                return

    def __enter__(self) -> _Assassin:
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()


def evaluation(out: Path) -> tuple[float, list[str]]:
    """Bits per byte of the whole held-out part, and lines on what it and the run's own validations cover."""
    from scalewright.cli.verbs.evaluate import measure

    scores = measure(out, None, None, 10_000, "cpu")
    if scores["bits_per_byte"] is None:
        raise RunError("the held-out text does not know its bytes")
    return round(scores["bits_per_byte"], 4), [
        f"{scores['bits_per_byte']:.3f} bits per byte of all {scores['tokens']:,} tokens of it",
        f"(validations on the way took the first {VALID_BATCHES * BATCH * SEQ_LEN:,} of them)",
    ]


def _sample(out: Path) -> str:
    from scalewright.serve.generate import generate_text

    prompt = "ROMEO:\n"
    answer = generate_text(str(out), prompt, max_new_tokens=120, temperature=0.8, top_p=0.95, seed=1)
    (out / "sample.txt").write_text(prompt + answer.text, encoding="utf-8")
    return prompt + answer.text


def _measure(out: Path, summary: Summary) -> None:
    from scalewright.spec.common.jsonl import read_jsonl

    rows = [row for row in read_jsonl(out / "metrics.jsonl") if row["kind"] == "train"]
    times = sorted(row["step_time_s"] for row in rows[3:])
    summary.steps = rows[-1]["step"]
    summary.measured_step_time_s = round(times[len(times) // 2], 4)
    summary.tokens_per_s = round(BATCH * SEQ_LEN / summary.measured_step_time_s, 1)
