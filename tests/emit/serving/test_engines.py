"""Each engine's words for a deployment, and what it has none for."""

from __future__ import annotations

import json

import pytest
from tests.emit.serving.answers import answer

from scalewright.emit.emitted import Emitted
from scalewright.emit.serving.deployment import deployment
from scalewright.emit.serving.engines import ENGINES, options
from scalewright.emit.serving.write import write
from scalewright.spec.errors import UserError

LOADERS = [engine for engine in ENGINES if engine != "llama.cpp"]  # of a Hugging Face folder as it is


def flags(engine: str, question: str, *overrides: str) -> tuple[dict[str, str], Emitted]:
    """Flags with their values, and what was written."""
    asked = answer(question, ENGINES[engine].names[0])
    d, report = deployment(asked, overrides, "x")
    words = ENGINES[engine].flags(d, report, "")
    pairs = {word: "" if word == words[-1] or after.startswith("--") else after
             for word, after in zip(words, [*words[1:], "--"], strict=True) if word.startswith("--")}  # fmt: skip
    return pairs, write(engine, asked, overrides)


def test_the_same_limits_in_three_engines() -> None:
    vllm, _ = flags("vllm", "plain")
    assert (vllm["--tensor-parallel-size"], vllm["--max-num-seqs"], vllm["--max-num-batched-tokens"]) == (
        "4",
        "1024",
        "8192",
    )
    assert (vllm["--dtype"], vllm["--kv-cache-dtype"], vllm["--gpu-memory-utilization"]) == (
        "bfloat16",
        "bfloat16",
        "0.9",
    )
    sglang, _ = flags("sglang", "plain")
    assert (sglang["--tp-size"], sglang["--max-running-requests"]) == ("4", "2048")
    trtllm, _ = flags("trtllm", "plain")
    assert (trtllm["--tp_size"], trtllm["--max_batch_size"], trtllm["--max_seq_len"]) == ("4", "2048", "131072")


def test_tensorrt_llm_counts_memory_from_what_is_free() -> None:
    """Its share gives the cache that was priced."""
    asked = answer("plain", "tensorrt-llm")
    share, held = float(flags("trtllm", "plain")[0]["--kv_cache_free_gpu_memory_fraction"]), asked["memory_gib"]
    free = held["usable"] / 0.9 - held["weights"] - held["activations"] - held["other"]
    assert share * free == pytest.approx(held["kv_pool"], rel=2e-3)  # written to three digits, and never too much


def test_sglang_counts_weights_and_cache_alone() -> None:
    asked = answer("plain", "sglang")
    share, held = float(flags("sglang", "plain")[0]["--mem-fraction-static"]), asked["memory_gib"]
    whole = held["usable"] / asked["server"]["memory_share"]
    assert 0 <= held["weights"] + held["kv_pool"] - share * whole < whole / 1000  # written to three digits


def test_limits_of_another_engine_are_not_carried() -> None:
    asked = answer("plain")
    limits = {**asked["server"], "memory_share": 1.0, "max_batched_tokens": 512}
    memory = {**asked["memory_gib"], "usable": 80.0}
    written = write("vllm", {**asked, "engine": "llama.cpp", "server": limits, "memory_gib": memory})
    assert {"memory_share", "max_batched_tokens"} <= {item.key for item in written.changed}
    assert "--gpu-memory-utilization 0.9" in written.files["serve.sh"]
    assert "--max-num-batched-tokens" not in written.files["serve.sh"]
    short = {**limits, "longest_that_fits": 131072}
    written = write("vllm", {**asked, "engine": "llama.cpp", "server": short, "memory_gib": memory})
    pool = 80 - sum(memory[key] for key in ("weights", "activations", "other"))
    assert f"--max-model-len {int(131072 * (pool - 8) / pool)}" in written.files["serve.sh"]
    full = {**memory, "weights": 79.0, "kv_pool": 0.1}
    with pytest.raises(UserError, match="nothing is left"):
        write("vllm", {**asked, "engine": "llama.cpp", "server": limits, "memory_gib": full})


@pytest.mark.parametrize("target", ["trtllm", "dynamo"])
@pytest.mark.parametrize("vendor", ["amd", "google"])
def test_devices_that_an_engine_does_not_run_on(target: str, vendor: str) -> None:
    asked = answer("plain", "tensorrt-llm")
    with pytest.raises(UserError, match=f"TensorRT-LLM doesn't run on devices of {vendor}"):
        write(target, {**asked, "server": {**asked["server"], "vendor": vendor}})


