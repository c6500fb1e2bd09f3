"""Sixteen plans and why an expert would sign them: docs/plans.md, its picture, and a dated result.

    python comparisons/plans.py                           everything, in about two minutes
    python comparisons/plans.py --only 4090 Mixtral --out /tmp/page     some, somewhere else

Each command is run as a user types it. What an expert says of a plan is data beside its command
(harness/plan_cases.yaml), and so is what that rests on: where a plan leaves it, this fails and names the
claim. Needs matplotlib beside the package.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.facts import facts
from harness.plan_cases import Case, Outcome, load_cases, techniques
from harness.result import Result, facts_text, table

from scalewright.plan.search.objective import Goal
from scalewright.plan.search.search import search
from scalewright.spec.hardware.cluster import load_cluster
from scalewright.spec.presets import load_model_spec
from scalewright.spec.question import Question

ROOT = Path(__file__).resolve().parents[1]
SEARCHED = ("gpt3-175b", "dgx-a100-80g", 4096, 2048, 1536)  # model, cluster, devices, length, batch
MOST_CPU_S = 2.0  # of a core, that this search should take


def main() -> None:
    """Runs the cases, writes page, picture and result, and fails where a claim doesn't hold."""
    options = arguments()
    taken = search_seconds()
    date, cases = load_cases()
    chosen = [case for case in cases if not options.only or any(word in case.title for word in options.only)]
    if not chosen:
        raise SystemExit(f"no case's title holds any of {options.only}")
    outcomes = [run(case) for case in chosen]
    broken = [claim for outcome, _ in outcomes for claim in outcome.broken()]
    docs = options.out or ROOT / "docs"
    write_page([outcome for outcome, _ in outcomes], date, docs)
    write_result(outcomes, broken, taken, options.out)
    print(f"wrote {docs / 'plans.md'} and {docs / 'plans' / 'parts.png'}")
    if broken:
        raise SystemExit("a plan has left what its line says:\n  " + "\n  ".join(broken))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="*", help="cases whose title holds one of these words")
    parser.add_argument("--out", type=Path, help="a folder for all of it; default: docs/ and results/")
    return parser.parse_args()


def search_seconds() -> list[float]:
    """CPU seconds of one search with all of its reasons: the first in this process, and two more."""
    name, place, devices, seq_len, batch = SEARCHED
    model, cluster = load_model_spec(name), load_cluster(place)
    marks = [time.process_time()]
    for _ in range(3):
        search(Question.of(model, seq_len, cluster), Goal(devices, batch, margin=0.02))
        marks.append(time.process_time())
    return [after - before for before, after in itertools.pairwise(marks)]


def run(case: Case) -> tuple[Outcome, float]:
    """A case's outcome, and the CPU seconds that its command took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    with tempfile.TemporaryDirectory() as folder:
        outcome = case.run(Path(folder))
    print(f"{case.title}: {outcome.layout}", flush=True)
    return outcome, resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def write_page(outcomes: Sequence[Outcome], date: str, docs: Path) -> None:
    """The page and its picture."""
    from harness.plan_figure import draw
    from harness.plan_page import page

    draw(outcomes, docs / "plans" / "parts.png")
    (docs / "plans.md").write_text(page(outcomes, date), encoding="utf-8")


def write_result(
    outcomes: Sequence[tuple[Outcome, float]], broken: Sequence[str], taken: list[float], folder: Path | None
) -> None:
    """The numbers behind the page, with what the searches took."""
    result = Result("plans", "Plans that an expert would sign", facts(), folder, quiet=True)
    result.say(facts_text(result.data["facts"]))
    name, _, devices, *_ = SEARCHED
    result.put("search", {"of": f"{name}, {devices} devices", "cpu_s": taken, "most_cpu_s": MOST_CPU_S})
    times = f"{taken[0]:.2f} CPU seconds, the first in its process, and {min(taken[1:]):.2f} once more"
    result.say(f"The search of {name} on {devices:,} devices took {times} (the aim: at most {MOST_CPU_S:g}).")
    result.put("broken", list(broken))
    result.put("cases", [numbers(outcome, cpu) for outcome, cpu in outcomes])
    rows = [
        (outcome.case.title, outcome.layout, f"{outcome.best['step_time_s']['p50']:.4g}",
         f"{100 * outcome.best['mfu']:.1f}%", f"{cpu:.1f}", outcome.case.signed)
        for outcome, cpu in outcomes
    ]  # fmt: skip
    result.say(table(["run", "layout", "step, s", "MFU", "CPU s of the command", "signed"], rows))
    result.say(*(broken or ["Every claim holds."]))
    result.close()


def numbers(outcome: Outcome, cpu: float) -> dict[str, Any]:
    """What the page says of a case, and the seconds of its command."""
    best, case = outcome.best, outcome.case
    keys = ("layout", "step_time_s", "mfu", "memory_gib", "memory_p10_p90_gib", "time_breakdown_s", "buys")
    return {
        "title": case.title, "command": case.command, "signed": case.signed, "line": case.line,
        "published": case.published, "techniques": techniques(best["layout"]), "cpu_s": cpu,
        **{key: best[key] for key in keys}, "usable_gib": best["device"]["usable_gib"],
        "assumed": outcome.answer["assumed"], "simpler_than": best["simpler_than"],
        "beyond": [_some(faster, "needs", "gain_pct", "layout") for faster in outcome.answer["beyond"]],
        "asked": _some(outcome.asked, "why", "layout", "slower_pct", "fits"),
    }  # fmt: skip


def _some(answer: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: answer.get(key) for key in keys}


if __name__ == "__main__":
    main()
