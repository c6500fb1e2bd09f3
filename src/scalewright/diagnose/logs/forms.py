"""What a step's line looks like: a table, the first row that has steps in a log is its trainer's own.

    megatron      iteration  27/  30 | elapsed time per iteration (ms): 690.8 | lm loss: 3.198841E+00 | ...
    nemo          ... | global_step: 1 | reduced_train_loss: 11.03 | train_step_timing in s: 7.549 | ...
    torchtitan    step: 10  loss: 10.42  memory: 30.89GiB(32.51%)  tps: 6,344  tflops: 367.39  mfu: 37.15%

`mark` is in every such line, and in few others. `fields` leads from the trainer's word to ours, with the factor to our
unit: seconds, tokens/s, TFLOP/s a device, GiB. A row with `joins` spreads a step over several lines. To read another
trainer, add a row.

Lines with the same parts as one before are read by one pattern that was made from it:

    iteration 7/ 30 | elapsed time (ms): 690.8 | scale: 1.0 | lm loss: 3.2E+00 |
    no ": " in here | elapsed time (ms): ([^|]*)| scale: [^|]*| lm loss: ([^|]*)|

A trainer prints the same keys on each step, and to split 250,000 lines into pairs of which half aren't wanted takes
longer than all the rest. A line whose keys differ, or whose numbers aren't numbers, goes the long way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from scalewright.diagnose.logs.lines import barred, number, quoted, words

MOST = 4  # kinds of lines that are kept
PAIR = re.compile(r"(.*): (.*)", re.S)


@dataclass(frozen=True)
class Template:
    """`pattern` matches a line from its first bar on; its groups are the numbers of `keys` x `factors`."""

    pattern: re.Pattern[str]
    wanted: tuple[tuple[str, int, float], ...]  # key, group, factor
    units: bool

    def read(self, text: str) -> dict[str, float] | None:
        """The values of a line like the one that this was made of; None for another."""
        bar = text.find("|")
        match = self.pattern.fullmatch(text, bar)
        if match is None or text.find(": ", 0, bar) >= 0:
            return None
        groups = match.groups()
        try:
            return {key: float(groups[place]) * factor for key, place, factor in self.wanted}
        except ValueError:  # not every number is plain
            values = {
                key: amount * factor
                for key, place, factor in self.wanted
                if (amount := number(groups[place], self.units)) is not None
            }
        # With another ": " in it, another part of the text is the key.
        return values if len(values) == len(self.wanted) and not any(": " in group for group in groups) else None


def template_of(text: str, fields: Mapping[str, tuple[str, float]], units: bool) -> Template | None:
    """Of a line of `... | key: value | key: value |`; None where none is wanted, or one can't be read."""
    first, *others = text.split("|")
    if ": " in first:
        return None
    parts: list[str] = []
    wanted: dict[str, tuple[str, int, float]] = {}
    for part in others:
        pair = PAIR.fullmatch(part)
        if pair is None and not part.strip():
            parts.append(r"\s*")
            continue
        if pair is None:
            return None
        key, factor = fields.get(pair[1].strip(), ("", 1.0))
        new = bool(key) and key not in wanted
        if new and number(pair[2], units) is None:
            return None
        parts.append(re.escape(pair[1]) + (": ([^|]*)" if new else ": [^|]*"))
        if new:
            wanted[key] = (key, len(wanted), factor)
    pattern = re.compile("".join(rf"\|{part}" for part in parts))
    return Template(pattern, tuple(wanted.values()), units) if wanted else None


@dataclass
class Templates:
    """The templates of one kind of line, the last that matched first."""

    kept: list[Template] = field(default_factory=list)

    def read(self, text: str) -> dict[str, float] | None:
        """The values of a line like one before."""
        for place, template in enumerate(self.kept):
            values = template.read(text)
            if values is not None:
                self.kept.insert(0, self.kept.pop(place))
                return values
        return None

    def learn(self, text: str, fields: Mapping[str, tuple[str, float]], units: bool) -> None:
        """Keeps this line's template, as long as there are few."""
        if len(self.kept) < MOST and (template := template_of(text, fields, units)) is not None:
            self.kept.append(template)


Fields = Mapping[str, tuple[str, float]]
ANY = re.compile("")
COUNTS = {"step", "epoch", "global_batch", "seq_len", "skipped", "nan"}
LARGEST = 1e15  # of a count: more is damage
TITAN = re.compile(r"(?<!validate )\bstep:\s{1,9}(\d+)\s{1,9}loss:")


