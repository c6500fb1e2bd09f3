"""The planner's expectation beside a log's usual step; one line on what is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.diagnose.logs.write import bridge_step_time, megatron_2021, titan, trainer, write

from scalewright.api import diagnose, predict, read
from scalewright.cli.terminal import show
from scalewright.report.present import show_answer
from scalewright.spec.errors import UserError

BLOCK = """using world size: 64, data-parallel size: 8, tensor-model-parallel size: 8
------------------------ arguments ------------------------
  bf16 ............................................ True
  ffn_hidden_size ................................. 14336
  global_batch_size ............................... 64
  hidden_size ..................................... 4096
  micro_batch_size ................................ 1
  num_attention_heads ............................. 32
  num_layers ...................................... 32
  num_query_groups ................................ 8
  padded_vocab_size ............................... 128256
  pipeline_model_parallel_size .................... 1
  seq_length ...................................... 8192
  sequence_parallel ............................... True
  swiglu .......................................... True
  tensor_model_parallel_size ...................... 8
  use_distributed_optimizer ....................... True
-------------------- end of arguments ---------------------
"""


def ask(folder: Path, seconds: float = 1.5, **given: Any) -> dict[str, Any]:
    path = write(folder, lambda step, _, loss: megatron_2021(step, seconds, loss), before=BLOCK)
    return diagnose(path, **given)


def test_a_block_of_arguments_and_a_cluster_are_enough(tmp_path: Path) -> None:
    expected = ask(tmp_path, cluster="dgx-h100")["expected"]
    layout = {"devices": 64, "tp": 8, "zero_stage": 1, "micro_batch": 1, "global_batch": 64}
    alone = predict("llama-3-8b", "dgx-h100", layout, 8192, framework="megatron")["step_time_s"]
    assert expected["p50"] == pytest.approx(alone["p50"], rel=0.05)
    assert expected["p10"] < expected["p50"] < expected["p90"]
    assert (expected["compared_by"], expected["measured_s"]) == ("step time", 1.5)


def test_a_block_is_priced_as_the_configuration_that_it_is(tmp_path: Path) -> None:
    """By one reader: `predict --from` the log, and the log's own expectation."""
    expected = ask(tmp_path, cluster="dgx-h100")["expected"]
    [path] = tmp_path.iterdir()
    run = read(path)
    # the block has no world_size, which another line states
    alone = predict(run, "dgx-h100", devices=64, framework="megatron-lm")
    assert expected["p50"] == alone["step_time_s"]["p50"]
    assert any("hidden-dropout" in line for line in expected["assumed"])
    assert not any(line.startswith("devices ") for line in expected["assumed"])


def test_what_a_whole_block_leaves_out_is_off(tmp_path: Path) -> None:
    log = ask(tmp_path)["log"]
    assert {"cp": 1, "virtual_stages": 1, "zero_stage": 1, "recompute": "none", "sp": True}.items() <= (
        log["layout"].items()
    )
    assert log["layout"].keys().isdisjoint({"ep", "etp"})  # there are no experts
    assert (log["dims"]["mlp_mats"], log["dims"]["vocab"], log["devices"]) == (3, 128256, 64)


def test_slow_as_expected_and_fast(tmp_path: Path) -> None:
    band = ask(tmp_path, cluster="dgx-h100")["expected"]
    slow = ask(tmp_path, 1.5 * band["p90"], cluster="dgx-h100")
    assert slow["expected"]["verdict"] == "slow: 50% beyond p90"
    [cause] = slow["verdicts"]
    assert cause["cause"] == "slower than expected"
    assert cause["gain_pct"]["p10"] == pytest.approx(100 / 3, abs=0.2)
    assert cause["gain_pct"]["p10"] < cause["gain_pct"]["p50"] < cause["gain_pct"]["p90"] < 100
    usual = ask(tmp_path, band["p50"], cluster="dgx-h100")
    assert (usual["expected"]["verdict"], usual["verdicts"]) == ("as expected", [])
    assert ask(tmp_path, band["p10"] / 2, cluster="dgx-h100")["expected"]["verdict"] == "faster than expected"


