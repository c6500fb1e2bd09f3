"""Why not this layout? What it costs beside the best, what memory it lacks, or which rule forbids it.

A pipeline that is asked about without a schedule is the plain one, as `predict` and `train` take it. Other
keys that nobody asked about are those of the best such layout, and the answer names them.

slower          the parts of a step that grow, and those that shrink
does not fit    the GiB that it lacks; the smallest change that makes it fit, and what that costs
not legal       the rule; the best layout without the key that breaks it, and what that costs
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalewright.plan.capabilities import find_capabilities
from scalewright.plan.explain import smallest_fix
from scalewright.plan.frameworks import OURS
from scalewright.plan.search.choices import Choice, Plan
from scalewright.plan.search.compare import FOLLOWS, compare, value_words
from scalewright.plan.search.fixed import read_fixed
from scalewright.plan.search.search import UNLIMITED, again
from scalewright.spec.errors import UserError
from scalewright.spec.text.words import short_time


def why_not(plan: Plan, layout: Mapping[str, Any]) -> dict[str, Any]:
    """Why a plan didn't choose the layouts with these keys: the best of them beside the plan's best.

    {asked, verdict, why, ...}: verdict is "best", "slower", "does not fit" or "not legal"; the keys of
    `compare` where there is a layout to compare. Raises UserError for an unknown key.
    """
    asked = {key: value for key, value in layout.items() if value is not None}
    filled = _schedule(plan, asked)
    fixed = asked | filled
    try:
        read_fixed(asked, plan.template)
        found = again(plan, fixed=fixed, headroom=UNLIMITED, top=1, margin=0.0).best[0]
    except UserError as error:
        if error.where == "fixed" and error.what.startswith("unknown"):
            raise
        return {"asked": asked, "verdict": "not legal", **_forbidden(plan, asked, error)}
    best = plan.best[0]
    fitting = _fitting(plan, fixed)
    if fitting is not None:
        entry = compare("", fitting, best, plan.headroom)
        verdict = "best" if fitting.score <= best.score * (1 + 1e-9) else "slower"
        same = abs(fitting.score / best.score - 1) <= 1e-9
        why = f"{_whole(asked, filled, fitting, best)}: {'this is the best' if same else entry['why']}"
        if fitting.untrainable and plan.template.framework.name == OURS:
            why += f"; {fitting.untrainable}"
        return {"asked": asked, "verdict": verdict, **entry, "why": why}
    entry = compare("", found, best, plan.headroom)
    mend = smallest_fix(found.prediction, plan.constants)
    why = f"{_whole(asked, filled, found, best)}: {entry['why']}"
    if mend is not None and mend["fits"]:
        more = 100 * (mend["step_time_s"] / best.prediction.step_time_s - 1)
        why += f"; with {mend['change']} it fits, at {short_time(mend['step_time_s'])} ({more:+.1f}%)"
    return {"asked": asked, "verdict": "does not fit", **entry, "why": why, "smallest_fix": mend}


def _schedule(plan: Plan, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The schedule of a pipeline that is asked about without one: 1F1B; interleaved with chunks."""
    depth, chunks = asked.get("pp"), asked.get("virtual_stages", 1)
    if "schedule" in asked or not isinstance(depth, int) or depth == 1:
        return {}
    usual = "interleaved" if isinstance(chunks, int) and chunks > 1 else "1f1b"
    trainer = find_capabilities(plan.template.framework.name)
    return {"schedule": usual if trainer.allows("schedule", usual) else trainer.axes["schedule"][0]}


def _whole(asked: Mapping[str, Any], filled: Mapping[str, Any], choice: Choice, best: Choice) -> str:
    """What was asked, how it was filled, and what the layout has beside it that the best one hasn't."""
    keys, others = choice.keys, best.keys
    usual = {"sp": keys["tp"] > 1}
    unlike = [key for key in keys if keys[key] != usual.get(key, others[key]) and key not in FOLLOWS]
    beside = [*filled, *(key for key in unlike if key not in asked and key not in filled)]
    words = ", ".join(f"{key} {value_words(keys[key])}" for key in beside)
    return f"{_asked(asked)} (with {words})" if words else _asked(asked)


def _asked(asked: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value_words(value)}" for key, value in asked.items()) or "any layout"


def _fitting(plan: Plan, asked: Mapping[str, Any]) -> Choice | None:
    """The best layout with these keys that fits."""
    try:
        return again(plan, fixed=asked, top=1, margin=0.0).best[0]
    except UserError:
        return None


def _forbidden(plan: Plan, asked: Mapping[str, Any], error: UserError) -> dict[str, Any]:
    """The rule that forbids the keys, and what the best layout costs without the key that is in the way."""
    why = f"{_asked(asked)} is not legal: {error.what}"
    options = []
    for key in asked:
        rest = {name: value for name, value in asked.items() if name != key}
        found = _fitting(plan, rest) if rest else plan.best[0]
        if found is not None:
            options.append((found.score, key, found))
    if not options:
        return {"why": f"{why}; {error.how}" if error.how else why, "rule": error.what, "mend": error.how}
    _, key, found = min(options, key=lambda option: option[0])
    entry = compare("", found, plan.best[0], plan.headroom)
    value = value_words(entry["layout"].get(key))
    cost = f"{entry['slower_pct']:+.1f}%" if abs(entry["slower_pct"]) >= 0.05 else "nothing"
    why += f"; with {key} {value} it is, and costs {cost} beside the best"
    return {**entry, "why": why, "rule": error.what, "mend": f"{key} {value}"}
