"""Small pictures as SVG text: boxes, words and lines on a white card, which suits a light and a dark page.

board = Board(760, 220)
board.box(20, 20, 100, 26, "#56b4e9", "F0")
board.save(path)
"""

from __future__ import annotations

from html import escape
from pathlib import Path

INK, SOFT, GRID = "#1c2024", "#5b6570", "#ecebe6"
# Okabe and Ito's colours (2008), as on the report's pages.
FORWARD, BACKWARD, INPUT, WEIGHT = "#56b4e9", "#d55e00", "#f0e442", "#1aa87f"
FONT = "ui-sans-serif, system-ui, 'Segoe UI', 'DejaVu Sans', Arial, sans-serif"


class Board:
    """A drawing of so many pixels."""

    def __init__(self, width: float, height: float) -> None:
        self.width, self.height = width, height
        self.parts: list[str] = []

    def box(self, x: float, y: float, w: float, h: float, fill: str, label: str = "", size: float = 11) -> None:
        """A filled box with a dark edge and a label in its middle."""
        self.parts.append(
            f'<rect x="{x:.2f}" y="{y:.2f}" width="{w:.2f}" height="{h:.2f}" fill="{fill}" '
            'stroke="#000" stroke-opacity="0.45" stroke-width="0.8" rx="2"/>'
        )
        if label:
            self.text(x + w / 2, y + h / 2 + 0.36 * size, label, size, "middle", "#101418", 600)

    def bar(self, x: float, y: float, w: float, h: float, fill: str) -> None:
        """A box without an edge."""
        self.parts.append(f'<rect x="{x:.2f}" y="{y:.2f}" width="{w:.2f}" height="{h:.2f}" fill="{fill}" rx="2"/>')

    def text(
        self,
        x: float,
        y: float,
        words: str,
        size: float = 12,
        anchor: str = "start",
        fill: str = INK,
        weight: int = 400,
    ) -> None:
        """Words at a baseline."""
        self.parts.append(
            f'<text x="{x:.2f}" y="{y:.2f}" font-size="{size:g}" text-anchor="{anchor}" fill="{fill}" '
            f'font-weight="{weight}">{escape(words)}</text>'
        )

    def line(self, points: list[tuple[float, float]], colour: str = SOFT, width: float = 1.4, dash: str = "") -> None:
        """A polyline."""
        path = " ".join(f"{x:.2f},{y:.2f}" for x, y in points)
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{dashed}/>')

    def arrow(self, x: float, y: float, to_x: float, to_y: float, colour: str = SOFT) -> None:
        """A line with a head at its end; horizontal or vertical."""
        self.line([(x, y), (to_x, to_y)], colour)
        side = 4.0
        if abs(to_x - x) >= abs(to_y - y):
            back = to_x - (6 if to_x > x else -6)
            self.line([(back, to_y - side), (to_x, to_y), (back, to_y + side)], colour)
        else:
            back = to_y - (6 if to_y > y else -6)
            self.line([(to_x - side, back), (to_x, to_y), (to_x + side, back)], colour)

    def save(self, path: Path, title: str) -> None:
        """Writes the picture; `title` is what a reader hears who can't see it."""
        size = f"{self.width:g} {self.height:g}"
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" role="img" font-family="{FONT}">'
        edge = f'width="{self.width - 1:g}" height="{self.height - 1:g}"'
        card = f'<rect x="0.5" y="0.5" {edge} rx="10" fill="#fff" stroke="#e2e0da"/>'
        lines = [head, f"<title>{escape(title)}</title>", card, *self.parts, "</svg>"]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
