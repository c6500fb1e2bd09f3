"""Blocks as HTML: inside a notebook, with their own styles, no script, no file.

Colours are those of the notebook's own text, light or dark; only the bars have some of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape

from scalewright.report.present.blocks import Bars, Block, Cell, Line, Note, Shown, Stacks, Text

COLOURS = (  # Tol, bright
    "#4477aa", "#66ccee", "#ee6677", "#228833", "#ccbb44", "#aa3377", "#999999", "#ee8866", "#bbbbbb", "#ddd",
)  # fmt: skip
TONES = {"": "inherit", "good": "#2e7d32", "warn": "#b26a00", "bad": "#c62828"}
LABEL = "white-space:nowrap;margin-right:.7rem"
BOX = "font:13px/1.45 system-ui,sans-serif;max-width:52rem"
CELL = "text-align:left;padding:.15rem .8rem .15rem 0;border:0;vertical-align:top"
HEAD = f"{CELL};font-weight:600;white-space:nowrap"
SMALLEST = 0.02  # shares below it have no label


def notebook(shown: Shown) -> str:
    """An answer as a small page; what is `detail` is folded."""
    title = f'<div style="font-size:1.15em;font-weight:600">{escape(shown.title)}</div>'
    folded = f"<details><summary>more</summary>{_blocks(shown.more)}</details>" if shown.more else ""
    return f'<div style="{BOX}">{title}{_lines(shown.head)}{_blocks(shown.brief)}{folded}</div>'


def _blocks(blocks: Sequence[Block]) -> str:
    return "".join(map(_block, blocks))


def _block(block: Block) -> str:
    if isinstance(block, Line):
        return _lines([block])
    if isinstance(block, Bars):
        beside = [_bars(replace(block, rows=[row]), share) for row, share in block.shares()] if block.beside else []
        return _title(block.title) + ("".join(beside) or _bars(block))
    if isinstance(block, Stacks):
        heads = ["", *(part.name for part in block.parts)]
        rows = [[name, *(f"{value:.1f}%" for value in values)] for name, values in block.rows]
        return _title(block.title) + _table(heads, rows) + _note(block.note)
    if isinstance(block, Note):
        items = "".join(f"<li>{escape(line)}</li>" for line in block.lines)
        return f'{_title(block.title)}<ul style="margin:0 0 .4rem">{items}</ul>' if items else ""
    if isinstance(block, Text):
        return f'{_title(block.title)}<pre style="overflow-x:auto">{escape(block.text)}</pre>'
    return _title(block.title) + _table(block.heads, block.rows) + _note(block.note)


def _note(text: str) -> str:
    return f"<div><small>{escape(text)}</small></div>" if text else ""


def _title(text: str) -> str:
    return f'<div style="margin-top:.6rem;font-weight:600">{escape(text)}</div>' if text else ""


def _lines(lines: Sequence[Line]) -> str:
    rows = "".join(
        f'<tr style="background:none"><th style="{HEAD}">{escape(line.label)}</th>'
        f'<td style="{CELL};width:100%;color:{TONES[line.tone]}">{escape(line.text)}</td></tr>'
        for line in lines
    )
    return f'<table style="border-collapse:collapse;width:100%">{rows}</table>'


def _bars(bars: Bars, whole: float = 1.0) -> str:
    shown = [(row, whole * share) for row, share in bars.shares()]
    colour = {row.name: COLOURS[row.part] for row, _ in shown}
    pieces = "".join(
        f'<div title="{escape(row.name)}: {escape(row.text)}" style="width:{100 * share:.2f}%;'
        f'background:{colour[row.name]}"></div>'
        for row, share in shown
    )
    labels = " ".join(
        f'<span style="{LABEL}"><span style="color:{colour[row.name]}">■</span> '
        f"{escape(row.name)} {escape(row.text)}</span>"
        for row, share in shown
        if share >= SMALLEST or bars.beside
    )
    row = "display:flex;height:.7rem;margin:.2rem 0;overflow:hidden;border-radius:2px"
    return f'<div style="{row}">{pieces}</div><div><small>{labels}</small></div>'


def _table(heads: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    head = "".join(f'<th style="{CELL};font-weight:600">{escape(text)}</th>' for text in heads)
    body = "".join(
        '<tr style="background:none">'
        + "".join(f'<td style="{CELL}">{escape("" if cell is None else str(cell))}</td>' for cell in row)
        + "</tr>"
        for row in rows
    )
    table = f'<table style="border-collapse:collapse;margin:.3rem 0"><tr>{head}</tr>{body}</table>'
    return f'<div style="overflow-x:auto">{table}</div>'
