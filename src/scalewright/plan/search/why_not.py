"""Why a plan didn't choose a layout: its cost beside the best, the memory it lacks, or the rule it breaks.

A layout is completed as `predict` and `--near` complete it (plan/defaults.py), and the answer lists what was filled in.
Beside it stands the best layout with the given keys, where that is another: `best_such`.

slower          the parts of a step that grow, and those that shrink
does not fit    the GiB that it lacks; the smallest change that makes it fit, and the cost of that
not legal       the rule; the best layout without the key that breaks it, and the cost of that
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scalewright.plan.defaults import complete, usual_schedule
from scalewright.plan.explain import smallest_fix
from scalewright.plan.frameworks import OURS, of_framework
from scalewright.plan.predict import together
from scalewright.plan.records import LayoutKeys
from scalewright.plan.search.axes import AXES
from scalewright.plan.search.choices import Choice, Plan
from scalewright.plan.search.compare import FOLLOWS, compare, value_words
from scalewright.plan.search.fixed import read_fixed
from scalewright.plan.search.objective import UNLIMITED
from scalewright.plan.search.search import search_again
from scalewright.spec.common.formatting import short_time
from scalewright.spec.errors import UserError

PLAIN = (1, 0, False, "none", "1f1b", "ring")  # values of axes that aren't used


def why_not(plan: Plan, layout: Mapping[str, Any]) -> dict[str, object]:
    """Why a plan didn't choose the layouts with these keys: their best compared with the plan's best.

    {asked, verdict, why, ...}: verdict is "best", "slower", "does not fit" or "not legal"; the keys of `compare` where
    there is a layout to compare. Raises UserError for an unknown key.
    """
    given = {key: value for key, value in layout.items() if value is not None}
    filled = _filled(plan, given)
    fixed = given | filled
    such = _fitting(plan, given | _schedule(plan, given)) if filled else None
    try:
        read_fixed(given, plan.template)
        unlimited = search_again(plan, fixed=fixed, headroom=UNLIMITED, top=1, margin=0.0).best[0]
    except UserError as error:
        if error.where == "fixed" and error.what.startswith("unknown"):
            raise
        if such is not None:  # only what was filled in isn't legal
            return _verdict(plan, given, {}, such, such)
        return {"asked": given, "verdict": "not legal", **_forbidden(plan, given, error)}
    answer = _verdict(plan, given, filled, unlimited, _fitting(plan, fixed))
    if such is None or such.keys == unlimited.keys:
        return answer
    entry = _best_such(plan, given, unlimited, such)
    if such.score <= plan.best[0].score * (1 + 1e-9):
        answer["verdict"] = "best"
    return answer | {"why": f"{answer['why']}; {entry['why']}", "best_such": entry}


def _verdict(
    plan: Plan, given: Mapping[str, Any], filled: Mapping[str, Any], unlimited: Choice, fitting: Choice | None
) -> dict[str, object]:
    """The layout beside the best; `fitting`: itself, if it fits."""
    best = plan.best[0]
    entry = compare("", fitting or unlimited, best, plan.goal.headroom)
    words = _layout_words(given, filled, fitting or unlimited, best)
    if fitting is not None:
        verdict = "best" if fitting.score <= best.score * (1 + 1e-9) else "slower"
        same = abs(fitting.score / best.score - 1) <= 1e-9
        why = f"{words}: {'this is the best' if same else entry['why']}"
        if fitting.untrainable and plan.template.framework.name == OURS:
            why += f"; {fitting.untrainable}"
        return {"asked": given, "verdict": verdict, **entry, "why": why}
    (fix,) = together([smallest_fix(unlimited.prediction)])
    why = f"{words}: {entry['why']}"
    if fix is not None and fix["fits"]:
        more = 100 * (fix["step_time_s"] / best.prediction.step_time_s - 1)
        why += f"; with {fix['change']} it fits, at {short_time(fix['step_time_s'])} ({more:+.1f}%)"
    return {"asked": given, "verdict": "does not fit", **entry, "why": why, "smallest_fix": fix}


def _filled(plan: Plan, given: Mapping[str, Any]) -> LayoutKeys:
    """The axes that aren't given, as `predict` fills them in; nothing where that makes no layout."""
    keys = {key: value for key, value in given.items() if key != "dp"}
    sizes = {"devices": plan.goal.devices, "global_batch": plan.goal.global_batch, "precision": plan.template.precision}
    if any(isinstance(value, (list, tuple)) for value in keys.values()):
        return {}
    try:
        layout, _ = complete({**sizes, **keys}, plan.question)
    except UserError:
        return {}
    if given.get("dp", layout.dp) != layout.dp:
        return {}
    whole = layout.dump()
    return {axis: whole[axis] for axis in AXES if axis in whole and axis not in given}


