"""Rules of a trainer's words, both ways: what is taken, changed, dropped, and put back into a run."""

from __future__ import annotations

from typing import Any

import pytest

from emit.limited import run_of
from scalewright.emit.foreign import ForeignKeys, RunKeys, real, real_of, whole, whole_of
from scalewright.emit.rules import Fixed, Lacks, Pair, Pick, Word, nested
from scalewright.emit.tables import keys_of

SIZES = (Word("model.hidden_size", "width", back=whole), Word("train.z_loss", "z", back=real, always=False))
NORM = Pick("model.norm_type", "norm", {"rmsnorm": "RMS", "layernorm": "Layer"}, "two norms", "rmsnorm",
            absent="Layer", unknown="rmsnorm")  # fmt: skip
MLP = Pick("model.mlp_type", ("mlp", "gelu"), {"swiglu": ("gated", "none"), "gelu_tanh": ("plain", "tanh")},
           "two MLPs", absent=("plain", "tanh"), back=str)  # fmt: skip


def test_words_are_written_where_they_do_something() -> None:
    settings = run_of()
    assert settings.write(SIZES) == {"width": 1024}
    assert run_of(train={"steps": 2, "z_loss": 1e-4}).write(SIZES) == {"width": 1024, "z": 1e-4}
    assert "model.hidden_size" not in dict(settings.left())


def test_a_pick_has_names_of_values() -> None:
    settings = run_of()
    assert settings.write([NORM, MLP]) == {"norm": "RMS", "mlp": "gated", "gelu": "none"}
    assert not {"model.norm_type", "model.mlp_type"} & dict(settings.left()).keys()


def test_a_value_that_a_pick_lacks_is_changed_or_dropped() -> None:
    settings = run_of(model={**run_of().model.dump(), "norm_type": "layernorm_nobias", "mlp_type": "gelu"})
    assert settings.write([NORM, MLP]) == {"norm": "RMS"}
    assert [(item.key, item.written, item.why) for item in settings.changed] == [
        ("model.norm_type", "rmsnorm", "two norms")
    ]
    assert ("model.mlp_type", "gelu", "two MLPs") in settings.dropped("X")


@pytest.mark.parametrize(("foreign", "model"), [
    ({"width": "64", "norm": "RMS", "mlp": "gated", "gelu": "none"},
     {"hidden_size": 64, "norm_type": "rmsnorm", "mlp_type": "swiglu"}),
    ({}, {"norm_type": "layernorm", "mlp_type": "gelu_tanh"}),  # what they have where a key is missing
    ({"norm": "other", "mlp": "other"}, {"norm_type": "rmsnorm"}),
])  # fmt: skip
def test_rules_are_read(foreign: dict[str, Any], model: dict[str, Any]) -> None:
    run: dict[str, Any] = {}
    keys = ForeignKeys(foreign)
    keys.read([*SIZES, NORM, MLP, Fixed("model.positions", ("rope",), ""), Lacks("model.qk_norm", "")], run)
    assert run == {"model": model}
    assert keys.unread() == ()


def test_what_is_fixed_or_lacking() -> None:
    fixed = Fixed("layout.recompute", ("full",), "all layers", "full")
    settings = run_of(layout={"devices": 8, "global_batch": 8, "offload": "optimizer", "zero_stage": 1})
    assert settings.write([fixed, Lacks("layout.offload", "no offload")]) == {}
    assert [item.key for item in settings.changed] == ["layout.recompute"]
    assert ("layout.offload", "optimizer", "no offload") in settings.dropped("X")


def test_the_reason_of_an_axis_is_that_of_the_capabilities() -> None:
    settings = run_of(layout={"devices": 8, "global_batch": 8, "offload": "optimizer", "zero_stage": 2})
    settings.lacks = {"offload": "no offload", "zero_stage": "one stage"}
    assert settings.choose("layout.zero_stage", {3: "on"}, instead=3) == "on"
    assert [(item.key, item.why) for item in settings.changed] == [("layout.zero_stage", "one stage")]
    assert ("layout.offload", "optimizer", "no offload") in settings.dropped("X")


def test_sections_come_in_their_order() -> None:
    assert list(nested({"b.c": 1, "a.x.y": 2, "d": 3}, "a", "b")) == ["a", "b", "d"]
    assert nested({"a.x.y": 2}) == {"a": {"x": {"y": 2}}}


def test_numbers() -> None:
    assert (whole("1_000"), whole(4.0), whole(2**62 + 1)) == (1000, 4, 2**62 + 1)
    assert (real_of("3e-4"), real_of(True), real_of("nan"), real_of([])) == (3e-4, None, None, None)
    assert (whole_of("8"), whole_of(0), whole_of(2.5)) == (8, None, None)
    with pytest.raises(ValueError, match="True"):
        whole(True)


def test_a_pair_is_two_keys_and_defaults_stand_for_what_is_absent() -> None:
    betas = Pair("optimizer.betas", ("beta1", "beta2"), (0.9, 0.95))
    settings, run = run_of(), RunKeys()
    assert settings.write([betas]) == dict(zip(("beta1", "beta2"), settings.values["optimizer.betas"], strict=True))
    ForeignKeys({"beta1": "0.8"}).read([betas, Word("layout.tp", "tensor", back=whole, absent=4)], run)
    assert run == {"optimizer": {"betas": [0.8, 0.95]}, "layout": {"tp": 4}}


def test_a_name_that_is_not_here_is_reported() -> None:
    keys = ForeignKeys({"shape": "stairs", "optim": "adam"})
    assert keys.choose("optim", {"adam": "adamw"}, "adam", "sgd", "") == "adamw"
    assert keys.shape("shape", {"line": "linear"}, "line") == "cosine"
    assert [item.key for item in keys.unread()] == ["shape"]
    run = RunKeys()
    keys.read([Pick("optimizer.name", "optim", {"lion": "Lion"}, unknown="adamw", refused="no such")], run)
    assert run["optimizer"] == {"name": "adamw"}
    assert [item.why for item in keys.unread()] == ["taken as cosine: this shape isn't here", "no such"]


def test_lists_of_keys_are_texts_by_section() -> None:
    assert keys_of("a b zero: stage c. model.x: d") == {"a", "b", "zero.stage", "zero.c.", "model.x.d"}
