"""All lines of a log together: its steps, its facts, and whose log it is.

file ──► marked lines ──► a step's?      forms.py          ──► steps of that form, the first form of the
                      │                                        table that has steps is the trainer's own
                      ├─► an argument?   emit/printed.py   ──► facts; a run, where all arguments are there
                      └─► another fact?  facts.py          ──► facts

Several files are one run's: its ranks', which print the same steps and losses, or its parts, one after another.

rank0.log  1 2 3 4 5  ┐ one run                job-1.log  1 2 3 4 5  ┐ other steps: the next part
rank1.log  1 2 3 4 5  ┘ steps 1 2 3 4 5        job-2.log  4 5 6 7 8  ┘ steps 1 2 3 4 5 | 4 5 6 7 8, a restart

Hugging Face's `trainer_state.json` is a document with the steps under `log_history`: {"step": 5, "loss": 2.09, ...}.
The last entry is the run's summary, and evaluations stand between the steps: neither has a `loss`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import reduce
from pathlib import Path

from scalewright.diagnose.ending.events import Event, Events, searched
from scalewright.diagnose.logs.columns import columns_of, read_columns
from scalewright.diagnose.logs.facts import AGAIN, DIMS, FACTS, PATHS, Facts, facts_of, folder, progress, short
from scalewright.diagnose.logs.forms import FORMS, OPEN, Form, Templates
from scalewright.diagnose.logs.lines import Line, MarkedLines, clock, elapsed, number, quoted, real
from scalewright.diagnose.logs.steps import Step, Steps
from scalewright.diagnose.traces.unpack import Unpacked, beginning
from scalewright.emit.printed import MARKS, Printed
from scalewright.emit.question import question_of
from scalewright.spec.common.formatting import counted, duration
from scalewright.spec.common.untrusted import JSON_BYTES, parse_json
from scalewright.spec.errors import UserError
from scalewright.spec.question import Question

HISTORY = b'"log_history"'
RATE = "train_steps_per_second"  # of the summary
KEYS = {"step": "step", "loss": "loss", "grad_norm": "grad_norm", "learning_rate": "lr", "epoch": "epoch"}
START = 1 << 16  # bytes: its keys are sorted, and few stand before `log_history`


def is_trainer_state(start: bytes) -> bool:
    """Whether the first bytes of a file are those of a trainer_state.json."""
    return start.lstrip()[:1] == b"{" and HISTORY in start


def read_trainer_state(path: Path) -> Log | None:
    """Its steps and facts; None where the file is something else."""
    content = b""
    for piece in Unpacked(path):
        content += piece
        if not is_trainer_state(content[:START]) or len(content) > JSON_BYTES:
            return None
    try:
        document = parse_json(content)
    except ValueError:
        return Log("hf-trainer", notes=[f"{path.name}: it is no whole JSON: the file was cut off or damaged"])
    history = document.get("log_history") if isinstance(document, dict) else None
    if not isinstance(history, list):
        return None
    steps = Steps()
    entries, facts = [entry for entry in history if isinstance(entry, dict)], Facts()
    for entry in entries:
        if "loss" in entry:
            known = {ours: value for key, ours in KEYS.items() if (value := real(entry.get(key))) is not None}
            steps.add(known if math.isfinite(known.get("step", 0)) else {"loss": known.get("loss", math.nan)})
    if isinstance(batch := document.get("train_batch_size"), int):
        facts["micro_batch"] = batch
    rates = [real(entry[RATE]) for entry in entries if RATE in entry]
    if rates and (rate := rates[-1] or 0.0) > 0:
        facts["mean_step_s"] = 1 / rate
    rewards = any(REWARDS.search(" ".join(entry)) for entry in entries[:1])
    return Log("hf-trainer", facts, steps.all, rewards=rewards)


OVERFLOW, MEMORY, ENGINE = "OVERFLOW! Rank 0 Skipping step", "memory (MB)", "[deepspeed]"
NCCL = (" NCCL INFO ", " NCCL WARN ")
TUNING = "Unified tuning params"  # of MaxText's benchmarks
BARS = ("s/it", "it/s")
DUMPED = ("profiler trace", "umping traces")  # torchtitan's: in the time of the next step
OTHERS = (OVERFLOW, MEMORY, ENGINE, TUNING, *BARS, *PATHS, *AGAIN, *DUMPED)
USUAL = tuple(form for form in FORMS if not form.gathers)
OF_TRAINING = (*(form.mark for form in USUAL), *(mark for mark, _ in FACTS), *MARKS, *OTHERS)
BAR = 200  # characters: what is longer has more in it than a progress bar
REWARDS = re.compile("reward|advantage|(?:pg|policy|actor|ppo)_loss|clip_?(?:frac|ratio)|completion", re.I)
LINES = 32  # of steps, in which words of rewards are looked for
WITHIN = 64 << 20  # bytes in which a log of training has its first step
AFTER = re.compile(r"after (\d{1,12}) iterations\)? memory \(MB\).{0,200}?max allocated: " + r"([\d.]{1,30})")
BRIDGE = re.compile(r"learning rate: \d\.\d{6}E[-+]\d+ \|")
SHARED = 0.5  # share of the shorter file's steps that are in the other, from which both are of the same part


@dataclass
class Log:
    """What a run's files state. `framework` is a word of `predict --framework`, or of forms.py."""

    framework: str | None = None
    facts: Facts = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    restarts: int = 0
    overflows: int = 0
    again: bool = False  # it begins with words that begin a run
    nccl: bool = False
    rewards: bool = False  # it trains on rewards, whose loss may be 0 or below
    notes: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)  # of its end
    run: Question | None = None  # of its arguments, where all of them were printed

    @property
    def policy(self) -> bool:
        """Whether its loss is no cross-entropy: below 0, where -1 stands for one that was never set."""
        return self.rewards or any(step.loss is not None and step.loss < 0 and step.loss != -1 for step in self.steps)


