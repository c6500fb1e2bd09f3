"""Launch lines in the forms that people write: the program, its words, the devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from scalewright.emit.bash.launched import launched
from scalewright.emit.bash.script import read_script

CASES: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("launched.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["script"][:40])
def test_a_launch_line_is_taken_apart(case: dict[str, Any]) -> None:
    script = read_script(case["script"])
    (start,) = launched(script)
    read = {"program": start.program, "words": script.shown(start.words), "devices": start.devices}
    assert read == {key: case[key] for key in read}


def test_what_is_not_known_is_named() -> None:
    script = read_script("torchrun train.py --lr $LR --path $1 --x ${X:-3}")
    (start,) = launched(script)
    assert [(mark.text, mark.why) for mark in start.unknown] == [
        ("$LR", "set outside of the script"),
        ("$1", "an argument that the script is started with"),
    ]
    assert script.result.assumed == ["X"]
