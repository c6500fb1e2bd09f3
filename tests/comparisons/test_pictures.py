"""The drawings of docs/ideas.md are drawn from schedules and predictions, and are valid pictures."""

from __future__ import annotations

import re
import xml.etree.ElementTree as tree


def test_every_drawing_is_a_picture_with_a_title(tmp_path):
    from harness.ideas import draw_all

    draw_all(tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["bubbles.svg", "data.svg", "pipeline.svg", "sharding.svg", "tensor.svg"]
    for path in tmp_path.iterdir():
        root = tree.parse(path).getroot()
        assert root.find("{http://www.w3.org/2000/svg}title").text
        assert "http" not in re.sub(r'xmlns="[^"]*"', "", path.read_text())
    text = (tmp_path / "pipeline.svg").read_text()
    assert "bubble 27% of the ranks" in text  # 1f1b: (p - 1) / (m + p - 1) = 3 / 11


def test_what_zero_1_and_2_hold_whole_is_drawn_as_what_it_is():
    """Of 8 bn parameters, bf16: 2 bytes each gathered at stages 1 and 2, and 4 of gradients at stage 1."""
    from harness.ideas import _priced, held_whole

    none, first, second, third = (held_whole(stage) for stage in range(4))
    gib = 8.03e9 / 2**30
    assert none == third == {"parameters": 0, "gradients": 0}
    assert abs(first["parameters"] - 2 * gib) < 0.1
    assert abs(first["gradients"] - 4 * gib) < 0.1
    assert second == {**first, "gradients": 0}
    assert _priced(zero_stage=1).memory_gib["gradients"] >= first["gradients"] * 0.999
