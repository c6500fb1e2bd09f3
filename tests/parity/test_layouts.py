"""The layouts that parity shrinks to keep what is special about the cut of a pipeline."""

from __future__ import annotations

import pytest

from scalewright.parity.layouts import by_hand, smallest
from scalewright.spec.layout import Layout


@pytest.mark.parametrize(
    ("layers", "stages", "given", "cut"),
    [
        (6, 3, (2, 2, 2), [2, 2, 2]),
        (6, 3, (3, 2, 1), [3, 2, 1]),
        (126, 4, (0, *[1] * 126, 0), [0, 63, 63, 0]),
        (5, 4, (0, 2, 3, 0), [0, 3, 2, 0]),
        (5, 2, (0, 2, 3), [0, 5]),
        (5, 2, (3, 2, 0), [5, 0]),
        (5, 2, (0, 5, 0), [3, 2]),  # no stage would be left for the layers
    ],
)
def test_a_cut_by_hand_keeps_its_ends(layers: int, stages: int, given: tuple[int, ...], cut: list[int]) -> None:
    assert by_hand(layers, stages, given) == cut
    assert sum(cut) == layers


def test_the_smallest_of_llama_s_own_layout_has_ends_alone() -> None:
    keys = {"devices": 128, "pp": 16, "tp": 8, "schedule": "interleaved", "virtual_stages": 8}
    layout = Layout.parse({**keys, "stage_layers": "0,1x126,0", "global_batch": 16})
    small = smallest(layout, 126)
    assert small.pp == 2
    assert small.stage_layers == (0, *[9] * 14, 0)
