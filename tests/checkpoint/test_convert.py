"""An export is run by transformers beside ours; one that it computes otherwise isn't left behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers

from scalewright.checkpoint.convert import LARGEST, convert, why_not
from scalewright.model.huggingface import write_huggingface
from scalewright.model.load import FreshWeights
from scalewright.spec.errors import RunError, UserError
from scalewright.spec.families import FAMILIES
from scalewright.spec.model import ModelSpec

SMALL: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "context": 256,
}  # fmt: skip


def checkpoint(folder: Path, **keys: Any) -> Path:
    """A checkpoint of fresh weights."""
    spec = ModelSpec.parse({**SMALL, **keys})
    write_huggingface(folder / "fresh", spec, FreshWeights(spec).read)
    convert(folder / "fresh", folder / "run")
    return folder / "run"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("keys", [
    {}, {"family": "mistral", "sliding_window": 140, "window_pattern": [True]},
    {"family": "mixtral", "moe": {"num_experts": 4, "top_k": 2, "moe_intermediate_size": 48}},
])  # fmt: skip
def test_logits_are_compared(keys: dict[str, Any], dtype: str, tmp_path: Path) -> None:
    made = convert(checkpoint(tmp_path, **keys), tmp_path / "hf", dtype, check=True)
    tokens = 3 * (148 if "sliding_window" in keys else 128)
    assert made.compared.startswith(f"logits of {tokens} tokens are those of transformers")


def test_an_export_that_transformers_computes_otherwise_is_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As exports of partial rotary were: the family is told to have what its class ignores."""
    monkeypatch.setitem(FAMILIES, "llama", replace(FAMILIES["llama"], partial_rotary=True))
    run = checkpoint(tmp_path, rope={"fraction": 0.5})
    with pytest.raises(RunError, match=r"transformers 5.* computes other logits, by .* --no-check"):
        convert(run, tmp_path / "hf", check=True)
    assert not (tmp_path / "hf").exists()
    assert convert(run, tmp_path / "hf", check=False).compared == "not compared with transformers: as asked"
    monkeypatch.undo()
    with pytest.raises(UserError, match=r"can't express rope\.fraction 0\.5"):
        convert(run, tmp_path / "hf2", check=False)
    assert not (tmp_path / "hf2").exists()


def test_an_export_that_transformers_can_t_run_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **keywords: Any) -> None:
        assert keywords["trust_remote_code"] is False  # of an auto_map that came along
        raise ValueError("no such class")

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", refuse)
    with pytest.raises(RunError, match=r"can.t run .*: no such class"):
        convert(checkpoint(tmp_path), tmp_path / "hf", check=True)
    assert not (tmp_path / "hf").exists()


def test_large_models_are_compared_when_asked() -> None:
    assert why_not(LARGEST, None) is None
    assert "--check" in str(why_not(LARGEST + 1, None))
    assert why_not(LARGEST + 1, True) is None
