"""A diagnosis as Markdown for a ticket: the causes as a list, all else folded below.

### 14.1 ms of 4 ranks on NVIDIA A100-SXM4-80GB; bound by straggler

1. **straggler**: saves 22% (11 to 22%)
   - the others wait 3.0 ms for rank 2, ...
   - → look at rank 2: ...
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator, Mapping
from typing import Any

from scalewright.cli.comparison import changes, headline, signed_time
from scalewright.cli.diagnosis import show
from scalewright.spec.common.formatting import markdown_text, short_time


def markdown(answer: Mapping[str, Any]) -> str:
    """The answer of `diagnose`; what comes from a file is escaped."""
    text = _terminal(answer)
    first, _, _ = text.partition("\n")
    title = f"### {markdown_text(first)}"
    return "\n".join([title, "", *_verdicts(answer), *_against(answer), *_folded(text)])


def _verdicts(answer: Mapping[str, Any]) -> Iterator[str]:
    from scalewright.diagnose.verdict import evidence_of, saves

    for number, verdict in enumerate(answer["verdicts"], 1):
        gain = f": {saves(verdict)}" if saves(verdict) else ""
        yield f"{number}. **{markdown_text(verdict['cause'])}**{gain}"
        for line in (*evidence_of(verdict), "→ " + verdict["fix"]):
            yield f"   - {markdown_text(line)}"
    if answer["verdicts"]:
        yield ""


def _against(answer: Mapping[str, Any]) -> Iterator[str]:
    compared = answer.get("against")
    if not compared:
        return
    yield from (markdown_text(headline(compared)), "")
    rows = changes(compared)
    if rows:
        yield from (
            f"| | now | {'plan' if compared['kind'] == 'plan' else 'before'} | change |",
            "| --- | --: | --: | --: |",
        )
    for words, row in rows:
        times = short_time(row["now_s"]), short_time(row["before_s"]), signed_time(row["change_s"])
        yield f"| {markdown_text(words.strip())} | {' | '.join(times)} |"
    yield ""


def _folded(text: str) -> Iterator[str]:
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    yield from (
        "<details><summary>all of it</summary>",
        "",
        f"{fence}text",
        text.rstrip(),
        fence,
        "",
        "</details>",
    )


def _terminal(answer: Mapping[str, Any]) -> str:
    """What the terminal shows, without the comparison."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        show({key: value for key, value in answer.items() if key not in ("against", "what_if")})
    return out.getvalue()
