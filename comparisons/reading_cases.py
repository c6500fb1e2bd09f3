"""Public reports about logs, dumps, scripts and configurations, asked: `python comparisons/reading_cases.py DIR`.

DIR has a folder a case, `read-NN-name`, with inputs of our own writing in the form of a report, and this file
has the command that its author would give and what the thread established: words that the answer has to have,
words that it mustn't have, and numbers with their range. A refusal is right where it names the reason.

    case ──► scalewright diagnose | predict ──► exit code, words, numbers ──► right, or what is wrong

Exit code 1 when one is wrong. The folder stays outside the repository; the dated result is kept.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from harness.cases import case_options, case_result, conclude
from harness.facts import ROOT


@dataclass(frozen=True)
class Asked:
    """One command in a case's folder, and what its answer must be."""

    command: str
    established: str
    words: tuple[str, ...] = ()  # regular expressions that occur
    never: tuple[str, ...] = ()  # and that don't
    numbers: dict[str, tuple[float, float]] = field(default_factory=dict)  # expression with one group -> its range
    code: int = 0

    def wrong(self, code: int, text: str) -> str:
        """What differs from what was established; empty where nothing does."""
        wrong = [f"exit code {code}"] if code != self.code else []
        wrong += [f"lacks {word!r}" for word in self.words if not re.search(word, text)]
        wrong += [f"has {word!r}" for word in self.never if re.search(word, text)]
        for expression, (low, high) in self.numbers.items():
            match = re.search(expression, text)
            value = float(match[1].replace(",", "")) if match else None
            if value is None or not low <= value <= high:
                wrong.append(f"{expression!r} is {value}, not within {low:g} to {high:g}")
        return "; ".join(wrong)


