"""Tokens per second of our trainer on a CPU, beside a bare PyTorch loop and the peers, in turns.

    python comparisons/cpu_benchmark.py              15M and 56M parameters, fp32 and bf16: some ten minutes
    python comparisons/cpu_benchmark.py --quick      a tiny model, two rounds, no result file unless --out

Everyone has the same Llama shape, first weights, samples, fused AdamW and clipping; that the losses agree is
checked before any speed is shown. Ours is the real loop on a prepared corpus, reading and writing as in a
run; the peers get their samples from memory.

Needs, besides scalewright[train]: transformers and accelerate for Hugging Face's rows, and for litgpt's
`pip install --no-deps litgpt lightning lightning-utilities torchmetrics`. What is missing is left out, and
the result says so.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from harness.bare import bare
from harness.contest import Contest, Contestant, Plan, contest
from harness.facts import facts, load_average
from harness.models import TINY
from harness.ours import Ours
from harness.profile import KINDS, shares
from harness.result import Result, facts_text, table
from harness.setting import Setting, prepare_corpus
from harness.statistics import Spread

from scalewright.spec.presets import load_model_spec
from scalewright.spec.tensors import count

OURS, BARE = "scalewright", "bare loop, our model"
PROFILED = 2  # steps
NEEDS = {
    "hugging face": ("transformers",),
    "trainer": ("transformers", "accelerate"),
    "litgpt": ("litgpt", "lightning"),
}
# Losses of one start, one order of samples and one update: in fp32 they differ by rounding, in bf16 by what
# each casts, over the few steps of a contest.
AGREEMENT = {"fp32": 1e-3, "bf16": 2e-2}


def main() -> None:
    """Runs every size in every precision."""
    options = arguments()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if options.threads:
        torch.set_num_threads(options.threads)
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="scalewright-comparison-")))
        folder = Path(options.out) if options.out else (work if options.quick else None)
        result = Result("cpu-benchmark", "Training speed on a CPU", facts(), folder)
        result.say("Hardware and versions:", "", facts_text(result.data["facts"]))
        result.say(*method(options))
        result.put("missing", missing())
        for line in missing():
            result.say(f"Left out: {line}")
        for name in options.models:
            for precision in options.precisions:
                run_one(name, precision, options, work, result)
        result.put("load_average_at_the_end", load_average())
        result.say(f"Load average at the end: {load_average()}")
        result.close()
        print(f"wrote {result.json} and {result.markdown}")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tiny model, two rounds")
    parser.add_argument("--models", nargs="+", default=["llama-15m", "llama-56m"], help="presets")
    parser.add_argument("--precisions", nargs="+", default=["fp32", "bf16"], choices=["fp32", "bf16"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--segment-seconds", type=float, default=4.0)
    parser.add_argument("--least", type=int, default=2, help="steps of a segment at least")
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--batch", type=int, default=2, help="sequences a step")
    parser.add_argument("--threads", type=int, default=None, help="of torch; default: all usable cores")
    parser.add_argument("--out", default=None, help="folder of the result; default: comparisons/results")
    options = parser.parse_args()
    if options.quick:
        options.models, options.rounds, options.segment_seconds = ["tiny"], 2, 0.2
        options.seq_len = 64
    return options


def method(options: argparse.Namespace) -> list[str]:
    """How it was measured, for the reader of the result."""
    return [
        f"{options.batch} sequences of {options.seq_len} tokens a step, fused AdamW, clipping at 1.0.",
        f"Contestants take turns in {options.rounds} rounds, every second one in the opposite order, in one",
        "process. Figures are medians over the rounds with their 20th and 80th percentile. `ours / it` is",
        "taken round by round: above 1, ours is faster. Tokens per CPU second count the processor time of",
        "the whole process, which other work on the machine disturbs less than the wall clock. `bf16: fp32",
        "masters, bf16 copies` is what our `precision: bf16` means; gradients are summed in fp32. Everyone",
        "runs eagerly; nothing is compiled.",
    ]


def missing() -> list[str]:
    """Peers that aren't installed."""
    found = []
    for peer, modules in NEEDS.items():
        absent = [module for module in modules if importlib.util.find_spec(module) is None]
        if absent:
            found.append(f"{peer} ({', '.join(absent)} not installed)")
    return found