class Reader:
    """Takes in lines, and makes a Log of them."""

    def __init__(self, path: Path, forms: Sequence[Form] = USUAL) -> None:
        self.events, self.forms = Events(path), forms
        self.steps: dict[str, Steps] = {}
        self.like = {form.name: Templates() for form in FORMS}
        self.first: dict[str, str] = {}  # the first line of each form
        self.facts: Facts = {}
        self.named: Facts = {}  # by folders: what lines state counts more
        self.sentences: Facts = {}  # those of them that no argument states
        self.printed = Printed()
        self.tpus = self.overflows = 0
        self.again = self.deepspeed = self.rewards = self.dumped = False
        self.memory: dict[int, float] = {}

    def take(self, line: Line) -> None:
        """A line in which a mark occurs; most states one thing, and some nothing after all."""
        text = line.text
        self.facts |= (bar := progress(text))
        if bar and len(text) < BAR and text.rstrip()[-1:] == "]" and "loss" not in text.lower():
            return
        for form in self.forms:
            if form.mark in text and (values := form.read(text, self.like[form.name])) is not None:
                self._step(form, values, text)
                return
        texts = [text, *(f"Config param {key}: {value}" for key, value in quoted(text) if TUNING in text)]
        stated = {key: value for part in texts for key, value in short(self.printed.take(part)).items()}
        if ":print]" in text and "devices" in stated:  # the world of DeepSpeed's configuration is data-parallel
            self.deepspeed, stated["dp"] = True, stated.pop("devices")
        self.facts |= stated
        if any(mark in text for mark in PATHS):
            self.named |= folder(text)
        for mark, read in FACTS:
            if mark in text:
                facts = read(text)
                if "device_index" in facts:
                    facts["devices"] = self.tpus = max(self.tpus, facts.pop("device_index") + 1)
                self.sentences |= facts
                self.facts |= facts
        if any(mark in text for mark in AGAIN):
            self.again = True
            for steps in self.steps.values():
                steps.begin()
        self.deepspeed = self.deepspeed or ENGINE in text
        self.overflows += OVERFLOW in text
        self.dumped = self.dumped or any(mark in text for mark in DUMPED)
        self.events.take(line, max((len(steps.all) for steps in self.steps.values()), default=0))
        if (match := AFTER.search(text)) and (amount := number(match[2])) is not None:
            self.memory[int(match[1])] = max(amount / 1024, self.memory.get(int(match[1]), 0.0))

    def _step(self, form: Form, values: dict[str, float], text: str) -> None:
        self.deepspeed = self.deepspeed or form.framework == "deepspeed"
        if form.name not in self.steps:
            self.steps[form.name], self.first[form.name] = Steps(form.joins), text
        self.rewards = self.rewards or (len(self.steps[form.name].all) < LINES and bool(REWARDS.search(text)))
        if rate := values.get("steps_per_s"):
            values["step_time_s"] = 1 / rate
        if form.gathers:
            self.steps[form.name].gather(values)
            return
        self.steps[form.name].add(values, elapsed(text) if '"elapsed_time"' in text else clock(text))
        if self.dumped:
            self.steps[form.name].all[-1].traced, self.dumped = True, False
        if {"samples_per_s", "step_time_s"} <= values.keys() and "global_batch" not in self.facts | values:
            values["global_batch"] = round(values["samples_per_s"] * values["step_time_s"]) or math.nan
        for key in ("global_batch", "seq_len"):
            if values.get(key, 0) > 0:
                self.facts[key] = self.sentences[key] = int(values[key])

    def log(self) -> Log:
        """What all lines state together."""
        for steps in self.steps.values():
            steps.gather({})
        present = [form for form in FORMS if form.name in self.steps and self.steps[form.name].all]
        run, facts = self._run(), self.named | self.facts
        if "dp" in facts and ("tp" in facts or self.deepspeed):
            facts.setdefault("devices", math.prod(facts.get(key) or 1 for key in ("dp", "tp", "pp", "cp")))
        if run:  # of the shape only what the run has: a dense one's arguments have a top-k, too
            rest = {key: value for key, value in facts.items() if key not in DIMS}
            facts = {**rest, **facts_of(run), **self.sentences}
        elif "experts" not in facts:
            facts.pop("topk", None)
        if not present:  # it ends before its first step
            framework = "megatron-lm" if "tp" in facts and "layers" in facts else None
            return Log(framework, facts, overflows=self.overflows, run=run)
        form = present[0]
        steps, framework = self.steps[form.name], self._framework(form)
        self._memory(form.name, steps.all)
        notes = []
        if steps.left_out:
            notes.append(f"{steps.left_out:,} more steps are in the log and weren't kept")
        if steps.older:
            date = datetime.fromtimestamp(steps.older[0], timezone.utc).strftime("%Y-%m-%d %H:%M")
            notes.append(
                f"the dates go back: {counted(steps.left_older, 'lines')} from {date} on, "
                f"{duration(steps.older[1])} before those around them, were left out as an older run's"
            )
        if others := dict.fromkeys(
            o.name for o in present if o.name not in (form.name, OPEN) and o.framework != "deepspeed"
        ):
            notes.append(f"lines of {' and '.join(others)} repeat the same steps, and were left out")
        return Log(
            framework, facts, steps.all, steps.restarts, self.overflows, self.again, notes=notes, run=run,
            rewards=self.rewards,
        )  # fmt: skip

    def _run(self) -> Question | None:
        """The run of all its arguments; None where some are absent, or none such can be."""
        reading = self.printed.reading()
        try:
            return question_of(reading, "the log") if reading else None
        except UserError:
            return None

    def _memory(self, name: str, steps: Sequence[Step]) -> None:
        """Adds what DeepSpeed's timers and Megatron's report print of memory on lines of their own."""
        timers = self.steps.get("deepspeed timer")
        known = {s.step: s.memory_gib for s in timers.all if s.step is not None} if timers else {}
        for step in steps if name != "deepspeed timer" else ():
            if step.memory_gib is None and step.step is not None:
                step.memory_gib = known.get(step.step) or self.memory.get(step.step)

    def _framework(self, form: Form) -> str | None:
        """Trainers that grew out of Megatron-LM print its line; small things in it tell them apart.

        Megatron-LM prints learning rates with six digits only since it begins the line with a time: six digits and no
        time are Megatron-Bridge's.
        """
        if form.name != "megatron":
            return form.framework or None
        first = self.first[form.name]
        if "samples/sec:" in first or "approx flops per GPU" in first:
            return "gpt-neox"
        if self.deepspeed or "consumed tokens:" in first:
            return "megatron-deepspeed"
        if BRIDGE.search(first) and clock(first) is None:
            return "megatron-bridge"
        return form.framework


