"""Scaling-law problems and published figures beside what `scalewright budget` answers: the error of each.

    python comparisons/budget_truth.py PROBLEMS.json... --json results.json > results.md

PROBLEMS: lists of problems with `id`, `inputs` and `answer`, of two makes: {value, unit, tolerance} (area A), or keys
with values and one `tolerance_pct` (topic scaling-law). The beginning of a problem's name says which kind it is, its
inputs are asked. One that no command answers is listed with the reason. `as data`: its answer is a printed constant,
or a row of a printed table, that the tool ships.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import scalewright as sw
from scalewright.budget.laws import find_law, laws, worth_of
from scalewright.budget.recipe import recipes

OUT_OF_REACH = {  # by what the question is about
    r"^delphi|^ladder-2pt|^gadre-claim": "about other people's forecasts, not a figure that a budget has",
    r"^marin-\d+$": "needs the isoFLOP runs of that project, which aren't published as a law",
    r"^bopt": "an exponent alone: no law with a coefficient is shipped",
    r"^dsllm-exp": "an exponent of a corpus that was never released",
}
OFF = {  # why an answer is known to be off
    r"^kaplan-ln": "the joint fit of N and D (table 2); the problem has the separate fit of N alone (eq. 1.1)",
    r"^kaplan-compute": "table 3's own slope here is 0.498; the problem has the printed 0.50",
}
DATASETS = {"rw_": "gadre-refinedweb", "c4_": "gadre-c4", "rpj": "gadre-redpajama"}


def ask(problem: dict[str, Any]) -> dict[str, float] | float | None:
    """The tool's answer to one problem; None where it gives none."""
    name, inputs, text = problem["id"], problem["inputs"], problem["question"].lower()
    for pattern, answer in RULES.items():
        if re.search(pattern, name):
            return answer(inputs, text)
    return None


def p50(key: str, **keys: Any) -> float:
    return float(sw.budget(**keys)[key]["p50"])


def approach(inputs: dict[str, Any], text: str) -> float:
    return p50("tokens", params=inputs["params"], law=f"chinchilla-{inputs['approach']}")


def served(key: str) -> Callable[[dict[str, Any], str], float]:
    def answer(inputs: dict[str, Any], text: str) -> float:
        keys = {"loss": inputs["loss"]} if "loss" in inputs else {"params": inputs.get("big", 30e9)}
        found = sw.budget(law="sardana", serve=inputs["inference_tokens"], **keys)["serve"]
        if "small" in inputs:
            law, big, small = find_law("sardana"), inputs["big"], inputs["small"]
            e, a, b, alpha, beta = law.fit
            tokens = (b / (law.predict(big, law.tokens(big)) - e - a / small**alpha)) ** (1 / beta)
            total = [
                6 * n * d + 2 * n * inputs["inference_tokens"] for n, d in ((big, law.tokens(big)), (small, tokens))
            ]
            return 1 - total[1] / total[0]
        return {"saving": found["ratio"], "tokens": found["train_tokens"], "saved": 1 - found["ratio"]}[key]

    return answer


def recipe(name: str, key: str) -> Callable[[dict[str, Any], str], float]:
    def answer(inputs: dict[str, Any], text: str) -> float:
        tokens = inputs.get("C", 6e18) / 6e9
        return float(next(row for row in recipes(1e9, 1e9, tokens, inputs.get("L")) if row["name"] == name)[key])

    return answer


def size_and_tokens(inputs: dict[str, Any], text: str) -> dict[str, float]:
    found = sw.budget(params=inputs["N"], tokens=inputs["D"])
    return {"flops": found["budget"]["flops"], "tokens_per_param": found["tokens_per_param"]}


def gadre(inputs: dict[str, Any], text: str) -> float:
    name = next(law for key, law in DATASETS.items() if f"of {key}" in text)
    return float(find_law(name).predict(inputs["params"], inputs["tokens"]))


def by_constants(inputs: dict[str, Any], text: str) -> float:
    law = next(law for law in laws().values() if law.form == "parametric" and law.fit[1:3] == (inputs["A"], inputs["B"])
               and law.fit[3] == inputs["alpha"])  # fmt: skip
    return p50("params", flops=inputs["C"], law=law.name)


def steps(inputs: dict[str, Any], text: str) -> float:
    tokens = p50("tokens", params=inputs["params"], law="cerebras")
    return tokens / (inputs["batch"] * inputs["seq"])


def train_cost(inputs: dict[str, Any], text: str) -> float:
    found = sw.budget(
        params=30e9, tokens=1.556e12, cluster="dgx-h100", devices=256, price=inputs["usd_h"], law="sardana"
    )
    return float(found["budget"]["cost"])


def grow(inputs: dict[str, Any], text: str) -> dict[str, float]:
    names = {"kaplan": "kaplan", "chinchilla": "chinchilla-1"}
    return {key: find_law(name).optimum(1e22)[0] / find_law(name).optimum(1e21)[0] for key, name in names.items()}


