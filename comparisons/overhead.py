"""What our loop costs beyond a bare PyTorch loop over the same model and samples; the aim is 2% of a step.

    python comparisons/overhead.py                 llama-15m and llama-56m, fp32 and bf16
    python comparisons/overhead.py --quick         a tiny model, two rounds

Two answers, from one process:

    in turns     ours, bare, bare again, a few steps each; (ours - bare) / bare round by round, beside what
                 the same loop differs from itself by: a smaller difference than that is no difference
    CPU time     of each loop, outside forward, backward and the optimizer's step. What a bare loop spends
                 there too (norm, clipping, zeroing) is part of both; the rest is the framework's

The bare loop has our model and our loss, so that a faster one of them can't hide what the loop costs. The
second answer doesn't depend on how busy the machine is, so it is the sharper of the two.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from harness.bare import BareLoop, BareLoopOurLoss, bare
from harness.contest import Contest, Plan, contest
from harness.facts import facts, load_average
from harness.meter import Meter
from harness.models import TINY
from harness.ours import Ours
from harness.result import Result, facts_text, table
from harness.setting import Setting, prepare_corpus
from harness.statistics import Spread, paired_difference, spread

from scalewright.spec.presets import load_model_spec

OURS, BARE, AGAIN = "scalewright", "bare loop", "bare loop again"
AIM = 0.02
# bf16 gradients become fp32 inside our backward, and after the bare one: in neither case a cost of the loop.
CAST = "gradients handed over"


def main() -> None:
    """Both answers for every model and precision."""
    options = arguments()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if options.threads:
        torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory(prefix="scalewright-comparison-") as folder:
        work = Path(folder)
        out = Path(options.out) if options.out else (work if options.quick else None)
        result = Result("overhead", "What our loop costs beyond a bare PyTorch loop", facts(), out)
        result.say("Hardware and versions:", "", facts_text(result.data["facts"]))
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
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--segment-seconds", type=float, default=3.0)
    parser.add_argument("--least", type=int, default=2, help="steps of a segment at least")
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--batch", type=int, default=2, help="sequences a step")
    parser.add_argument("--threads", type=int, default=1, help="of torch; CPU time is exact with one")
    parser.add_argument("--out", default=None, help="folder of the result; default: comparisons/results")
    options = parser.parse_args()
    if options.quick:
        options.models, options.rounds, options.segment_seconds, options.seq_len = ["tiny"], 2, 0.2, 64
    return options


def run_one(name: str, precision: str, options: argparse.Namespace, work: Path, result: Result) -> None:
    """One model in one precision."""
    model = TINY if name == "tiny" else load_model_spec(name)
    data = prepare_corpus(work, min(model.vocab_size, 8192))
    setting = Setting(model, data, work / f"{name}-{precision}", options.seq_len, options.batch)
    most = 4 if options.quick else 50
    plan = Plan(options.rounds, options.segment_seconds, options.least, most, warm_up=3)
    traced = 4 if options.quick else 6
    steps = plan.warm_up + plan.rounds * plan.most + traced
    samples, kind = setting.samples(steps), "masters" if precision == "bf16" else precision
    ours = Ours(setting.run("ours", precision, steps + 1000), OURS)
    loops = [bare(setup, setting, samples, kind, BareLoopOurLoss) for setup in (BARE, AGAIN)]
    result.say(f"## {name}, {precision}")
    found = contest([ours, *loops], plan, tell=lambda text: print(text, flush=True))
    accounts = {OURS: account_ours(ours, traced), BARE: account_bare(loops[0], traced)}
    ours.close()
    answer = {
        **found.dump(setting.tokens, OURS),
        "wall_share": share(found, "wall_s", OURS).dump(),
        "cpu_share": share(found, "cpu_s", OURS).dump(),
        "noise_wall_share": share(found, "wall_s", AGAIN).dump(),
        "noise_cpu_share": share(found, "cpu_s", AGAIN).dump(),
        "cpu_s_per_step_by_part": accounts,
        "outside_share": outside_share(accounts),
    }
    result.put(f"{name} {precision}", answer)
    show(result, answer, found)


def share(found: Contest, clock: str, name: str) -> Spread:
    """(name - bare) / bare, round by round."""
    one, other = getattr(found.times[name], clock), getattr(found.times[BARE], clock)
    return paired_difference([a / b for a, b in zip(one, other, strict=True)], [1.0] * len(other))


def outside_share(accounts: dict[str, dict[str, float]]) -> float:
    """Ours beyond the bare loop, by CPU time outside the three, as a share of the bare loop's step."""
    ours, bare = (account["outside"] - account.get(CAST, 0.0) for account in accounts.values())
    return (ours - bare) / accounts[BARE]["all"]


def show(result: Result, answer: dict[str, Any], found: Contest) -> None:
    """Both answers as text."""
    form = "{:+.2%}"
    rows = [
        [f"in turns, {clock}", *(Spread(**answer[f"{who}{key}"]).show(form) for who in ("", "noise_"))]
        for clock, key in (("wall clock", "wall_share"), ("CPU time", "cpu_share"))
    ]
    rows.append(["CPU time outside the three", form.format(answer["outside_share"]), "–"])
    step = spread(found.times[BARE].wall_s)
    result.say(
        f"A step of the bare loop takes {step.show('{:.3f}')} s; {found.plan.rounds} rounds of"
        f" {found.steps} steps. The aim is {AIM:.0%}.",
        "",
        table(["beyond the bare loop, share of its step", "ours", "the bare loop again"], rows),
    )
    accounts = answer["cpu_s_per_step_by_part"]
    parts = list(dict.fromkeys(part for account in accounts.values() for part in account))
    rows = [[part, *(_ms(account.get(part)) for account in accounts.values())] for part in parts]
    result.say("CPU milliseconds a step by part:", "", table(["", *accounts], rows))


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e3:.3f}"


def account_ours(ours: Ours, steps: int) -> dict[str, float]:
    """Ours by part. The parts beyond the three are named so that a dear one can be found."""
    meter, step = Meter(), ours.step
    weights, gradients = step.parallel.weights, step.parallel.gradients
    targets: list[tuple[str, object, str]] = [
        ("forward", step.parallel.model, "forward"),
        ("forward", step, "loss"),
        ("backward", torch.Tensor, "backward"),
        ("optimizer step", step.optimizer, "step"),
        ("norm, clip", step, "_update"),
        ("bf16 copies", weights, "publish"),
        (CAST, weights, "take_gradients"),
        ("gradient sums cleared", gradients, "clear"),
        ("row written", ours.record, "step"),
        ("seeds", ours.session, "seed"),
    ]
    with meter.attached(targets):
        return meter.account(lambda: ours.segment(steps), steps)


def account_bare(loop: BareLoop, steps: int) -> dict[str, float]:
    """The bare loop by part."""
    meter = Meter()
    targets: list[tuple[str, object, str]] = [
        ("forward", loop, "logits"),
        ("forward", loop, "loss"),
        ("backward", torch.Tensor, "backward"),
        ("optimizer step", loop.optimizer, "step"),
        ("norm, clip", loop, "clip_gradients"),
        ("bf16 copies", loop, "publish"),
        (CAST, loop, "take_gradients"),
    ]
    with meter.attached(targets):
        return meter.account(lambda: loop.run(steps), steps)


if __name__ == "__main__":
    main()