MEMORY = r"([\d.]+) of [\d.]+ GiB"
CASES: dict[str, tuple[Asked, ...]] = {
    "01": (Asked(
        "diagnose train.log", "rank 7 called BROADCAST where ranks 1 and 3 called ALLREDUCE: not the network",
        (r"\Ahung: ranks called different collectives: look at rank 7", "epoch's end"),
    ),),
    "03": (Asked(
        "diagnose train.log", "the loss fell to exactly 0.0, then a hang with rank 5's watchdog; a step takes 2.8 s",
        (r"(?s)loss.{0,80}\b0(\.0)?\b", "timed out|hung"), numbers={r"([\d.]+) s\b": (2.7, 2.95)},
    ),),
    "04": (Asked(
        "diagnose job.log", "libibverbs is missing, so TCP; P2P is off within a node",
        ("libibverbs", "sockets instead of InfiniBand", "shared memory instead of P2P"),
    ),),
    "06": (Asked(
        "diagnose second.log --cluster dgx-h100", "TP 2 and EP 8 with grouped GEMM reach 230 to 240 TFLOP/s",
        ("tp 2", "ep 8", "batch 128"), (r"\bslow:",), {r"([\d.]+) TFLOP/s a device": (230, 240)},
    ),),
    "08": (Asked(
        "diagnose train.log", "26.1 s a step; a network that shards badly, which this log doesn't tell",
        ("not in the log",), numbers={r"([\d.]+) s a step": (26, 26.2)},
    ),),
    "09": (Asked(
        "diagnose train.log --model gpt-neox-20b --cluster dgx-a100-40g --layout devices=8,tp=2 --seq-len 2048",
        "36 TFLOP/s, 256 sequences in 52.5 s: several times slower than it should be",
        (r"gbs 256|batch 256", "slow"), ("gbs 16",), {r"([\d.]+) TFLOP/s a device": (35, 37)},
    ),),
    "10": (Asked(
        "diagnose train.log", "nanochat's line is read; its MFU is by another card's peak",
        ("nanochat",), numbers={r"([\d,]+) tokens/s": (520_000, 535_000)},
    ),),
    "11": (
        Asked(
            "diagnose train.log", "0.73 s a step, local batch 1, sequences of 8,192",
            ("cp 2", "8,192", "torchtitan"), ("sequence length[,;]",), {r"a step +([\d.]+) ms": (700, 760)},
        ),
        Asked(
            "diagnose train.log --model llama-3-8b --seq-len 8192 --cluster dgx-h100",
            "the batch of the log is compared: 2 sequences a step", (r"batch 2\b", "cp 2"), ("gbs 8",),
        ),
    ),
    "12": (Asked(
        "diagnose train.log", "562 ms a step", ("nanogpt",), numbers={r"([\d.]+) ms a step": (555, 570)},
    ),),
    "14": (
        Asked(
            "predict llama-3-8b --from z3.yaml --cluster rtx-3090 --devices 8",
            "ZeRO-3 alone runs out of 24 GB; the batch is 16", ("micro-batch 1 x 2",), (r"GiB.*: fits",),
            {r"-([\d.]+) GiB": (21.6, 40)},
        ),
        Asked(
            "predict llama-3-8b --from z3_offload.yaml --cluster rtx-3090 --devices 8",
            "with offload it runs with 13 GB a card", (r"(?s)GiB.{0,80}: (fits|likely to fit)",), (), {MEMORY: (3, 17)},
        ),
    ),
    "15": (Asked(
        "predict qwen2.5-32b --from sft.yaml --cluster dgx-a800 --devices 8",
        "out of memory on 8; offload is needed", ("unlikely to fit|does not fit", "offload optimizer"),
    ),),
    "17": (Asked(
        "predict qwen2.5-72b --from ds_z3_offload.json --cluster dgx-a100-80g --devices 8 --seq-len 2560"
        " --micro-batch 4 --global-batch 32",
        "it runs on the cards, with recomputation; the host's memory is the limit",
        (r"[\d.]+ of [\d.]+ GiB of the host", r"makes it fit: recompute full \([1-7]\d\."),
    ),),
    "19": (Asked(
        "predict --from finetune.sh --cluster dgx-a100-40g", "out of memory whatever the length: 18 bytes a parameter",
        ("8 x a100-sxm-40", "does not fit", "zero_stage"), numbers={MEMORY: (108, 122)},
    ),),
    "20": (
        Asked(
            "predict --from bench.sh --cluster dgx-h100",
            "the branch of 70b: 84 layers of 8,192, TP 8, PP 2, batch 384",
            (r"tp 8 · pp 2", r"768 x h100", "MODEL_SIZE", "micro-batch 1 x 8"),
        ),
        Asked(
            "predict --from flattened.sh --cluster dgx-h100", "the same without branches",
            (r"tp 8 · pp 2", r"768 x h100", "micro-batch 1 x 8"),
        ),
    ),
    "21": (Asked(
        "predict --from run.sh --cluster dgx-a100-80g",
        "2,357 tokens/s a device are published (6.95 s a step), 1,900 were had (8.6 s), which is slow",
        (r"tp 4",), (), {r"take [\d.]+-([\d.]+) s": (6.5, 8.6), r"take ([\d.]+)-": (4.5, 6.95)},
    ),),
    "23": (
        Asked(
            "predict --from sft.sh --cluster dgx-h100", "the model of the checkpoint that it loads, experts over 8",
            (r"qwen3-30b-a3b on 8 x h100", "ep 8"), ("no trainer's",),
        ),
        Asked(
            "predict qwen3-30b-a3b --from sft.sh --cluster dgx-h100", "with it, the script's own layout is priced",
            ("micro-batch",),
        ),
    ),
    "24": (Asked(
        "predict --from 13B.yml --cluster rtx-3090 --devices 4", "stage 3 with parameters and optimizer on the host",
        ("offload", "zero 3"), ("offload_param",),
    ),),
    "26": (Asked(
        "predict qwen3-32b --from sft.yaml --cluster hgx-h200 --devices 8", "out of memory at the update",
        ("unlikely to fit|does not fit", "zero_stage 3"),
    ),),
    "28": (Asked(
        "predict qwen2.5-32b --from sft.yaml --cluster nvl.yaml --devices 1",
        "the card holds it, the host of 744 GB doesn't: killed with -9", ("(?i)host",), (), {MEMORY: (2, 80.5)},
    ),),
    "31": (Asked(
        "diagnose dumps", "rank 0 never came and left no dump: its log tells",
        ("rank 0", "never came to default_pg #21", "left no dump", "this rank.s log"),
    ),),
    "32": (Asked(
        "diagnose dumps", "sizes of all_to_all #31 disagree",
        ("mismatch", r"rank 5 called all_to_all .* where the others"), ("no hang in these",),
    ),),
    "34": (Asked(
        "diagnose job.log", "adapters that can't reach each other: GID index, routing",
        ("NCCL_IB_GID_INDEX", "10.21.210.236"),
    ),),
    "35": (Asked(
        "diagnose train.log", "lines of an older run stand in it", ("11.5 s", "(?i)older|back|another run|earlier"),
    ),),
}  # fmt: skip
NOT_JUDGED = {"30": "the report's rows are padded or packed, which it doesn't tell: no truth to judge by"}


def main() -> int:
    """Asks every case that is there."""
    options = case_options(__doc__, CASES)
    result = case_result("reading-cases", "Public reports about logs, scripts and configurations, asked", options)
    rows = []
    for folder in sorted(options.folder.glob("read-*")):
        number = folder.name.split("-")[1]
        if number in NOT_JUDGED:
            rows.append([folder.name, NOT_JUDGED[number], "not judged"])
        for asked in CASES.get(number, ()) if number in options.only else ():
            code, text = run(folder, asked.command)
            wrong = asked.wrong(code, text)
            rows.append([folder.name, asked.established, wrong or "right"])
            head = text.splitlines()[:40] if wrong else text.splitlines()[:5]
            result.put(f"{folder.name}: {asked.command}", {"wrong": wrong, "output": head})
            print(f"{folder.name}: {wrong or 'right'}", flush=True)
    return conclude(result, ["case", "established", "verdict"], rows)


def run(folder: Path, command: str) -> tuple[int, str]:
    """Its exit code and what it printed; of both streams, since a refusal is an answer."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "COLUMNS": "400"}
    done = subprocess.run(
        [sys.executable, "-m", "scalewright", *command.split()], cwd=folder, env=environ, timeout=300,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
    )  # fmt: skip
    return done.returncode, done.stdout


if __name__ == "__main__":
    sys.exit(main())
