"""The script that sets prediction beside measurement: its layouts are the parity matrix's, and it runs."""

from __future__ import annotations

import pytest

from parity.matrix import CASES
from scalewright.spec.layout import Layout

CALLED_OTHERWISE = ("one-device",)  # the matrix's control, which isn't one of its cases


def test_layouts_are_those_of_the_parity_matrix() -> None:
    import predicted

    known = {case.name: Layout.parse(case.layout) for case in CASES}
    for name in predicted.LAYOUTS:
        if not name.startswith(CALLED_OTHERWISE):
            mine, case = predicted.layout_of(name, 8), known[name]
            assert mine == case.replace(micro_batch=mine.micro_batch), name  # any size of it is parity's layout


@pytest.mark.slow
def test_the_script(script) -> None:
    data, text = script("predicted.py", "--quick", "--settings", "parity", "--layouts", "one-device", "dp2-zero1")
    assert [case["name"] for case in data["cases"]] == ["one-device", "dp2-zero1"]
    for case in data["cases"]:
        assert case["predicted"][0] > 0
        assert case["measured"][0] > 0
        assert case["spread"][0][0] < case["predicted"][0] < case["spread"][0][1]
        assert f"`{case['name']}`" in text
    assert data["timings"]["2"]["timings"]["processes"] == 2
    assert data["finished"] >= data["started"]
