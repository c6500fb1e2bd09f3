"""A run saved by the ranks of one layout is served as it is, after conversion, and cut anew: the same text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runs import run, run_data
from scalewright.checkpoint.convert import convert
from scalewright.serve.open import open_engine
from scalewright.serve.request import Request
from scalewright.serve.sampling import Sampling
from serve.schedules import Answer, send
from serve.test_generate import make_tokenizer

NEAR = 1e-5  # the same sums in another order, in fp32
LAYOUTS = {
    "pipeline": {"devices": 2, "pp": 2, "zero_stage": 0},
    "shards": {"devices": 2, "zero_stage": 3},
    "heads": {"devices": 2, "tp": 2},
}


def served(folder: Path, **keys: Any) -> list[Answer]:
    """Greedy text of two prompts, with probabilities."""
    engine = open_engine(folder, max_concurrency=2, **keys)
    try:
        prompts = ([5, 17, 33], list(range(3, 43)))
        return send(engine, [Request(ids, 12, Sampling(0), logprobs=5, stop_ids=frozenset()) for ids in prompts])
    finally:
        engine.close()


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_are_served_alike(layout: str, tmp_path: Path) -> None:
    trained = run(run_data(tmp_path, layout=LAYOUTS[layout], train={"steps": 2}, checkpoint={"at_end": True}))
    out, exported = Path(str(trained.out_dir)), tmp_path / "exported"
    make_tokenizer(out)
    plain = served(out)
    convert(out, exported)
    make_tokenizer(exported)
    assert served(exported) == plain  # the same numbers, from one file
    cut = served(out, tp=2)
    for answer, wanted in zip(cut, plain, strict=True):
        assert answer.tokens == wanted.tokens
        for a, b in zip(answer.logprobs, wanted.logprobs, strict=True):
            assert abs(a.value - b.value) <= NEAR