def test_experts_and_latents() -> None:
    """DeepSeek-V3 over 16: experts over all ranks, attention on each alone; guesses by its own layer for them."""
    vllm, written = flags("vllm", "experts")
    assert (vllm["--tensor-parallel-size"], vllm["--data-parallel-size"]) == ("1", "16")
    assert "--enable-expert-parallel" in vllm
    assert "--dtype" not in vllm
    assert json.loads(vllm["--speculative-config"]) == {"method": "mtp", "num_speculative_tokens": 2}
    assert written.exact
    sglang, _ = flags("sglang", "experts")
    assert (sglang["--ep-size"], sglang["--attn-dp-size"], sglang["--speculative-algorithm"]) == ("16", "16", "NEXTN")
    assert int(sglang["--max-running-requests"]) == 16 * answer("experts", "sglang")["server"]["max_seqs"]
    d, report = deployment(answer("experts", "tensorrt-llm"), (), "x")
    rest = options(d, report, "")
    assert rest["enable_attention_dp"] is True
    assert rest["speculative_config"] == {"decoding_type": "MTP", "num_nextn_predict_layers": 2}


def test_formats_that_are_made_at_loading() -> None:
    assert flags("vllm", "quantised")[0].items() >= {"--quantization": "fp8", "--kv-cache-dtype": "fp8"}.items()
    assert flags("sglang", "quantised")[0].items() >= {"--quantization": "fp8", "--kv-cache-dtype": "fp8_e4m3"}.items()
    _, written = flags("trtllm", "quantised")
    assert [(item.key, item.value) for item in written.dropped] == [("precision", "fp8")]
    _, given = flags("trtllm", "quantised", "checkpoint=nvidia/Llama-3.1-70B-Instruct-FP8")
    assert given.exact
    assert "the checkpoint's weights are in fp8, as was priced" in given.assumed


@pytest.mark.parametrize("engine", LOADERS)
def test_a_format_that_none_makes_is_named(engine: str) -> None:
    pairs, written = flags(engine, "int4")
    assert [item.key for item in written.dropped] == ["precision"]
    assert "set checkpoint=NAME to one in int4" in written.dropped[0].why
    assert "131 GiB a device where" in written.dropped[0].why  # 70.55e9 of 2 bytes on one of 80
    assert "--quantization" not in pairs
    assert flags(engine, "int4", "checkpoint=org/llama-awq")[1].exact


def changed(target: str, **keys: object) -> Emitted:
    """`plain` with other keys in its answer."""
    asked = answer("plain", ENGINES[target].names[0])
    return write(target, {**asked, **keys})


def test_what_an_engine_has_no_word_for() -> None:
    assert [item.key for item in changed("sglang", kv_precision="int8").dropped] == ["kv_precision"]
    dense = {**answer("plain")["layout"], "attention_dp": 2}
    assert [item.key for item in changed("vllm", layout=dense).changed] == ["layout.attention_dp"]
    assert [item.key for item in changed("trtllm", layout=dense).changed] == ["layout.attention_dp"]
    half = {**answer("plain")["layout"], "ep": 2}
    assert [item.written for item in changed("vllm", layout=half).changed] == ["--enable-expert-parallel, ep 4"]
    assert not changed("sglang", layout=half).changed
    assert [item.key for item in changed("vllm", engine="llama.cpp").changed] == ["engine", "max_batched_tokens"]


@pytest.mark.parametrize("engine", ENGINES)
def test_guesses(engine: str) -> None:
    """By n-grams where they cost nothing; by a draft model only where it is named."""
    free = changed(engine, speculation={"guessed": 3, "cost": 0.0})
    assert "guesses cost nothing: n-grams of the text" in free.assumed
    assert any(word in "".join(free.files.values()) for word in ("ngram", "NGRAM", "NGram"))
    unnamed = changed(engine, speculation={"guessed": 3, "cost": 0.05})
    assert [item.key for item in unnamed.dropped] == ["speculation"]
    asked = {**answer("plain", ENGINES[engine].names[0]), "speculation": {"guessed": 3, "cost": 0.05}}
    assert "org/small" in "".join(write(engine, asked, ("draft=org/small",)).files.values())
