"""llama.cpp: a file made once in the format that was priced, and servers on devices of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.emit.serving.answers import answer
from tests.emit.serving.started import started

from scalewright.emit.serving.write import write
from scalewright.spec.errors import UserError

HUB = "meta-llama/Llama-3.1-70B"


def lines(folder: Path, *overrides: str, **keys: object) -> list[str]:
    """What a script runs, as lines of words; devices first."""
    emitted = write("llama.cpp", {**answer("plain", "llama.cpp"), **keys}, overrides)
    return [" ".join(words) for words in started(folder, emitted, 0)]


def test_a_hub_s_model_is_fetched_written_and_quantised_once(tmp_path: Path) -> None:
    fetch, write_, quantise, serve = lines(tmp_path, precision="q4_k_m")
    assert fetch == f"all hf download {HUB} --local-dir {HUB}"
    file = "llama-3-1-70b-bf16.gguf"
    assert write_ == f"all python llama.cpp/convert_hf_to_gguf.py {HUB} --outtype bf16 --outfile {file}"
    assert quantise == f"all llama-quantize {file} llama-3-1-70b-q4_k_m.gguf Q4_K_M"
    assert serve.startswith("0,1,2,3 llama-server -m llama-3-1-70b-q4_k_m.gguf --gpu-layers all --split-mode layer ")
    (tmp_path / "llama-3-1-70b-q4_k_m.gguf").touch()
    (again,) = lines(tmp_path, precision="q4_k_m")
    assert again == serve


@pytest.mark.parametrize(("precision", "outtype"), [("bf16", "bf16"), ("fp32", "f32"), ("q8_0", "q8_0")])
def test_a_folder_in_a_format_that_the_converter_writes(precision: str, outtype: str, tmp_path: Path) -> None:
    write_, serve = lines(tmp_path, "checkpoint=/models/mine", precision=precision)
    assert write_.endswith(f"/models/mine --outtype {outtype} --outfile llama-3-1-70b-{precision}.gguf")
    assert f"-m llama-3-1-70b-{precision}.gguf" in serve
    assumed = write("llama.cpp", answer("plain", "llama.cpp"), ("checkpoint=/models/mine",)).assumed
    assert any("knows published tokenizers alone" in text for text in assumed)


def test_a_file_that_is_there_is_served(tmp_path: Path) -> None:
    (serve,) = lines(tmp_path, "checkpoint=/models/mine.gguf", precision="q4_0")
    assert "llama-server -m /models/mine.gguf " in serve


@pytest.mark.parametrize(("precision", "near"), [("fp8", "q8_0"), ("int4", "q4_0")])
def test_a_format_of_others_is_changed_and_named(precision: str, near: str) -> None:
    emitted = write("llama.cpp", {**answer("plain", "llama.cpp"), "precision": precision})
    assert [(item.key, item.written) for item in emitted.changed] == [("precision", near)]
    assert f"-{near}.gguf" in emitted.files["serve.sh"]


def test_slots_share_the_cache_that_was_priced() -> None:
    asked = answer("plain", "llama.cpp")
    text = " ".join(write("llama.cpp", asked).files["serve.sh"].replace("\\\n", "").split())
    held = asked["server"]["longest_that_fits"]
    assert f"--parallel 256 --kv-unified --ctx-size {held} --kv-unified-per-slot 131072 " in text
    assert "--ubatch-size 512 --cache-type-k f16 --cache-type-v f16" in text
    quantised = write("llama.cpp", {**asked, "kv_precision": "int8"}).files["serve.sh"]
    assert "--cache-type-v q8_0" in quantised
    assert "--flash-attn on" in quantised
    assert [item.key for item in write("llama.cpp", {**asked, "kv_precision": "fp8"}).dropped] == ["kv_precision"]


def test_prefill_is_not_apart_and_copies_have_devices_of_their_own(tmp_path: Path) -> None:
    emitted = write("llama.cpp", answer("apart", "llama.cpp"))
    assert [item.key for item in emitted.dropped] == ["layout.prefill"]
    served = [line for node in (0, 1) for line in started(tmp_path, emitted, node) if line[1] == "llama-server"]
    assert sorted(line[0] for line in served) == ["0,1", "0,1", "2,3", "4,5", "6,7"]
    assert len({line[-1] for line in served}) == 5  # ports


def test_what_it_has_no_word_for() -> None:
    emitted = write("llama.cpp", answer("plain", "vllm"))
    assert {item.key for item in emitted.changed} == {"engine", "max_batched_tokens", "max_seqs", "layout"}
    spread = {**answer("plain", "llama.cpp"), "layout": {**answer("plain")["layout"], "ep": 4, "attention_dp": 4}}
    assert {item.key for item in write("llama.cpp", spread).dropped} == {"layout.ep", "layout.attention_dp"}
    with pytest.raises(UserError, match="a replica takes 2"):
        write("llama.cpp", answer("stages", "llama.cpp"))


def test_its_other_name() -> None:
    assert write("llamacpp", answer("plain", "llama.cpp")).trainer == "llama.cpp"
