"""No numeric key of a run file takes a number that its code cannot: NaN, infinity, one out of range."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from scalewright.spec.base import _specs_in
from scalewright.spec.errors import UserError
from scalewright.spec.run import PythonRef, RunSpec, Source, load_run

ODD = ("-1", "0", "1", str(2**70), ".nan", ".inf", "-.inf", "1e400", "[]", "true", "x", "[0.9, 1]", "[.nan, 0.5]")


def types_in(annotation: Any) -> list[Any]:
    parts = getattr(annotation, "__args__", ())
    return [kind for part in parts for kind in types_in(part)] or [annotation]


def numbers(cls: type[BaseModel] = RunSpec, prefix: str = "") -> Iterator[tuple[str, type]]:
    """The dotted keys that hold a number, with int or float."""
    for name, field in cls.model_fields.items():
        key = prefix + (field.alias or name)
        kinds = types_in(field.annotation)
        if float in kinds or int in kinds:
            yield key, float if float in kinds else int
        for nested in _specs_in(field.annotation):
            if nested not in (PythonRef, Source) and not key.startswith("model"):
                yield from numbers(nested, f"{key}.")


KEYS = dict(numbers())


def test_the_keys_are_there() -> None:
    assert KEYS["optimizer.betas"] is float
    assert KEYS["layout.devices"] is int
    assert len(KEYS) > 50


@pytest.mark.parametrize("key", [key for key, kind in KEYS.items() if kind is float])
@pytest.mark.parametrize("value", [".nan", ".inf", "-.inf", "1e400"])
def test_no_key_takes_what_is_not_finite(tmp_path: Any, key: str, value: str) -> None:
    (tmp_path / "run.yaml").write_text("model: gpt2\ndata: nowhere\n")
    with pytest.raises(UserError):
        load_run(tmp_path / "run.yaml", [f"{key}={value}"])


@pytest.mark.parametrize("value", ["[0.9, 1]", "[-0.1, 0.9]", "[1.0, 0.5]", "[.nan, 0.9]", "[0.9]", "[2, 3]"])
def test_betas_are_shares_below_one(tmp_path: Any, value: str) -> None:
    (tmp_path / "run.yaml").write_text("model: gpt2\ndata: nowhere\n")
    with pytest.raises(UserError, match="betas"):
        load_run(tmp_path / "run.yaml", [f"optimizer.betas={value}"])


@pytest.mark.parametrize("key", ["layout.devices", "layout.micro_batch", "layout.global_batch", "data.seq_len"])
def test_sizes_end_where_nobody_has_them(tmp_path: Any, key: str) -> None:
    """2^70 overflows a tensor's size; 2^31 devices would be rehearsed for hours."""
    (tmp_path / "run.yaml").write_text("model: gpt2\ndata: nowhere\n")
    for number in (2**31, 2**70):
        with pytest.raises(UserError, match=key.split(".")[1]):
            load_run(tmp_path / "run.yaml", [f"{key}={number}"])


@pytest.mark.slow
@pytest.mark.parametrize("key", KEYS)
def test_a_dry_run_ends_in_a_line(call_cli: Any, tmp_path: Any, key: str) -> None:
    sizes = "vocab_size: 64, hidden_size: 16, intermediate_size: 32, num_hidden_layers: 2, num_attention_heads: 2"
    (tmp_path / "run.yaml").write_text(f"model: {{{sizes}}}\ndata: nowhere\ndevice: cpu\ntrain: {{steps: 1}}\n")
    for value in ODD:
        answer = call_cli("train", tmp_path / "run.yaml", f"{key}={value}", "data.seq_len=8", "--dry-run")
        assert answer.code in (0, 2), (value, answer.err)
        assert not any(word in answer.err for word in ("unexpected", "Traceback")), (value, answer.err)
