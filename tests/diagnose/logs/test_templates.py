"""A line that is read by the template of one before has the values that it has alone, as has any other."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diagnose.logs.write import FORMS as WRITERS
from tests.diagnose.logs.write import Line, write

from scalewright.diagnose.logs.forms import FORMS, MOST, Templates, template_of
from scalewright.diagnose.logs.lines import MarkedLines

MEGATRON = FORMS[0]
FIRST = " iteration 7/ 30 | consumed samples:   108 | elapsed time per iteration (ms): 690.8 | lm loss: 3.2E+00 |"
OTHERS = [
    FIRST.replace("690.8", "701.2").replace(" 7/", "  8/"),
    FIRST.replace("3.2E+00", "nan"),
    FIRST.replace("690.8", "1,690.8"),
    FIRST.replace("690.8", "n/a"),
    FIRST.replace("| lm loss", "| grad norm: 0.5 | lm loss"),
    FIRST.replace("consumed samples", "grad norm"),
    FIRST.replace("| consumed samples:   108 ", ""),
    FIRST.replace(" iteration", " lm loss: 9 | iteration"),
    FIRST.replace(" iteration", " lm loss: iteration"),
    FIRST.replace("3.2E+00", "3.2E+00 of: 4"),
    FIRST + " grad norm: 0.5",
    FIRST + " lm loss: 7 |",
    FIRST.replace("|", "-"),
]


@pytest.mark.parametrize("text", OTHERS)
def test_another_line_has_its_own_values(text: str) -> None:
    like = Templates()
    assert MEGATRON.read(FIRST, like) == MEGATRON.read(FIRST)
    assert MEGATRON.read(FIRST, like) == {"step": 7.0, "step_time_s": pytest.approx(0.6908), "loss": 3.2}
    alone = MEGATRON.read(text)
    assert str(sorted((MEGATRON.read(text, like) or {}).items())) == str(sorted((alone or {}).items()))


@pytest.mark.parametrize("line", WRITERS, ids=lambda line: line.__name__)
def test_every_trainers_lines(tmp_path: Path, line: Line) -> None:
    path = write(tmp_path, line)
    texts = [entry.text for entry in MarkedLines(path, [form.mark for form in FORMS])]
    assert texts
    for form in FORMS:
        like = Templates()
        for text in [text for text in texts if form.mark in text]:
            assert form.read(text, like) == form.read(text)
        assert len(like.kept) <= MOST


def test_the_template_is_used() -> None:
    template = template_of(FIRST, MEGATRON.fields, MEGATRON.units)
    assert template is not None
    assert template.read(OTHERS[0]) == {"step_time_s": pytest.approx(0.7012), "loss": 3.2}
    assert template.read(OTHERS[4]) is None


def test_few_templates_are_kept() -> None:
    like, form = Templates(), MEGATRON
    for count in range(2 * MOST):
        form.read(FIRST + f" more {count}: 1 |", like)
    assert len(like.kept) == MOST