def _fields(words: Mapping[str, str], scaled: Fields | None = None) -> Fields:
    """A trainer's words -> ours, and those whose unit isn't ours, with the factor to it."""
    return {word: (key, 1.0) for word, key in words.items()} | dict(scaled or {})


MEGATRON = _fields({
    "learning rate": "lr", "lm loss": "loss", "lm_loss": "loss", "loss": "loss", "grad norm": "grad_norm",
    "throughput per GPU (TFLOP/s/GPU)": "tflops", "TFLOPs": "tflops", "approx flops per GPU": "tflops",
    "tokens per gpu per second (tgs)": "tokens_per_s_per_device",
    "tokens per gpu per second(tgs)": "tokens_per_s_per_device", "number of skipped iterations": "skipped",
    "number of nan iterations": "nan", "global batch size": "global_batch", "actual seqlen": "seq_len",
}, {"elapsed time per iteration (ms)": ("step_time_s", 1e-3)})  # fmt: skip
NEMO = _fields({
    "global_step": "step", "reduced_train_loss": "loss", "train_step_timing in s": "step_time_s", "lr": "lr",
    "grad_norm": "grad_norm", "global_batch_size": "global_batch", "TFLOPS_per_GPU": "tflops",
})  # fmt: skip
NANOTRON = _fields({
    "tokens_per_sec": "tokens_per_s", "tokens_per_sec_per_gpu": "tokens_per_s_per_device",
    "tokens_per_sec_per_device": "tokens_per_s_per_device", "grad_norm": "grad_norm", "lm_loss": "loss", "lr": "lr",
    "model_tflops_per_gpu": "tflops", "model_tflops_per_device": "tflops",
}, {
    "time_per_iteration_ms": ("step_time_s", 1e-3), "elapsed_time_per_iteration_ms": ("step_time_s", 1e-3),
})  # fmt: skip
TORCHTITAN = _fields({
    "loss": "loss", "grad_norm": "grad_norm", "memory": "memory_gib", "tps": "tokens_per_s_per_device",
    "wps": "tokens_per_s_per_device", "tflops": "tflops", "iter": "step_time_s", "lr": "lr",
})  # fmt: skip
MAXTEXT = _fields({
    "step": "step", "seconds": "step_time_s", "TFLOP/s/device": "tflops", "Tokens/s/device": "tokens_per_s_per_device",
    "loss": "loss",
})  # fmt: skip
NANOCHAT = _fields({"loss": "loss", "tok/sec": "tokens_per_s"}, {"dt": ("step_time_s", 1e-3)})
COMPOSER = _fields({
    "loss/train/total": "loss", "metrics/train/LanguageCrossEntropy": "loss", "LanguageCrossEntropy": "loss",
    "throughput/tokens_per_sec": "tokens_per_s", "throughput/device/tokens_per_sec": "tokens_per_s_per_device",
    "l2_norm/grad/global": "grad_norm", "lr-DecoupledAdamW/group0": "lr",
}, {
    "throughput/device/flops_per_sec": ("tflops", 1e-12), "memory/peak_reserved_mem": ("memory_gib", 1e9 / 2**30),
})  # fmt: skip
TRAINER = _fields({
    "loss": "loss", "grad_norm": "grad_norm", "learning_rate": "lr", "epoch": "epoch", "step": "step",
    "current_steps": "step", "lr": "lr",
})  # fmt: skip
OURS = _fields({
    "step": "step", "loss": "loss", "grad_norm": "grad_norm", "lr": "lr", "step_time_s": "step_time_s",
    "tokens_per_s": "tokens_per_s", "memory_gib": "memory_gib",
})  # fmt: skip
DEEPSPEED = _fields({
    "global_step": "step", "step": "step", "steps": "step", "loss": "loss", "MaxMemAllocated": "memory_gib",
    "skipped": "skipped_before",
})  # fmt: skip


@dataclass(frozen=True)
class Form:
    """A kind of step line. `head` must match; its groups are those of `heads`."""

    name: str
    framework: str
    mark: str
    pairs: Callable[[str], Iterator[tuple[str, str]]]
    fields: Fields
    head: re.Pattern[str] = ANY
    heads: tuple[tuple[str, float], ...] = ()  # the keys and factors of head's groups
    units: bool = False  # K, M, B and T stand behind numbers
    joins: bool = False  # a step takes several lines

    def read(self, text: str, like: Templates | None = None) -> dict[str, float] | None:
        """The line's values in our words and units; None for a line of another kind. `like`: lines before."""
        match = self.head.search(text)
        if match is None:
            return None
        values = {
            key: float(group.replace(",", "")) * factor
            for (key, factor), group in zip(self.heads, match.groups(), strict=True)
            if group is not None
        }
        quick = like.read(text) if like is not None else None
        if quick is not None:
            values = quick | values
        else:
            for word, value in self.pairs(text):
                key, factor = self.fields.get(word, ("", 0.0))
                if key and key not in values and (amount := number(value, self.units)) is not None:
                    values[key] = amount * factor
            if like is not None and self.pairs is barred:
                like.learn(text, self.fields, self.units)
        damaged = {key for key in COUNTS if key in values and not abs(values[key]) < LARGEST}  # or NaN
        return {key: values[key] for key in values if key not in damaged} if damaged else values or None


