"""The page docs/plans.md: a table of all plans, then each with its command and why it is signed."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.plan_cases import Outcome
from harness.result import table
from scalewright.report.layouts import one_line
from scalewright.spec.common.formatting import decimal, gib, short_time

WIDTH = 145
SIGNED = {"yes": "**Signed.**", "layout": "**Layout signed, step time not.**", "no": "**Not yet.**"}
UNITS = {
    "tokens_per_s_per_device": "{:,.0f} tokens/s a device", "tflops_per_device": "{:,.0f} TFLOP/s a device",
    "mfu": "MFU {:.0%}", "step_time_s": "{:.3g} s a step",
}  # fmt: skip
HEAD = """\
# Plans that an expert would sign

[All pages](README.md)

Sixteen runs, from four gaming cards to 16,384 H100s, each as a user types it, beside what was published of
such a run. The line at the end of each is a judgement of {date}, and rests on claims that are checked:
`comparisons/plans.py` runs the commands, writes this page and its picture, and fails where a plan leaves what
its line claims ([the cases](../comparisons/harness/plan_cases.yaml)).

    python comparisons/plans.py                    # about two minutes; needs matplotlib

Ranked is the step's time, with 5% more for what nobody has measured or hardly anybody runs; of those within 2%
of the first (`--margin`) the layout with the fewest axes, then the fewest techniques, is taken. Times are
medians, with the span that 8 of 10 measured steps should fall in. Without `--framework` a plan is of what
`scalewright train` runs; what that can't run is never listed, but named with its gain (*beyond*). Memory is
the worst rank's, beside what a device gives a trainer. "Without" takes one thing away and leaves the rest as
it is. Accuracy of prices: [accuracy](accuracy.md); how a plan is made: [planning](planning.md).
"""
PICTURE = "![Where the step's time goes, in each of the plans](plans/parts.png)"


def page(outcomes: Sequence[Outcome], date: str) -> str:
    """The whole page."""
    rows = [_row(outcome) for outcome in outcomes]
    heads = ("run", "layout", "step", "p10 to p90", "MFU", "memory, GiB", "signed")
    sections = [line for outcome in outcomes for line in _section(outcome)]
    return "\n".join([HEAD.format(date=date), table(heads, rows), "", PICTURE, "", *sections]).rstrip() + "\n"


def _row(outcome: Outcome) -> list[str]:
    best, step = outcome.best, outcome.best["step_time_s"]
    memory = f"{decimal(best['memory_gib']['peak'], 3)} of {decimal(best['device']['usable_gib'], 3)}"
    band = f"{decimal(step['p10'], 3)} to {decimal(step['p90'], 3)}"
    mfu = f"{100 * best['mfu']:.1f}%"
    cells = [outcome.case.title, outcome.layout, short_time(step["p50"]), band, mfu, memory]
    return [*cells, outcome.case.signed]


def _section(outcome: Outcome) -> Iterator[str]:
    case = outcome.case
    yield from (f"## {case.title}", "")
    if case.file is not None:
        text = case.file["text"].replace("\n", "\\n")
        yield f"    printf '{text}' > {case.file['name']}"
    yield from (f"    scalewright plan {case.command}", "")
    rows = outcome.best["buys"]
    bought = "; ".join(_bought(row) for row in rows) if rows else "nothing to take away"
    yield from _bullet(f"Without: {bought}." + _faster(outcome.answer))
    yield from _bullet(_published(outcome) + _asked(outcome))
    yield from _bullet(f"{SIGNED[case.signed]} {case.line}")
    yield ""


def _bought(row: Mapping[str, Any]) -> str:
    """One row of `buys`, in a few words."""
    if row["gain_pct"] is None:
        return f"{row['what']}, no layout"
    gain = row["gain_pct"]
    pace = f"{abs(gain):.0f}% {'slower' if gain > 0 else 'faster'}" if abs(gain) >= 0.5 else "as fast"
    pace = f"{1 + gain / 100:.1f} times the time" if gain > 100 else pace
    room = "" if row["fits"] else f", {row['saves_gib']:+.0f} GiB: does not fit"
    return f"*{row['what']}* {pace}{room}"


def _faster(answer: Mapping[str, Any]) -> str:
    """What was left out: a faster layout that is less simple, and one that the trainer can't run."""
    said, simple = "", answer["best"][0]["simpler_than"]
    if simple and simple["cost_pct"] >= 0.05:
        fastest = one_line(simple["layout"])
        said += f" Simpler than the fastest, at {simple['cost_pct']:.1f}%: {fastest}."
    if answer["beyond"]:
        one, who = answer["beyond"][0], answer["best"][0]["framework"]
        gain = one["gain_pct"]
        pace = f"{1 + gain / 100:.1f} times as fast" if gain > 100 else f"{gain:.0f}% faster"
        named = "`train`" if who == "scalewright" else who
        said += f" *Beyond {named}*: {pace} with {', '.join(one['needs'])}."
    return said


def _published(outcome: Outcome) -> str:
    found = outcome.published()
    assert found is not None, outcome.case.title
    key, theirs, own = found
    number, planned = UNITS[key].format(theirs), UNITS[key].format(own).removesuffix(" a device")
    published = outcome.case.published
    return f"Published: {published['what']}: {number} (planned: {planned}). {published['source']}."


def _asked(outcome: Outcome) -> str:
    """The layout of `--why-not`, beside the plan."""
    asked = outcome.asked
    if not asked["fits"]:
        return f" Instead, {outcome.case.asked}: does not fit, {gib(asked['lacks_gib'])} short."
    slower = asked["slower_pct"]
    pace = f"{abs(slower):.1f}% {'slower' if slower > 0 else 'faster'}" if abs(slower) >= 0.05 else "as fast"
    return f" Instead, {outcome.case.asked}: {pace}."


def _bullet(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="- ", subsequent_indent="  ", break_long_words=False,
                         break_on_hyphens=False)  # fmt: skip