RULES: dict[str, Callable[[dict[str, Any], str], Any]] = {
    r"^chin-(t3|a3t)": approach,
    r"^chin-vs-kaplan": lambda i, t: p50("params", flops=i["flops"], law="chinchilla-1"),
    r"^kaplan-1e": lambda i, t: p50("params", flops=i["flops"], law="kaplan"),
    r"^gopher-flops|^marin-.*1e": lambda i, t: float(
        sw.budget(params=i.get("params", i.get("n")), tokens=i.get("tokens", i.get("d")))["budget"]["flops"]
    ),
    r"nopt": by_constants,
    r"^besi-(E|alpha|beta)$": lambda i, t: {
        "of a": find_law("besiroglu").fit[3],
        "of d": find_law("besiroglu").fit[4],
    }.get(
        next((key for key in ("of a", "of d") if f"exponent {'alpha' if key == 'of a' else 'beta'}" in t), ""),
        find_law("besiroglu").fit[0],
    ),
    r"^besi-a$": lambda i, t: find_law("besiroglu").fit[4] / sum(find_law("besiroglu").fit[3:]),
    r"^llama3-d": lambda i, t: p50("tokens", flops=i["flops"], law="llama-3"),
    r"^llama3-(n|params)": lambda i, t: p50("params", flops=i["flops"], law="llama-3"),
    r"^llama3-flop": lambda i, t: find_law("llama-3").k,
    r"^dsllm-batch": recipe("deepseek", "batch"),
    r"^dsllm-lr": recipe("deepseek", "lr"),
    r"^dsllm-D": lambda i, t: p50("tokens", flops=i["C"], law="deepseek"),
    r"^cerebras": lambda i, t: float(sw.budget(flops=i["f"], law="cerebras")["loss"]["p50"]),
    r"^sardana-loss": lambda i, t: float(sw.budget(params=i["N"], tokens=i["D"], law="sardana")["loss"]["p50"]),
    r"^sardana-\w+-tokens": lambda i, t: p50("tokens", params=i["N"], law="sardana"),
    r"^sardana-.*cost": train_cost,
    r"^sardana-d$": served("tokens"),
    r"^sardana-saving": served("saving"),
    r"^sardana-\d": served("saved"),
    r"^muen-loss": lambda i, t: float(find_law("muennighoff").predict(i["N"], i["D"], i["U"])),
    r"^muen-epochs": lambda i, t: p50("tokens", flops=i["C"], unique=i["U"], law="muennighoff") / i["U"],
    r"^muen-\d+epochs": lambda i, t: float(worth_of(i["epochs"], 1.0, i["rd"])),
    r"^gadre-(rw|c4|rpj)": gadre,
    r"^minicpm": lambda i, t: find_law("minicpm").tokens(1e9) / 1e9,
    r"^kaplan-bcrit": recipe("kaplan-critical", "batch"),
    r"steps$": steps,
    r"^chin-a\d": size_and_tokens,
    r"^chin-loss": lambda i, t: {
        "loss": float(sw.budget(params=i["N"], tokens=i["D"], law="hoffmann-printed")["loss"]["p50"])
    },
    r"^chin-rule": lambda i, t: {
        key: find_law("chinchilla-1").tokens(i[f"N{at}"]) / i[f"N{at}"] for at, key in ((1, "b1"), (2, "b10"))
    },
    r"^kaplan-ln": lambda i, t: {"loss": float(find_law("kaplan").predict(i["N"], 1e18))},
    r"^kaplan-double": lambda i, t: {
        "loss_factor": float(find_law("kaplan").predict(2e9, 1e18) / find_law("kaplan").predict(1e9, 1e18))
    },
    r"^kaplan-pfday": lambda i, t: {"flops": 8.64e19 / sw.budget(flops=8.64e19)["budget"]["pf_days"]},
    r"^kaplan-compute": grow,
}
AS_DATA = r"^besi-(E|alpha|beta)$|^llama3-flop|^minicpm|^chin-(t3|a3t|rule)"


def rows(problems: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """One for each key of each answer."""
    for problem in problems:
        if problem.get("area") != "A" and problem.get("topic") != "scaling-law":
            continue
        answers = problem["answer"]
        several = "value" not in answers
        tolerance = problem.get("tolerance_pct", 0) / 100 if several else answers["tolerance"]
        reason = next((why for pattern, why in OUT_OF_REACH.items() if re.search(pattern, problem["id"])), None)
        found = None if reason else ask(problem)
        for key, expected in answers.items() if several else [("value", answers)]:
            ours = found.get(key) if isinstance(found, dict) else found
            row = {"id": problem["id"], "key": key, "expected": expected["value"], "ours": ours, "tolerance": tolerance}
            error = None if ours is None or not expected["value"] else abs(ours / expected["value"] - 1)
            disagree = problem.get("disagreement")
            row |= {"error": error, "within": None if error is None or disagree else error <= tolerance}
            row["note"] = disagree or reason or ("" if ours is not None else "no command answers it")
            row["note"] = row["note"] or next(
                (why for pattern, why in OFF.items() if re.search(pattern, problem["id"])), ""
            )
            row["as_data"] = bool(re.search(AS_DATA, problem["id"]))
            yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="+", type=Path)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = list(rows([problem for path in given.problems for problem in json.loads(path.read_text())]))
    print("| problem | of | published | ours | error | allowed | |\n| --- | --- | --- | --- | --- | --- | --- |")
    for row in found:
        ours = "–" if row["ours"] is None else f"{row['ours']:.5g}"
        error = "–" if row["error"] is None else f"{100 * row['error']:.2f}%"
        fine = "as data" if row["as_data"] else "yes"
        verdict = {True: fine, False: f"**no**: {row['note']}", None: row["note"]}[row["within"]]
        cells = (
            row["id"],
            row["key"],
            f"{row['expected']:.5g}",
            ours,
            error,
            f"{100 * row['tolerance']:.3g}%",
            verdict,
        )
        print("| " + " | ".join(cells) + " |")
    scored = [row for row in found if row["within"] is not None]
    inside, data = sum(row["within"] for row in scored), sum(row["as_data"] for row in scored)
    left = len(found) - len(scored)
    print(f"\n{inside} of {len(scored)} within their tolerance ({data} of them shipped as data); {left} not scored.")
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