def test_what_is_missing_is_one_line_with_the_flags(tmp_path: Path) -> None:
    answer = ask(tmp_path)
    assert answer["expected"] is None
    assert answer["warnings"] == [
        "not in the log: kind of device; to compare with what it should take, add --cluster CLUSTER"
    ]
    [line] = diagnose(write(tmp_path, titan))["warnings"]
    assert line.endswith("add --model MODEL --cluster CLUSTER --seq-len TOKENS --layout devices=N")


def test_rates_need_no_batch(tmp_path: Path) -> None:
    given: dict[str, Any] = {"model": "llama-3.1-8b", "cluster": "dgx-h100", "seq_len": 8192}
    by_tokens = diagnose(write(tmp_path, titan), layout={"devices": 8}, **given)["expected"]
    assert by_tokens["compared_by"] == "tokens/s"
    alone = predict("llama-3.1-8b", "dgx-h100", {"devices": 8}, 8192, framework="torchtitan")
    assert by_tokens["tokens_per_s_per_device"] == pytest.approx(alone["tokens_per_s_per_device"], rel=0.3)
    assert by_tokens["measured_s"] == pytest.approx(by_tokens["p50"] * by_tokens["tokens_per_s_per_device"] / 6344)
    by_flops = diagnose(write(tmp_path, bridge_step_time), layout={"devices": 8}, **given)["expected"]
    assert by_flops["compared_by"] == "TFLOP/s"


def test_the_device_that_a_log_names(tmp_path: Path) -> None:
    head = (
        "[titan] CUDA capacity: NVIDIA H100 80GB HBM3 with 79.10GiB memory\n"
        "[titan] Building llama3 8B with TransformerModelArgs(dim=4096)\n"
        "[titan] Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=8, cp=1, tp=1, "
        "ep=1, etp=1\n"
        "[titan] Applied selective activation checkpointing to the model\n"
        "[titan] Applied FSDP to the model\n"
        "[titan] Training starts at step 1, with local batch size 1, global batch size 8, sequence "
        "length 8192\n"
    )
    answer = diagnose(write(tmp_path, titan, before=head))
    assert answer["warnings"] == []
    assert (answer["expected"]["cluster"], answer["expected"]["devices"]) == ("H100", 8)


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"cluster": "dgx-h1000"}, "dgx-h100"),
        ({"model": "lama-3.1-8b"}, "llama-3.1-8b"),
        ({"cluster": "dgx-h100", "layout": {"tp": 3}}, "tp"),
        ({"layout": {"tp": "eight"}}, "whole number"),
        ({"layout": {"nodes": 8}}, "--cluster"),
        ({"layout": {"offload": "all"}}, "offload"),
        ({"layout": {"recompute": {"every": 2}}}, "selective"),
        ({"seq_len": 0}, "seq_len"),
    ],
)
def test_a_wrong_flag_is_an_error_in_a_sentence(tmp_path: Path, given: dict[str, Any], word: str) -> None:
    with pytest.raises(UserError, match=word):
        ask(tmp_path, **given)


def test_flags_for_a_log_are_refused_with_anything_else() -> None:
    with pytest.raises(UserError, match="are for a log of training"):
        diagnose("example", model="llama-3-8b")


def test_the_first_line_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show(show_answer(ask(tmp_path, cluster="dgx-h100")), everything=True)
    first = capsys.readouterr().out.split("\n")[0]
    assert first == "1.5 s a step on 64 devices of dgx-h100 with megatron-lm: as expected"


def test_nodes_and_a_model_s_file_of_the_user_s(tmp_path: Path) -> None:
    shape = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
             "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(shape))
    given: dict[str, Any] = {"cluster": "dgx-h100", "seq_len": 8192, "layout": {"nodes": 1}}
    own = diagnose(write(tmp_path, titan), model=str(tmp_path / "config.json"), **given)["expected"]
    preset = diagnose(write(tmp_path, titan), model="llama-3-8b", **given)["expected"]
    assert (own["devices"], own["p50"]) == (8, pytest.approx(preset["p50"], rel=0.01))