def _train(text: str) -> Iterator[tuple[str, str]]:
    """`Train loss/train/total: 10.97`, of Composer."""
    return ((key.removeprefix("Train "), value) for key, value in barred(text))


STEP = (("step", 1.0),)
FLOAT = r"(\d{1,12}(?:\.\d{1,12})?)"
FORMS: tuple[Form, ...] = (
    Form("megatron", "megatron-lm", "elapsed time per iteration (ms)", barred, MEGATRON,
         re.compile(r"iteration\s{1,20}(\d+)\s{0,9}/"), STEP),
    Form("nemo", "nemo", "train_step_timing in s", words, NEMO),
    Form("nanotron", "nanotron", "time_per_iteration_ms", barred, NANOTRON,
         re.compile(r"iteration: (\d+) /"), STEP, units=True),
    Form("maxtext", "maxtext", "completed step: ", words, MAXTEXT),
    Form("litgpt", "litgpt", "iter time: ", words, {},
         re.compile(r"iter (\d+) step \d+(?: \| loss train: |: loss )(?:([\d.]{1,20})|nan),"
                    r".{0,60}?iter time: " + FLOAT),
         (("step", 1), ("loss", 1), ("step_time_s", 1e-3))),
    Form("nanogpt", "nanogpt", ", time ", words, {},
         re.compile(r"iter (\d+): loss (nan|[\d.]{1,20}), time " + FLOAT + "ms"),
         (("step", 1), ("loss", 1), ("step_time_s", 1e-3))),
    Form("nanochat", "nanochat", "| tok/sec: ", barred, NANOCHAT, re.compile(r"step (\d+)(?:/\d+)? \("), STEP),
    Form("hf-trainer", "hf-trainer", "'loss': ", quoted, TRAINER, re.compile(r"\{.{0,300}'loss': ")),
    Form("llama-factory", "hf-trainer", '"current_steps": ', quoted, TRAINER, re.compile('"loss": ')),
    Form("ours", "scalewright", '"kind": "train"', quoted, OURS),
    Form("composer", "composer", "[batch=", words, {}, re.compile(r"\[batch=(\d+)/\d+\]"), STEP, joins=True),
    Form("composer", "composer", " Train ", _train, COMPOSER, re.compile(r"^\s{0,40}Train \S{1,80}: "), joins=True),
    Form("step time", "megatron-bridge", "GPU utilization: ", words, {},
         re.compile(r"Step Time : " + FLOAT + r"s GPU utilization: " + FLOAT + r"\s?(?:MODEL_)?TFLOP/s/GPU"),
         (("step_time_s", 1), ("tflops", 1))),
    Form("torchtitan", "torchtitan", "step: ", words, TORCHTITAN, TITAN, STEP),
    Form("deepspeed", "deepspeed", "SamplesPerSec=", words, DEEPSPEED, re.compile("global_step="), joins=True),
    Form("deepspeed", "deepspeed", ", skipped=", words, DEEPSPEED,
         re.compile(r" step=\d+, skipped=\d+, lr=\[" + r"([-+\d.e]{1,40})"), (("lr", 1),), joins=True),
    Form("deepspeed pipeline", "deepspeed", "iter time (s): ", words, DEEPSPEED,
         re.compile(r"steps: \d+ loss: .{1,60}? iter time \(s\): " + FLOAT), (("step_time_s", 1),)),
)  # fmt: skip
NAMES = (
    "Megatron-LM", "Megatron-DeepSpeed", "GPT-NeoX", "NeMo", "Megatron-Bridge", "torchtitan", "nanotron", "MaxText",
    "LitGPT", "Hugging Face Trainer (LLaMA-Factory, trainer_state.json)", "DeepSpeed", "Composer (LLM Foundry)",
    "nanoGPT", "nanochat", "our metrics.jsonl",
)  # fmt: skip
