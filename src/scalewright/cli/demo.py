"""The main job, end to end, on this machine and the text that comes along: what `make demo` shows.

    Shakespeare -> tokens -> train on 2 processes -> one is killed -> resume -> evaluate -> sample -> report

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
from typing import Any

from scalewright.spec.errors import RunError

VOCABULARY, SEQ_LEN, BATCH = 1024, 256, 4
STEPS = 560  # two minutes or so on two cores of 0.1 TFLOP/s; small batches learn most per token here
MODEL = {
    "name": "demo",
    "vocab_size": VOCABULARY,
    "hidden_size": 224,
    "intermediate_size": 608,
    "num_hidden_layers": 5,
    "num_attention_heads": 7,
    "num_key_value_heads": 7,
    "context": SEQ_LEN,
    "tie_word_embeddings": True,
}


@dataclass
class Summary:
    """What `summary.json` holds; a null is a part that isn't there."""

    seconds: float = 0.0
    first_loss_s: float | None = None
    steps: int = 0
    tokens_per_s: float | None = None
    validation_bits_per_byte: float | None = None
    resumes: int = 0
    predicted_step_time_s: float | None = None
    measured_step_time_s: float | None = None
    report: str | None = None


def run_demo(out: Path, quiet: bool = False) -> dict[str, Any]:
    """Runs the whole demo into `out`; returns the summary, which also lies there as summary.json."""
    from scalewright.data.prepare import prepare
    from scalewright.launch.local import prepare_workers
    from scalewright.spec.base import write_yaml
    from scalewright.train.run import PRELOAD

    started = time.perf_counter()
    say = _speaker(quiet)
    prepare_workers(PRELOAD)
    if aside := _set_aside(out):
        say("", f"an earlier demo was in {out}; it is in {aside} now")
    say("1/6", "preparing Shakespeare's plays: text to tokens")
    data = prepare("shakespeare", out / "data", vocab_size=VOCABULARY, progress=None)
    say("", f"{data.input_bytes / 1e6:.1f} MB of text, {VOCABULARY} tokens in the vocabulary")
    run_file = out / "demo.yaml"
    write_yaml(run_file, _run(out))
    summary = Summary()
    _train(run_file, out, summary, started, say, quiet)
    say("4/6", "evaluating on text that it has not seen")
    summary.validation_bits_per_byte = _evaluate(out)
    say("", f"{summary.validation_bits_per_byte:.3f} bits per byte")
    say("5/6", "writing on from a prompt")
    sample = _sample(out)
    say("", "\n" + sample + "\n")
    _measure(out, summary)
    summary.seconds = round(time.perf_counter() - started, 1)
    summary.report = str(out / "report.html")
    _write_summary(out, summary)
    say("6/6", "writing the report")
    from scalewright.report.run import write_report

    write_report(out)
    say("", f"all of it took {summary.seconds:.0f} s; open {summary.report}")
    say("", f"your own: edit {run_file} and run `scalewright train {run_file}`")
    return asdict(summary)


def _set_aside(out: Path) -> Path | None:
    """Renames the folder of an earlier demo, so that this one starts anew and nothing is lost."""
    if not (out / "demo.yaml").exists():
        return None
    number = 1
    while (aside := out.with_name(f"{out.name}.old-{number}")).exists():
        number += 1
    return out.rename(aside)


def _run(out: Path) -> dict[str, Any]:
    """The run file: a small Llama-shaped model on two processes."""
    return {
        "version": 1,
        "name": "demo",
        "out_dir": str(out),
        "device": "cpu",
        "model": MODEL,
        "layout": {"devices": 2, "zero_stage": 3, "micro_batch": BATCH // 2, "global_batch": BATCH},
        "data": {
            "train": [{"path": str(out / "data")}],
            "valid": [{"path": str(out / "data")}],
            "seq_len": SEQ_LEN,
        },
        "optimizer": {"name": "adamw", "lr": 1e-3, "weight_decay": 0.1, "betas": [0.9, 0.98]},
        "lr_schedule": {"kind": "cosine", "warmup_steps": 20, "min_ratio": 0.02},
        "train": {"steps": STEPS, "valid_every": STEPS // 7, "valid_batches": 8},
        "checkpoint": {"every": STEPS // 8, "keep": 2},
    }


def _train(
    run_file: Path, out: Path, summary: Summary, started: float, say: Callable[..., None], quiet: bool
) -> None:
    """Trains; a worker is killed on the way, and the same call goes on from the last checkpoint."""
    from scalewright.train.run import train

    say("2/6", "training a Llama-shaped model on 2 processes; at some point one of them gets killed")
    with _Assassin(out, started) as watcher:
        try:
            train(run_file, quiet=quiet, on_start=watcher.begin)
        except RunError as error:
            if not watcher.struck:
                raise
            say("3/6", f"as planned: {error}")
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
        from scalewright.track.metrics import read_metrics

        while not self._done.wait(0.1):
            rows = [row for row in read_metrics(self.metrics) if row["kind"] == "train"]
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


def _evaluate(out: Path) -> float:
    """Bits per byte over the whole held-out part."""
    from scalewright.cli.verbs.evaluate import measure

    bits = measure(out, None, None, 10_000, "cpu")["bits_per_byte"]
    if bits is None:
        raise RunError("the held-out text does not know its bytes")
    return round(bits, 4)


def _sample(out: Path) -> str:
    from scalewright.serve.generate import generate_text

    prompt = "ROMEO:\n"
    answer = generate_text(str(out), prompt, max_new_tokens=120, temperature=0.8, top_p=0.95, seed=1)
    (out / "sample.txt").write_text(prompt + answer.text, encoding="utf-8")
    return prompt + answer.text


def _measure(out: Path, summary: Summary) -> None:
    """Steps and medians from the metrics; the first steps of a start are left out of them."""
    from scalewright.track.metrics import read_metrics

    rows = [row for row in read_metrics(out / "metrics.jsonl") if row["kind"] == "train"]
    times = sorted(row["step_time_s"] for row in rows[3:])
    summary.steps = rows[-1]["step"]
    summary.measured_step_time_s = round(times[len(times) // 2], 4)
    summary.tokens_per_s = round(BATCH * SEQ_LEN / summary.measured_step_time_s, 1)


def _write_summary(out: Path, summary: Summary) -> None:
    (out / "summary.json").write_text(json.dumps(asdict(summary), indent=1) + "\n", encoding="utf-8")


def _speaker(quiet: bool) -> Callable[..., None]:
    def say(step: str, text: str) -> None:
        if not quiet:
            print(f"{step:>4}  {text}", file=sys.stderr, flush=True)

    return say