def _schedule(plan: Plan, given: Mapping[str, Any]) -> LayoutKeys:
    """The usual schedule of a pipeline that is given without one."""
    keys = {key: value for key, value in given.items() if not isinstance(value, (list, tuple))}
    usual_schedule(keys, of_framework(plan.template.framework))
    return {key: value for key, value in keys.items() if key not in given}


def _best_such(plan: Plan, given: Mapping[str, Any], asked: Choice, such: Choice) -> dict[str, object]:
    """The best layout with the given keys, beside the plan's best."""
    entry = compare("", such, plan.best[0], plan.goal.headroom)
    words = _layout_words(given, {}, such, asked)
    same = abs(such.score / plan.best[0].score - 1) <= 1e-9
    why = f"the best with {words}: {'this is the best' if same else entry['why']}"
    return {key: entry[key] for key in ("layout", "step_time_s", "slower_pct", "peak_gib")} | {"why": why}


def _layout_words(given: Mapping[str, Any], filled: Mapping[str, Any], choice: Choice, best: Choice) -> str:
    """The given keys; in brackets the filled ones and other differences of the layout from the best."""
    keys, reference = choice.keys, {**best.keys, "sp": choice.keys["tp"] > 1}
    # a size of 1 goes without saying, unless the best has another; a pipeline's schedule doesn't
    counts = {"zero_stage", "micro_batch", *(["schedule"] if keys["pp"] > 1 else [])}
    said = {key for key in filled if key in counts or keys[key] not in PLAIN}
    differing = {key for key in keys if keys[key] != reference[key] and key not in FOLLOWS}
    words = ", ".join(f"{key} {value_words(keys[key])}" for key in keys if key in (said | differing) - given.keys())
    return f"{_key_words(given)} (with {words})" if words else _key_words(given)


def _key_words(given: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value_words(value)}" for key, value in given.items()) or "any layout"


def _fitting(plan: Plan, given: Mapping[str, Any]) -> Choice | None:
    try:
        return search_again(plan, fixed=given, top=1, margin=0.0).best[0]
    except UserError:
        return None


def _forbidden(plan: Plan, given: Mapping[str, Any], error: UserError) -> dict[str, object]:
    """The rule that forbids the keys, and the best layout without the key that breaks it."""
    why = f"{_key_words(given)} is not legal: {error.what}"
    options = []
    for key in given:
        rest = {name: value for name, value in given.items() if name != key}
        if (option := _fitting(plan, rest) if rest else plan.best[0]) is not None:
            options.append((key, option))
    if not options:
        return {"why": f"{why}; {error.how}" if error.how else why, "rule": error.what, "mend": error.how}
    key, option = min(options, key=lambda pair: pair[1].score)
    entry = compare("", option, plan.best[0], plan.goal.headroom)
    value = value_words(entry["layout"].get(key))
    cost = f"{entry['slower_pct']:+.1f}%" if abs(entry["slower_pct"]) >= 0.05 else "nothing"
    why += f"; with {key} {value} it is, and costs {cost} beside the best"
    return {**entry, "why": why, "rule": error.what, "mend": f"{key} {value}"}
