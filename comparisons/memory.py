"""What each technique does to memory: live tensor bytes on every rank, beside what its paper says.

    python comparisons/memory.py                       all of them, a Llama of 12M parameters; minutes
    python comparisons/memory.py --cases "tp 2" "one device" --json
    python comparisons/memory.py --quick               a tiny model

CPU processes run the trainer's real program over Gloo in fp32, and a meter of live tensors stands where a
GPU's allocator would. Kinds are each at their own highest; `gathered` is what data parallelism gathers into
and reduces from; `kept` are activations that wait for the backward when the first loss begins. Peaks are held
against one device with the same micro-batch, which is measured too. Exit code 1 when a claim doesn't hold.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness.facts import facts, load_average
from harness.live_memory import Found
from harness.memory_cases import CASES, Case, baseline, falling, with_baselines
from harness.memory_claims import Setting
from harness.result import Result, facts_text, table

from scalewright.spec.model import ModelSpec

SHAPE = {"vocab_size": 4096, "hidden_size": 320, "intermediate_size": 864, "num_hidden_layers": 8}
TINY = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 8}
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 4}
KINDS = ("parameters", "gradients", "optimizer", "buffers", "activations", "kept", "peak")


def main() -> int:
    """Measures, writes the result, and says whether every claim holds."""
    options = arguments()
    shape, seq_len = (TINY, 64) if options.quick else (SHAPE, options.seq_len)
    model = ModelSpec.parse({"name": "small-llama", "context": seq_len, **shape, **HEADS})
    setting = Setting(model, seq_len)
    with tempfile.TemporaryDirectory(prefix="scalewright-memory-") as scratch:
        folder = Path(options.out) if options.out else (Path(scratch) if options.quick else None)
        result = Result("memory", "What each technique does to memory", facts(), folder, quiet=options.json)
        result.say("Hardware and versions:", "", facts_text(result.data["facts"]))
        result.put("model", {**model.dump(), "parameters": int(setting.weights / 4)})
        result.put("seq_len", seq_len)
        cases = run(setting, options.cases, result)
        result.put("load_average_at_the_end", load_average())
        show(setting, cases, result)
        result.close()
        if options.json:
            print(json.dumps(result.data))
        else:
            print(f"wrote {result.json} and {result.markdown}")
    holds = [claim["holds"] for case in cases.values() for claim in case["claims"]]
    return int(not all(holds + [fell["fell"] for fell in result.data["falling"]]))


def arguments() -> argparse.Namespace:
    """The command line."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--cases", nargs="+", default=[case.name for case in CASES], help="some of them, by name")
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--quick", action="store_true", help="a tiny model")
    parser.add_argument("--json", action="store_true", help="prints the result as one JSON document")
    parser.add_argument("--out", default=None, help="folder of the result; default: comparisons/results")
    options = parser.parse_args()
    unknown = set(options.cases) - {case.name for case in CASES}
    if unknown:
        parser.error(f"no case {sorted(unknown)}: there are {[case.name for case in CASES]}")
    return options


def run(setting: Setting, names: list[str], result: Result) -> dict[str, dict[str, Any]]:
    """Every case's numbers and claims, and those of one device that they are held against."""
    cases: dict[str, dict[str, Any]] = {}
    one: Found = []
    for case in with_baselines(names):
        found = case.measure(setting)
        one = one or found
        cases[case.name] = answer(case.setting(setting), case, found, one)
        result.put("cases", cases)
        print(f"{case.name}: peak {_mb(_highest(found))} MB", file=sys.stderr, flush=True)
    fell = falling({name: case["ranks"] for name, case in cases.items()})
    keys = ("kind", "from", "to", "fell")
    result.put("falling", [dict(zip(keys, entry, strict=True)) for entry in fell])
    return cases


def answer(setting: Setting, case: Case, found: Found, one: Found) -> dict[str, Any]:
    """One case as plain data."""
    claims = case.claims(setting, case.keys, found, one)
    plain = [claim.dump() for claim in claims]
    return {"layout": case.keys, "baseline": baseline(case), "ranks": found, "claims": plain}


def show(setting: Setting, cases: dict[str, dict[str, Any]], result: Result) -> None:
    """The tables: what was measured, and how it compares."""
    shape = setting.model
    result.say(
        f"A Llama of {setting.weights / 4e6:.1f}M parameters ({shape.num_hidden_layers} layers, hidden "
        f"{shape.hidden_size}), {setting.seq_len} tokens a row, AdamW in fp32. MB (1e6 bytes) on a rank; "
        "where ranks differ, first and last. The last column divides the fullest rank's peak by that of one "
        "device with the same micro-batch."
    )
    heads = [
        "",
        "parameters",
        "gradients",
        "optimizer",
        "gathered",
        "activations",
        "kept",
        "peak",
        "held against",
        "of its peak",
    ]
    rows = []
    for name, case in cases.items():
        first, last = case["ranks"][0], case["ranks"][-1]
        cells = [_pair(first[kind], last[kind]) for kind in KINDS]
        against = case["baseline"]
        share = _highest(case["ranks"]) / _highest(cases[against]["ranks"])
        rows.append([name, *cells, against, f"{share:.2f}"])
    result.say(table(heads, rows))
    rows = [
        [
            name,
            claim["text"],
            _mb(claim["measured"]),
            _mb(claim["expected"]),
            _differs(claim),
            "yes" if claim["holds"] else "NO",
        ]
        for name, case in cases.items()
        for claim in case["claims"]
    ]
    result.say(
        "Beside the papers' formulas:",
        "",
        table(["", "the paper's", "measured, MB", "formula, MB", "differs by", "holds"], rows),
    )
    fell = [f"- {'' if e['fell'] else 'NOT '}{e['kind']}: {e['from']} > {e['to']}" for e in result.data["falling"]]
    result.say("What falls, as it must:", "", *fell)


def _highest(ranks: Found) -> int:
    """The fullest rank's peak."""
    return max(rank["peak"] for rank in ranks)


def _mb(size: float) -> str:
    return f"{size / 1e6:.2f}"


def _pair(first: float, last: float) -> str:
    """One number where first and last rank agree within a percent."""
    same = abs(first - last) <= 0.01 * max(first, last)
    return _mb(first) if same else f"{_mb(first)} / {_mb(last)}"


def _differs(claim: dict[str, Any]) -> str:
    if not claim["expected"]:
        return "–"
    sign = "≤ " if claim["at_most"] else "±"
    return f"{claim['measured'] / claim['expected'] - 1:+.1%} ({sign}{claim['tolerance']:.0%})"


if __name__ == "__main__":
    sys.exit(main())