def read_log(path: Path) -> Log:
    """What a file states; raises OSError where it can't be read."""
    if (state := read_trainer_state(path)) is not None:
        return state
    if (table := read_columns(path)) is not None:
        return Log(steps=table.all, restarts=table.restarts)
    forms = USUAL if is_training_log(path) else FORMS  # lines with one value are many
    reader, lines = Reader(path, forms), MarkedLines(path, (*OF_TRAINING, *searched(), *(form.mark for form in forms)))
    for line in lines:
        reader.take(line)
    log = reader.log()
    log.notes += [f"{path.name}: {lines.damage}"] * bool(lines.damage)
    log.events = reader.events.kept
    log.nccl = any(True for _ in MarkedLines(path, NCCL, WITHIN))
    return log


def is_training_log(path: Path, within: int = WITHIN) -> bool:
    """Whether one of the forms is in the first `within` bytes of the file, but for values that have a line each."""
    if columns_of(beginning(path, START)) is not None:
        return True
    lines = MarkedLines(path, [form.mark for form in USUAL], within)
    return any(form.mark in line.text and form.read(line.text) for line in lines for form in USUAL)


def read_logs(files: Sequence[Path]) -> Log:
    """The run's log, of its files in the order of their names; raises OSError where one can't be read.

    What has no steps (job.err, dmesg) comes after those of the same name (job.out), else after all.
    """
    logs = [(path.stem, read_log(path)) for path in files]
    names = [name for name, log in logs if log.steps]
    logs.sort(key=lambda pair: (names.index(pair[0]) if pair[0] in names else len(names), not pair[1].steps))
    return reduce(join, (log for _, log in logs))