def test_a_path_that_a_log_names_isn_t_opened(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("no JSON: whoever opens it fails")
    before = f"cmd = x --model_name_or_path {tmp_path}/config.json --max_seq_len 512\n"
    answer = diagnose(write(tmp_path, titan, before=before), cluster="dgx-h100", layout={"devices": 8})
    assert answer["expected"] is None
    assert f"the shape of {tmp_path}/config.json" in answer["warnings"][0]


def test_the_summary_of_a_run_without_times(tmp_path: Path) -> None:
    path = write(tmp_path, trainer)
    with path.open("a") as file:
        file.write("{'train_runtime': 1273.9, 'train_steps_per_second': 0.25, 'train_loss': 0.2}\n")
    measured = diagnose(path)["log"]["measured"]
    assert (measured["step_time_s"], measured["source"]) == (4.0, "mean")


SCRIPT = """torchrun --nnodes 8 --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 \\
  --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 --swiglu \\
  --normalization RMSNorm --disable-bias-linear --position-embedding-type rope --vocab-size 128256 \\
  --untie-embeddings-and-output-weights --seq-length 8192 --max-position-embeddings 8192 --bf16 \\
  --tensor-model-parallel-size 8 --sequence-parallel --use-distributed-optimizer --micro-batch-size 1 \\
  --global-batch-size 64 --lr 3e-4 --train-iters 10
"""


def ask_configured(folder: Path, before: str = "", **given: Any) -> dict[str, Any]:
    (folder / "pretrain.sh").write_text(SCRIPT)
    path = write(folder, lambda step, _, loss: megatron_2021(step, 1.5, loss), before=before)
    return diagnose(path, configuration=folder / "pretrain.sh", **given)


def test_a_configuration_states_what_the_log_does_not(tmp_path: Path) -> None:
    answer = ask_configured(tmp_path, cluster="dgx-h100")
    layout = {"devices": 64, "tp": 8, "zero_stage": 1, "micro_batch": 1, "global_batch": 64}
    alone = predict("llama-3-8b", "dgx-h100", layout, 8192, framework="megatron")["step_time_s"]
    assert answer["expected"]["p50"] == pytest.approx(alone["p50"], rel=0.05)
    assert answer["expected"]["layout"]["tp"] == 8
    assert answer["warnings"] == []


def test_what_ran_goes_over_the_configuration_and_is_said(tmp_path: Path) -> None:
    before = "using world size: 32, tensor-model-parallel size: 8\n  num_layers ....... 80\n"
    answer = ask_configured(tmp_path, before, cluster="dgx-h100")
    assert answer["expected"]["devices"] == 32
    [line] = answer["warnings"]
    assert "devices is 32 in the log and 64 in the configuration" in line
    assert "layers is 80 in the log and 32 in the configuration: is it of this run?" in line
    assert ask_configured(tmp_path, before, cluster="dgx-h100", layout={"nodes": 2})["expected"]["devices"] == 16


def test_a_configuration_without_a_kind_of_device_or_that_cannot_be(tmp_path: Path) -> None:
    [line] = ask_configured(tmp_path)["warnings"]
    assert line.endswith("add --cluster CLUSTER")
    with pytest.raises(UserError, match="devices 64 is not divisible"):
        ask_configured(tmp_path, cluster="dgx-h100", layout={"tp": 3})


def test_a_rate_that_the_devices_cannot_have_is_what_is_compared(tmp_path: Path) -> None:
    """A step time and a rate of each device that don't go together: the number of devices is wrong."""
    block = BLOCK.replace("using world size: 64, data-parallel size: 8, tensor-model-parallel size: 8\n", "")
    layout = {"devices": 16, "tp": 8, "global_batch": 64}
    answers = []
    for rate in (60.0, 300.0):  # of some 80 devices, and of 16
        path = write(tmp_path, lambda step, _, loss, rate=rate: titan_rate(step, 6.0, loss, rate), before=block)
        answers.append(diagnose(path, cluster="dgx-h100", layout=layout)["expected"])
    assert [answer["compared_by"] for answer in answers] == ["TFLOP/s", "step time"]
    assert "times as many devices as are given: compared by TFLOP/s" in answers[0]["assumed"][0]
    assert answers[0]["measured_s"] > 2 * 6.0


def titan_rate(step: int, seconds: float, loss: float, rate: float) -> str:
    return (
        f" iteration {step:8d}/    1000 | consumed samples: {64 * step:12d} | elapsed time per iteration (ms): "
        f"{1000 * seconds:.1f} | throughput per GPU (TFLOP/s/GPU): {rate:.1f} | global batch size:    64 | "
        f"lm loss: {loss:.6E} | loss scale: 1.0 |"
    )