def run_one(name: str, precision: str, options: argparse.Namespace, work: Path, result: Result) -> None:
    """One size in one precision."""
    model = TINY if name == "tiny" else load_model_spec(name)
    data = prepare_corpus(work, min(model.vocab_size, 8192))
    setting = Setting(model, data, work / f"{name}-{precision}", options.seq_len, options.batch)
    most = 4 if options.quick else 50
    plan = Plan(options.rounds, options.segment_seconds, options.least, most, warm_up=3)
    contestants = make(setting, precision, plan.warm_up + plan.rounds * plan.most + PROFILED)
    parameters = count(model).total
    result.say(f"## {name}: {parameters / 1e6:.1f}M parameters, {precision}")
    found = contest(contestants, plan, tell=lambda text: print(text, flush=True))
    disagreement = found.disagreement(BARE)
    check_losses(disagreement, AGREEMENT[precision])
    ours, peer = contestants[0], next((c for c in contestants if c.name == "bare loop, HF Llama"), None)
    profiles = {OURS: shares(lambda: ours.run(PROFILED), model.vocab_size)}
    if peer is not None:
        profiles[peer.name] = shares(lambda: peer.run(PROFILED), model.vocab_size)
    for contestant in contestants:
        contestant.close()
    result.put(
        f"{name} {precision}",
        {
            "parameters": parameters,
            "model": model.dump(),
            **found.dump(setting.tokens, OURS),
            "largest_loss_difference_from_the_bare_loop": disagreement,
            "profiles": profiles,
        },
    )
    result.say(speed_table(found, setting.tokens, disagreement))
    result.say("Where the time goes (share of CPU time, torch's profiler):", "", profile_table(profiles))


def make(setting: Setting, precision: str, steps: int) -> list[Contestant]:
    """Everyone who is installed; ours first."""
    samples = setting.samples(steps)
    makers: list[Callable[[], Contestant]] = [
        lambda: Ours(setting.run("ours", precision, steps + 1000), OURS),
        lambda: bare(BARE, setting, samples, "masters" if precision == "bf16" else precision),
    ]
    if precision == "bf16":
        makers.append(lambda: bare("bare loop, our model, autocast", setting, samples, "bf16-mixed"))
    away = " ".join(missing())
    mixed = "bf16-mixed" if precision == "bf16" else precision
    if "hugging face" not in away:
        from harness.hugging_face import bare_llama

        makers.append(lambda: bare_llama("bare loop, HF Llama", setting, samples, mixed))
    if "trainer" not in away:
        from harness.hugging_face import TrainerLoop

        makers.append(lambda: TrainerLoop("HF Trainer", setting, samples, bf16=precision == "bf16"))
    if "litgpt" not in away:
        from harness.lit_gpt import LitLoop

        makers.append(lambda: LitLoop("litgpt", setting, samples, mixed))
        if precision == "bf16":
            makers.append(lambda: LitLoop("litgpt, bf16-true", setting, samples, "bf16-true"))
    return [maker() for maker in makers]


def check_losses(disagreement: dict[str, float], allowed: float) -> None:
    """Raises when someone trained something else: speed would mean nothing then."""
    wrong = {name: value for name, value in disagreement.items() if not value <= allowed}
    if wrong:
        raise SystemExit(f"losses differ by more than {allowed:g} from the bare loop's: {wrong}")


def speed_table(found: Contest, tokens: int, disagreement: dict[str, float]) -> str:
    """One line a contestant."""
    rows = []
    data: dict[str, Any] = found.dump(tokens, OURS)["contestants"]
    for name, entry in data.items():
        rows.append(
            [
                name,
                entry["precision"],
                Spread(**entry["tokens_per_s"]).show("{:.0f}"),
                Spread(**entry["tokens_per_cpu_s"]).show("{:.0f}"),
                Spread(**entry["ours_is_faster_by"]).show("{:.3f}"),
                Spread(**entry["ours_is_faster_by_cpu_time"]).show("{:.3f}"),
                f"{disagreement.get(name, float('nan')):.1e}",
            ]
        )
    heads = [
        "trainer",
        "precision",
        "tokens/s",
        "tokens per CPU s",
        "ours / it",
        "ours / it, CPU time",
        "loss differs by",
    ]
    return table(heads, rows)


def profile_table(profiles: dict[str, Any]) -> str:
    """Shares side by side."""
    rows = [[kind, *(f"{p['shares'][kind]:.1%}" for p in profiles.values())] for kind in KINDS]
    rows.append(["CPU s a step", *(f"{p['cpu_s'] / PROFILED:.2f}" for p in profiles.values())])
    return table(["", *profiles], rows)


if __name__ == "__main__":
    main()
