"""Both palettes can be read: contrast as WCAG 2.2 measures it."""

from __future__ import annotations

import importlib.resources
import re

import pytest

CSS = (importlib.resources.files("scalewright.report") / "assets" / "report.css").read_text(encoding="utf-8")
BLOCKS = re.findall(r":root[^{]*\{(.*?)\}", CSS, re.DOTALL)
PALETTES = [dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6})", block)) for block in BLOCKS]


def luminance(colour: str) -> float:
    """Relative luminance of an sRGB colour (WCAG 2.2, 'relative luminance')."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours, 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_there_is_a_light_and_a_dark_palette() -> None:
    whole = [palette for palette in PALETTES if palette]
    assert len(whole) == 4  # light, dark by preference, dark by the button, and paper
    assert luminance(whole[3]["paper"]) == 1
    assert whole[1] == whole[2]
    assert luminance(whole[0]["paper"]) > 0.8
    assert luminance(whole[1]["paper"]) < 0.05


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("ground", ["paper", "card"])
@pytest.mark.parametrize("colour", ["ink", "soft", "accent", "second", "good", "warn", "bad"])
def test_text_and_lines_stand_out(number: int, ground: str, colour: str) -> None:
    palette = [palette for palette in PALETTES if palette][number]
    assert contrast(palette[colour], palette[ground]) >= 4.5  # level AA for text; lines need 3


def test_numbers_on_a_pipelines_boxes_can_be_read() -> None:
    fills = dict(re.findall(r"--(forward|backward|input|weight): (#[0-9a-f]{6})", CSS))
    (ink,) = re.findall(r"\.lanes text \{[^}]*fill: (#[0-9a-f]{6})", CSS)
    assert len(fills) == 4
    for fill in fills.values():  # the chunks' lighter shades only add to it
        assert contrast(ink, fill) >= 4.5


def test_a_desktop_shows_every_section_of_the_contents() -> None:
    """A row that scrolls without a bar hides its last entries; on a phone it is swiped."""
    (wide,) = re.findall(r"@media \(min-width: (\d+)px\) \{ nav \{ flex-wrap: wrap; \} \}", CSS)
    assert int(wide) < 1080
