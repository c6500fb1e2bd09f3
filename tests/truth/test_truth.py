"""The field's worked problems, answered by public functions within the printed digits."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.truth.problems import IN_SCOPE, LATER, PLAIN, UNITS, Answer, answers, problems, public_function

from scalewright.spec.hardware.devices import load_device
from scalewright.spec.presets import load_model_spec

ALL = list(answers())
RECOMPUTED = [answer for answer in ALL if "recomputed" in answer.facts]
DIMENSIONS = [problem for problem in problems() if "dimensions" in problem]
DEVICES = [problem for problem in problems() if "device" in problem]


@pytest.mark.parametrize("answer", ALL, ids=str)
def test_published_answer(answer: Answer) -> None:
    problem = answer.problem
    if "disagreement" in problem:
        pytest.skip(f"{problem['source']}: the printed answer disagrees: {problem['disagreement']}")
    expected, found = answer.facts["value"], answer.compute()
    said = f"{problem['question']} [{problem['source']}]"
    if isinstance(expected, bool):
        assert found is expected, said
    else:
        assert found == pytest.approx(expected, rel=problem["tolerance"], abs=0), said


@pytest.mark.parametrize("answer", RECOMPUTED, ids=str)
def test_where_a_source_contradicts_itself_its_formula_is_right(answer: Answer) -> None:
    # ten digits are given
    assert answer.compute() == pytest.approx(answer.facts["recomputed"], rel=1e-9)


def test_every_problem_in_scope_is_mapped() -> None:
    """No problem is lost: used, skipped for a disagreement, or named with the folder that it is for."""
    used = [p for p in problems() if p["topic"] in IN_SCOPE and "disagreement" not in p]
    skipped = [p for p in problems() if p["topic"] in IN_SCOPE and "disagreement" in p]
    later = [p for p in problems() if p["topic"] in LATER]
    assert (len(used), len(skipped), len(later)) == (190, 6, 42)
    assert len({p["id"] for p in problems()}) == len(problems()) == 238
    assert all(p["later"] for p in later)
    for problem in used:
        assert problem["source"], problem["id"]
        assert problem["question"], problem["id"]
        assert problem["answers"], problem["id"]
        for key in problem["answers"]:
            public_function(Answer(problem, key).function)


def test_units_are_known() -> None:
    found = {answer.facts["unit"] for answer in answers()}
    assert found - PLAIN - set(UNITS) == set()


@pytest.mark.parametrize("problem", DIMENSIONS, ids=lambda p: str(p["id"]))
def test_presets_have_the_published_dimensions(problem: dict[str, Any]) -> None:
    """A count that agrees by two mistakes would not pass this."""
    dimensions = dict(problem["dimensions"])
    spec = load_model_spec(dimensions.pop("model")).dump()
    spec["mlp_type"] = spec["mlp_type"].removesuffix("_tanh")  # GELU's two forms have one size
    for key, value in dimensions.items():
        if isinstance(value, dict):
            assert {inner: spec[key][inner] for inner in value} == value, key
        else:
            assert spec[key] == value, key


@pytest.mark.parametrize("problem", DEVICES, ids=lambda p: str(p["id"]))
def test_devices_have_the_rates_of_the_problem(problem: dict[str, Any]) -> None:
    device = load_device(problem["device"])
    # the two rates as data sheets print them: no rounding in between
    assert device.peak("bf16") == problem["inputs"]["peak"]
    assert device.memory_bytes_per_s == problem["inputs"]["bytes_per_s"]


def test_topics_are_all_there() -> None:
    counts = Counter(problem["topic"] for problem in problems())
    assert counts == {
        "params": 45, "roofline": 14, "training": 46, "memory": 34, "pipeline": 13, "collective": 15,
        "sharding": 12, "hardware": 17, "scaling-law": 17, "inference": 25,
    }  # fmt: skip
