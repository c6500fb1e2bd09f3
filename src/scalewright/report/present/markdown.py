"""Blocks as Markdown, for a ticket: what most people need, the rest folded below.

### 14.1 ms of 4 ranks on NVIDIA A100-SXM4-80GB; bound by straggler

- **cause** straggler: saves 22% (11 to 22%)
- **next** look at rank 2: ...
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scalewright.report.present.blocks import Bars, Block, Cell, Line, Note, Shown, Stacks, Table, is_cut
from scalewright.spec.common.formatting import markdown_text


def markdown(shown: Shown) -> str:
    """The answer; what comes from a file is escaped."""
    lines = [f"### {markdown_text(shown.title)}", "", *(_line(line) for line in shown.head), ""]
    for block in shown.brief:
        lines += _block(block)
    rest = [block for block in shown.blocks if block.detail or (isinstance(block, Table) and is_cut(block))]
    if rest:
        folded = [line for block in rest for line in _block(block, everything=True)]
        lines += ["<details><summary>all of it</summary>", "", *folded, "</details>"]
    return "\n".join(lines)


def _line(line: Line) -> str:
    return f"- **{markdown_text(line.label)}** {markdown_text(line.text)}"


def _block(block: Block, everything: bool = False) -> Iterator[str]:
    if isinstance(block, Line):
        yield _line(block)
        return
    if block.title:
        yield from ("", f"**{markdown_text(block.title)}**", "")
    if isinstance(block, Note):
        yield from (f"- {markdown_text(line)}" for line in block.lines)
    elif isinstance(block, Table):
        heads, rows = block.cells(everything)
        yield from ("", *_table(heads, rows))
    elif isinstance(block, Bars) and block.beside:
        yield from _table(("", ""), [(row.name, row.text) for row in block.rows])
    elif isinstance(block, Bars):
        yield from _table(("", "", "%"), [(row.name, row.text, f"{100 * share:.0f}")
                                          for row, share in block.shares(everything)])  # fmt: skip
    elif isinstance(block, Stacks):
        kept = [at for at in range(len(block.parts)) if any(values[at] >= 0.05 for _, values in block.rows)]
        rows = [[name, *(f"{values[at]:.1f}%" for at in kept)] for name, values in block.rows]
        yield from _table(["", *(block.parts[at].name for at in kept)], rows)
    else:
        yield from (f"    {line}" for line in block.text.splitlines())
    if note := getattr(block, "note", ""):
        yield from ("", markdown_text(note))
    yield ""


def _table(heads: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Iterator[str]:
    yield "| " + " | ".join(map(markdown_text, heads)) + " |"
    yield "| --- |" + " --: |" * (len(heads) - 1)
    for row in rows:
        yield "| " + " | ".join("" if cell is None else markdown_text(cell) for cell in row) + " |"
