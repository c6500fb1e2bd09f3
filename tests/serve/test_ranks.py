"""A model over several processes serves what one does, from any folder, and is as blind to neighbours."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch.distributed as dist

from model.tiny_families import save
from scalewright.serve.open import open_engine
from scalewright.spec.errors import RunError, UserError
from serve.schedules import requests, send
from serve.test_generate import make_tokenizer

# The same sums in another order, in fp32.
NEAR = 1e-5


@pytest.mark.parametrize(
    ("case", "tp"),
    [
        ("llama-gqa", 2),
        *[
            pytest.param(case, tp, marks=pytest.mark.slow)
            for case in ("llama-gqa", "gpt2", "deepseek-v2", "mixtral", "gemma3", "gpt-oss", "bloom")
            for tp in (2, 4)
            if (case, tp) != ("llama-gqa", 2)
        ],
    ],
)
def test_ranks_serve_what_one_process_does(case: str, tp: int, tmp_path: Path) -> None:
    save(case, tmp_path)
    make_tokenizer(tmp_path)
    single = open_engine(tmp_path, max_concurrency=4)
    asked = [replace(request, logprobs=5) for request in requests(4, 7, vocabulary=96, longest=12)[:4]]
    if case == "gpt2":  # it has learned 64 positions
        asked = [replace(request, prompt=request.prompt[:50]) for request in asked]
    plain = send(single, asked)
    several = open_engine(tmp_path, tp=tp, max_concurrency=4)
    try:
        spread = send(several, asked)
        again = send(several, asked, 3)
    finally:
        several.close()
    for single_answer, answer in zip(plain, spread, strict=True):
        assert answer.tokens == single_answer.tokens
        for a, b in zip(single_answer.logprobs, answer.logprobs, strict=True):
            assert abs(a.value - b.value) <= NEAR
    if several.stats().invariant:
        assert spread == again
    assert several.stats().invariant == (tp == 2 and single.spec.moe is None)


def test_heads_that_cannot_be_cut(tmp_path: Path) -> None:
    save("llama-gqa", tmp_path)
    make_tokenizer(tmp_path)
    with pytest.raises(UserError, match=r"use one of \[1, 2, 4\]"):
        open_engine(tmp_path, tp=3)


def test_a_rank_that_was_killed_is_named(tmp_path: Path) -> None:
    save("llama-gqa", tmp_path)
    make_tokenizer(tmp_path)
    engine = open_engine(tmp_path, tp=2, max_concurrency=4)
    (worker,) = engine.compute._workers  # type: ignore[attr-defined]
    worker.kill()
    worker.join()
    words = rf"rank 1 of --tp \(process {worker.pid}\) was ended by SIGKILL"
    with pytest.raises(RunError, match=words):  # by a look
        engine.check()
    engine.add(requests(1, 7, vocabulary=96, longest=12)[0])
    with pytest.raises(RunError, match=words):  # by a message that it doesn't take
        engine.step()
    with contextlib.suppress(RuntimeError):  # as the command ends
        engine.close()
    dist.destroy_process_group()
