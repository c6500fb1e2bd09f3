"""Odd words in every option of every verb and every key of a run file, odd environments, and files made to harm."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import yaml

from harness.attempts.place import RUN, Place

WORDS = [
    "", "-1", "0", "nan", "inf", "1e400", "9" * 400, "²", "١٢", "-", "--", "\x1b[2J", "../x", "/dev/full/x", ".", "[]",
    "{}", "null", "true", "a=b", "$(touch PWNED)", "x" * 5000, "\udcff", "1,2", "1e-320", "s3://", "file:///nowhere/x",
    "%s%n", "~nobody/x", "\n", "-0", "1_000", "0x10", "1e3", "ß" * 200, "\u202e", "2147483648", "9223372036854775808",
    "0.1+0.2", "1/0", "''", "&a", "!!python/object:os.system", "@/etc/passwd", "C:\\x", "*", "tokens", "run.yaml",
]  # fmt: skip
# Verbs with words that they take; those that measure, serve or ask stay out, as they take long with good words.
BASE = {
    "plan": "gpt2 --cluster dgx-h100 --devices 8 --seq-len 128 --global-batch 8 --fix tp=1,pp=1",
    "predict": "gpt2 --cluster dgx-h100 --devices 8 --seq-len 128", "presets models": "", "presets clusters": "",
    "presets new": "--params 1e6 --like llama --vocab 99", "goodput": "--devices 64 --trials 20",
    "budget": "--params 1e9 --tokens 1e10 --cluster dgx-h100 --devices 8", "budget fit": "run run",
    "inference": "llama-3.1-8b --cluster dgx-h100 --input-len 128 --output-len 16 --concurrency 4",
    "score": "rows.csv", "explain": "MFU", "diagnose": "run/metrics.jsonl", "compare": "run run", "report": "run",
    "checkpoint ls": "run", "checkpoint verify": "run", "checkpoint prune": "run --dry-run",
    "checkpoint diff": "run run", "convert": "run converted", "evaluate": "run --data tokens --seq-len 8 --batches 1",
    "generate": "run --prompt a --max-tokens 2", "prepare": "words.jsonl --out made --vocab-size 260 --workers 1",
    "read": "run.yaml", "emit": "torchtitan run.yaml --print", "launch": "slurm run.yaml --print",
    "train": "run.yaml --dry-run", "sweep": "run.yaml optimizer.lr=1 --dry-run", "chaos": "gone.yaml",
    "serve": "gone", "chat": "gone", "calibrate": "run --cluster dgx-h100", "explore": "gpt2 --out explore.html",
    "accept": "gone.yaml", "record": "-- true", "bench step": "gone.yaml", "bench storage": "--folder gone",
}  # fmt: skip


def _options() -> list[tuple[str, str]]:
    """(verb, option that takes a value) of all verbs in BASE; "" for a word in the place of each of its own."""
    import click

    from scalewright.cli import build_app

    pairs = []
    for verb in BASE:
        command: Any = build_app()
        for word in verb.split():
            command = command.get_command(click.Context(command), word)
        pairs += [(verb, "")] * 3
        for parameter in command.params:
            if parameter.param_type_name == "option" and not parameter.is_flag:
                pairs.append((verb, next(name for name in parameter.opts if name.startswith("--"))))
    return pairs


def _keys(data: dict[str, Any], above: str = "") -> list[str]:
    """Dotted keys of a whole run."""
    keys = []
    for key, value in data.items():
        keys += [f"{above}{key}"]
        keys += _keys(value, f"{above}{key}.") if isinstance(value, dict) else []
    return keys


def bad_input(place: Place, folder: Path, number: int, draw: random.Random) -> tuple[str, str]:
    """Two of three: an option's value; the third: a key's, checked by `train --dry-run`, a plan or a launch script."""
    (folder / "rows.csv").write_text("id,model,device,n_devices,seq_len\n1,gpt2,h100-sxm,8,128\n")
    if number % 3 == 2:
        from scalewright.spec.run import RunSpec

        keys = [key for key in _keys(RunSpec.parse(RUN).dump()) if key != "environment"]
        verb = draw.choice(["train --dry-run", "train --dry-run", "launch slurm --print", "predict --cluster dgx-h100"])
        name, *flags = verb.split()
        words = [name, *([flags.pop(0)] if name == "launch" else []), "run.yaml"]
        odd = f"{draw.choice(keys)}={draw.choice(WORDS)}"
        words += ["--layout", odd] if name == "predict" else [odd]
        words += flags
    else:
        verb, option = draw.choice(_options())
        words, odd = [*verb.split(), *BASE[verb].split()], draw.choice(WORDS)
        if option:
            words[len(verb.split()) : len(verb.split())] = [option, odd] if draw.random() < 0.5 else [f"{option}={odd}"]
        else:
            words[draw.randrange(len(verb.split()), len(words)) if BASE[verb] else -1 :] = [odd]
    words = [word[:100_000] for word in words if "\0" not in word]
    done = place.call(folder, *words)
    what = " ".join(words)[:200]
    if list(folder.parent.rglob("PWNED")):
        return what, "it ran a word"
    return ascii(what), done.problem((0, 1, 2, 141))


_READ = yaml.safe_load(Path(__file__).with_name("environments.yaml").read_text(encoding="utf-8"))
ENVIRONMENTS: dict[str, str] = _READ["environments"]
TRIED = ["presets models --json", "predict gpt2 --cluster dgx-h100 --devices 8 --seq-len 128", "report run",
         "prepare words.jsonl --out o --vocab-size 260 --workers 2", "generate run --prompt a --max-tokens 2",
         "checkpoint verify run", "goodput run"]  # fmt: skip
CLOCK = """
import os, time
if shift := int(os.environ.get("CLOCK", 0)):
    real = time.time
    time.time = lambda: real() + shift
