"""How fast text becomes tokens: `scalewright prepare` beside `datasets` + `tokenizers`, interleaved.

    python comparisons/prepare_benchmark.py [--megabytes 8] [--rounds 3] [--processes N] [--save]

The same work for both: the Python standard library's files as JSON lines on the disk, one trained tokenizer,
as many processes, and token ids on the disk at the end.

    ours      prepare(text.jsonl, tokenizer=...)   reads, tokenizes, splits, checksums, commits .bin shards
    theirs    load_dataset("json") → map(encode_batch, batched, num_proc) → save_to_disk        (Arrow files)

Learning a tokenizer of 4,096 words from the same text is timed apart: ours against train_from_iterator. Each
round runs every contender in turn, in a fresh process, with empty caches; the median and the spread are
given. Needs `pip install datasets`, which nothing else here does.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"

OURS = """
import sys, time
from scalewright.data.prepare import prepare
if __name__ == "__main__":
    began = time.perf_counter()
    count = int(sys.argv[1])
    given = {"tokenizer": "tokenizer.json", "valid_fraction": 0, "progress": None}
    made = prepare("text.jsonl", "ours", workers=count, **given)
    print(time.perf_counter() - began, made.splits["train"]["tokens"])
"""

THEIRS = """
import sys, time
import datasets
from tokenizers import Tokenizer
datasets.disable_progress_bars()
if __name__ == "__main__":
    began = time.perf_counter()
    tokenizer = Tokenizer.from_file("tokenizer.json")
    end = tokenizer.token_to_id("<|endoftext|>")
    def encode(rows):
        found = tokenizer.encode_batch_fast(rows["text"], add_special_tokens=False)
        return {"ids": [encoding.ids + [end] for encoding in found]}
    count = int(sys.argv[1])
    data = datasets.load_dataset("json", data_files="text.jsonl", split="train", cache_dir="cache")
    data = data.map(encode, batched=True, batch_size=100, num_proc=count, remove_columns=["text"])
    data.save_to_disk("theirs", num_proc=count)
    took = time.perf_counter() - began
    print(took, sum(len(ids) for ids in data["ids"]))
"""

LEARN_OURS = """
import time
from scalewright.data.prepare import prepare
began = time.perf_counter()
made = prepare("text.jsonl", "learnt", vocab_size=4096, valid_fraction=0, workers=1, progress=None)
print(made.seconds - made.input_bytes / 1e6 / made.mb_per_s, made.vocab_size)
"""

LEARN_THEIRS = """
import json, time
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
began = time.perf_counter()
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
trainer = trainers.BpeTrainer(vocab_size=4096, special_tokens=["<|endoftext|>"], show_progress=False,
                              initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
tokenizer.train_from_iterator((json.loads(line)["text"] for line in open("text.jsonl")), trainer)
print(time.perf_counter() - began, tokenizer.get_vocab_size())
"""

CONTENDERS = {"prepare": OURS, "datasets": THEIRS, "learn, ours": LEARN_OURS, "learn, tokenizers": LEARN_THEIRS}
MADE = ("ours", "theirs", "learnt", "cache")


def write_text(folder: Path, megabytes: float) -> int:
    """The standard library as JSON lines, as many files as fit; gives the bytes of text."""
    from scalewright.data.prepare import corpus

    size = 0
    with open(folder / "text.jsonl", "w", encoding="utf-8") as out:
        for file in corpus("python-stdlib", Counter()):
            text = Path(file.path).read_text(encoding="utf-8", errors="replace")
            if not text.strip() or size + len(text) > megabytes * 1e6:
                continue
            out.write(json.dumps({"text": text}) + "\n")
            size += len(text.encode())
    return size


def time_once(folder: Path, script: str, processes: int) -> tuple[float, int]:
    """Seconds of the work itself (without imports) and the tokens made, in a fresh process without caches."""
    for name in MADE:
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / "contender.py").write_text(script)
    environment = {
        **os.environ,
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HOME": str(folder / "cache"),
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, "contender.py", str(processes)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"a contender failed:\n{done.stderr[-2000:]}")
    seconds, tokens = done.stdout.split()
    return float(seconds), int(tokens)


def measure(folder: Path, size: int, rounds: int, processes: int) -> dict[str, Any]:
    """MB/s of every contender, interleaved."""
    times: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    tokens: dict[str, int] = {}
    for number in range(rounds):
        for name, script in CONTENDERS.items():
            seconds, tokens[name] = time_once(folder, script, processes)
            times[name].append(size / seconds / 1e6)
            print(f"round {number + 1}  {name:<18} {times[name][-1]:6.2f} MB/s", file=sys.stderr)
    if tokens["prepare"] != tokens["datasets"]:
        raise SystemExit(f"not the same work: {tokens['prepare']:,} and {tokens['datasets']:,} tokens")
    rates = {
        name: {"median": statistics.median(found), "lowest": min(found), "highest": max(found)}
        for name, found in times.items()
    }
    return {"tokens": tokens["prepare"], "mb_per_s": rates}


def conditions(size: int, rounds: int, processes: int) -> dict[str, Any]:
    """What has to be known to judge the numbers."""
    versions = {name: metadata.version(name) for name in ("scalewright", "datasets", "tokenizers", "pyarrow", "numpy")}
    return {
        "date": date.today().isoformat(),
        "text_bytes": size,
        "rounds": rounds,
        "processes": processes,
        "cores": os.cpu_count(),
        "load_average_before": [round(value, 2) for value in os.getloadavg()],
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "versions": versions,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the comparison and prints it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--save", action="store_true", help="keep the result as comparisons/results/prepare-DATE.json")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = write_text(folder, chosen.megabytes)
        result = conditions(size, chosen.rounds, chosen.processes)
        from scalewright.data.prepare import prepare

        prepare(folder / "text.jsonl", folder / "words", vocab_size=4096, workers=1, progress=None)
        shutil.copy(folder / "words" / "tokenizer.json", folder)
        began = time.monotonic()
        result.update(measure(folder, size, chosen.rounds, chosen.processes))
        result["seconds"] = round(time.monotonic() - began, 1)
    rates = result["mb_per_s"]
    result["ratio"] = rates["prepare"]["median"] / rates["datasets"]["median"]
    print(json.dumps(result, indent=1))
    if chosen.save:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"prepare-{result['date']}.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
