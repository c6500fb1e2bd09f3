"""What is deployed: the facts of an answer, the user's own, and answers that nothing can be launched from."""

from __future__ import annotations

import pytest
from tests.emit.serving.answers import answer

import scalewright as sw
from scalewright.emit.serving.deployment import deployment
from scalewright.spec.errors import UserError
from scalewright.spec.presets import load_model_spec


def test_the_facts_are_those_that_were_priced() -> None:
    d, report = deployment(answer("experts"), (), "x")
    assert (d.tp, d.ep, d.attention_dp, d.nodes_each, d.guesses) == (16, 16, 16, 2, 2)
    assert (d.checkpoint, d.precision, d.stored, d.mtp) == ("deepseek-ai/DeepSeek-V3", "fp8", "fp8", True)
    assert d.roles == (("", 1),)
    assert report.assumed == ["max_len 163840: the model's context"]


def test_the_longest_request_is_what_the_cache_holds() -> None:
    """70B in bf16 on two 80 GB: 72 GB a device less 71 of weights leaves less than its context of 131,072 tokens."""
    tight = sw.inference("llama-3.1-70b", "dgx-h100", 512, 128, layout={"tp": 2}, explain=False)
    d, report = deployment(tight, (), "x")
    held = tight["memory_gib"]["kv_pool"] * 2**30 / (tight["kv_bytes_per_token"] / 2)
    assert d.max_len == pytest.approx(held, rel=1e-3)
    assert report.assumed == [f"max_len {d.max_len}: what the cache holds of one sequence"]
    assert deployment(tight, ("max_len=4096",), "x")[0].max_len == 4096


def test_a_window_ends_what_its_layers_hold() -> None:
    """gpt-oss: half of its layers look back 128 tokens, so that only the others grow with the request."""
    got = sw.inference("gpt-oss-120b", "dgx-h100", 512, 128, layout={"tp": 2}, explain=False)
    assert (
        got["server"]["longest_that_fits"] > got["memory_gib"]["kv_pool"] * 2**30 / got["kv_bytes_per_token"] * 2 * 1.9
    )
    assert (got["server"]["stored"], got["server"]["experts"]) == ("mxfp4", True)


def test_a_model_of_ones_own_has_no_hub_name() -> None:
    mine = load_model_spec("llama-3.2-1b").replace(name="mine")
    got = sw.inference(mine, "dgx-h100", 512, 128, explain=False)
    d, report = deployment(got, (), "x")
    assert d.checkpoint == "mine"
    assert "the checkpoint is a folder mine: set it with checkpoint=FOLDER or a hub name" in report.assumed
    assert deployment(got, ("checkpoint=/models/mine",), "x")[0].checkpoint == "/models/mine"


@pytest.mark.parametrize("name", ["1e5", "yes", "[a, b]", "org: it", "/models/it's"])
def test_a_name_is_what_was_typed(name: str) -> None:
    assert deployment(answer("plain"), (f"checkpoint={name}",), "x")[0].checkpoint == name


@pytest.mark.parametrize("name", ["", " ", "null", "-x", "~/model"])
def test_no_name_is_an_error(name: str) -> None:
    for key in ("checkpoint", "draft"):
        with pytest.raises(UserError, match=f"{key} is '{name.strip()}'"):
            deployment(answer("plain"), (f"{key}={name}",), "x")


def test_what_is_longer_than_the_server_takes() -> None:
    with pytest.raises(UserError, match="beyond the model's context"):
        deployment(answer("plain"), ("max_len=131073",), "x")
    _, report = deployment({**answer("plain"), "input_len": 131000.0}, (), "x")
    assert [(item.value, item.written) for item in report.changed.values()] == [(131256, "max_len 131072")]
    tight = {**answer("plain"), "server": {**answer("plain")["server"], "longest_that_fits": 9000}}
    d, report = deployment(tight, ("max_len=10000",), "x")
    assert (d.max_len, list(report.changed)) == (9000, ["max_len"])


def test_what_cannot_be_launched_says_so() -> None:
    full = sw.inference("llama-3.1-405b", "rtx-4090", 128, 128, layout={"tp": 8}, explain=False)
    with pytest.raises(UserError, match="doesn't fit"):
        deployment(full, (), "x")
    with pytest.raises(UserError, match="layout"):
        deployment(answer("plain"), ("layout.tp=8",), "x")
    with pytest.raises(UserError, match="max_len is -1"):
        deployment(answer("plain"), ("max_len=-1",), "x")
    old = {key: value for key, value in answer("plain").items() if key != "server"}
    with pytest.raises(UserError, match="ask `scalewright inference` again"):
        deployment(old, (), "x")