"""


def environment(place: Place, folder: Path, number: int, draw: random.Random) -> tuple[str, str]:
    """Each with a verb, another verb, and a run of two ranks, by a fresh Python in a mount namespace of its own."""
    names = list(ENVIRONMENTS)
    name, turn = names[number % len(names)], number // len(names)
    verb = "train two.yaml" if turn == 2 else draw.choice(TRIED)
    (folder / "TMP").mkdir()
    (folder / "sitecustomize.py").write_text(CLOCK)
    path = os.pathsep.join([*([str(folder)] if "clock" in name else []), os.environ.get("PYTHONPATH", "")])
    done = place.end(place.shell(folder, f"{ENVIRONMENTS[name]}\nsw {verb}", PYTHONPATH=path))
    what = f"{name}: {verb}"
    codes = (0, 1, 2) if name in _READ["may refuse"] else (0,)
    killed = {"CPU of 2 s": (-9, 137, -24, 152), "files of 512 bytes": (-25, 153)}.get(name, ())
    if done.code in killed:
        return what, ""
    if problem := done.problem(codes):
        return what, problem
    if turn == 2 and done.code == 0 and (folder / "out").exists():
        return what, place.differs(folder / "out", "run-two")
    return what, ""


EVIL = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</script><script>", "javascript:alert(1)",
        "${alert(1)}", "{{7*7}}", "\x1b]0;x\x07", "=cmd|' /C calc'!A0", "../../../etc/passwd", "]]>", "<!--",
        "' onload='alert(1)"]  # fmt: skip


def attack(place: Place, folder: Path, number: int, draw: random.Random) -> tuple[str, str]:
    """Hostile words in a run's own files become a page; or numbers of a checkpoint's small files are changed and every
    checksum is made anew; or its events name files elsewhere."""
    from scalewright.checkpoint.verify import commit_text

    run = folder / "run"
    if number % 2:
        lines = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
        word = draw.choice(EVIL)
        for row in draw.sample(lines, 3):
            row[draw.choice([*row, "message", "path", "cause"])] = word
        lines += [{"time": lines[-1]["time"], "kind": "fault", "message": word, "failure": word, "step": 3}]
        (run / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        text = (run / "run.yaml").read_text()
        (run / "run.yaml").write_text(text.replace("name: tiny", f"name: {json.dumps(word)}"))
        verb = draw.choice(
            ["report run --out page.html", "compare run run", "goodput run", "explain MFU --run run --out page.html"]
        )
        done = place.call(folder, *verb.split())
        page = folder / "page.html"
        raw = word[:8] in "<script>" and f"{word}" in page.read_text(errors="replace") if page.exists() else False
        return f"{word} {verb}", done.problem() or ("the page holds it as it is" if raw and "alert" in word else "")
    step = sorted((run / "checkpoints").iterdir())[-1]
    file = step / draw.choice(["manifest.json", "manifest.json", "state.json"])
    data = json.loads(file.read_text())
    path = _change(data, draw)
    file.write_text(json.dumps(data))
    (step / "COMMIT").write_text(commit_text(step, 8))
    score = "evaluate run --data tokens --seq-len 8 --batches 1"
    verb = draw.choice(["generate run --prompt a --max-tokens 2", "convert run out", score, "checkpoint verify run",
                        "train run.yaml out_dir=run train.steps=9"])  # fmt: skip
    done = place.call(folder, *verb.split())
    outside = [path for path in place.root.glob("*") if path.name not in ("made", folder.name)]
    return f"{file.name}: {path}; {verb}", done.problem() or (f"wrote {outside}" if outside else "")


def _change(data: Any, draw: random.Random) -> str:
    """Another value somewhere in it: its path and the value."""
    path = []
    while isinstance(data, (dict, list)) and data:
        key = draw.choice(list(data)) if isinstance(data, dict) else draw.randrange(len(data))
        path.append(str(key))
        if not isinstance(data[key], (dict, list)) or not data[key] or draw.random() < 0.15:
            value = draw.choice(
                [-1, 0, 1 << 62, 1e308, None, "", "../../x", "/etc/passwd", [], {}, True, [[[]]], "x" * 9999, -0.5]
            )
            data[key] = value
            return f"{'.'.join(path)[-80:]} = {str(value)[:20]!r}"
        data = data[key]
    return "nothing"