def join(log: Log, other: Log) -> Log:
    """Both as one: the longer of two that share their steps, else one after the other."""
    longer = log if len(log.steps) >= len(other.steps) else other
    both = replace(
        longer,
        framework=longer.framework or log.framework,
        facts={**log.facts, **other.facts},
        overflows=max(log.overflows, other.overflows),
        nccl=log.nccl or other.nccl,
        notes=[*dict.fromkeys(log.notes + other.notes)],
        run=other.run or log.run,
        events=log.events + other.events,
    )
    if not other.steps:
        both.events = log.events + [replace(event, steps=len(log.steps)) for event in other.events]
    if not log.steps or not other.steps or _shared(log.steps, other.steps):
        return both
    last, first = log.steps[-1].step, other.steps[0].step
    restarts = log.restarts + (other.again or (last is not None and first is not None and first <= last))
    for step in other.steps:
        step.life += restarts
    both.events = log.events + [replace(event, steps=event.steps + len(log.steps)) for event in other.events]
    both.steps, both.restarts = log.steps + other.steps, restarts + other.restarts
    both.overflows, both.again = log.overflows + other.overflows, log.again
    return both


def _shared(steps: Sequence[Step], others: Sequence[Step]) -> bool:
    """Whether they are the same steps; those without a number or a loss are compared by what they have."""
    keys = {(step.step, step.loss) for step in steps}
    same = sum((step.step, step.loss) in keys for step in others)
    return same >= SHARED * min(len(steps), len(others))
