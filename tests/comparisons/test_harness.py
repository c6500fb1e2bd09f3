"""The helpers of the comparisons: accounts of CPU time, kinds of operators, backends by name, results."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import torch
from harness.contest import Contest, Plan, Timed
from harness.gpu.attention import documents, gradients, plain
from harness.gpu.budget import Check, OutOfTime
from harness.gpu.ceilings import drift
from harness.gpu.clock import time_call
from harness.gpu.kernels import attention_backends, is_annotation, kind_of
from harness.gpu.losses import chunked, whole
from harness.gpu.steps import cut
from harness.gpu.store import read_json
from harness.meter import Meter
from harness.profile import kind_of as operator_kind
from harness.resident import growth, last_step
from harness.result import table
from harness.setting import take

from scalewright.spec.presets import load_model_spec

CPU = torch.device("cpu")


def burn(seconds: float) -> None:
    """Uses this thread's processor."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Worker:
    """Something with parts."""

    def outer(self) -> None:
        burn(0.02)
        self.inner()

    def inner(self) -> None:
        burn(0.03)


def test_a_meter_counts_nested_calls_once():
    worker, meter = Worker(), Meter()
    with meter.attached([("forward", worker, "outer"), ("norm", worker, "inner")]):
        account = meter.account(lambda: (worker.outer(), burn(0.01)), steps=2)
    assert account["forward"] == pytest.approx(0.010, abs=0.003)  # of two steps; a timer's grain is far smaller
    assert account["norm"] == pytest.approx(0.015, abs=0.003)
    assert account["outside"] == pytest.approx(0.020, abs=0.005)
    assert account["all"] == pytest.approx(account["outside"] + account["forward"])
    assert "outer" not in vars(worker)  # the method is the class's again


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_128x128x128", "cuDNN"),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 64, 4>>", "FlashAttention"),
        ("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<...>", "FlashAttention"),
        ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::...)", "memory-efficient (CUTLASS)"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "flash (CPU)"),
        ("aten::_scaled_dot_product_attention_math", "math"),
    ],
)
def test_attention_is_known_by_its_kernels(name, backend):
    assert attention_backends(["ampere_bf16_gemm", name, name]) == [backend]
    assert kind_of(name) == "attention"


def test_other_kernels_are_no_attention():
    names = ["nvjet_tst_256x128_64x4_1x2_h_bz_coopA_NNT", "triton_poi_fused_add_mul_3", "elementwise_kernel"]
    assert attention_backends(names) == []
    assert [kind_of(name) for name in names] == ["matmul", "compiled element-wise", "other"]


def test_operators_are_sorted_by_name_and_shape():
    v = 512
    assert operator_kind("aten::mm", [[128, 64], [64, v]], v) == "head and loss"
    assert operator_kind("aten::mm", [[128, 64], [64, 64]], v) == "matmul"
    assert operator_kind("aten::_log_softmax", [[128, v]], v) == "head and loss"
    assert operator_kind("aten::add_", [[v, 64], [v, 64]], v) == "the rest"  # a gradient sum of the embedding
    assert operator_kind("aten::_fused_adamw_", [[], []], v) == "optimizer"
    assert operator_kind("aten::_scaled_dot_product_flash_attention_for_cpu", [], v) == "attention"


def test_loops_never_run_out_of_samples_quietly():
    with pytest.raises(IndexError, match="2 steps of samples"):
        take([(torch.zeros(1), torch.zeros(1))] * 2, 1, 2)


def test_a_contestant_that_trains_something_else_is_seen():
    times = {"a": Timed("fp32", [1.0], [1.0], [4.0, 3.0]), "b": Timed("fp32", [1.0], [1.0], [4.0, 3.3, 3.0])}
    found = Contest(times, 1, Plan(), []).disagreement("a")
    assert found["a"] == 0
    assert found["b"] == pytest.approx(0.1)


def test_what_was_measured_is_on_disk_and_isnt_measured_again(tmp_path):
    check = Check(CPU, True, tmp_path / "part.json", "part", end=time.monotonic() + 10)
    assert check.want("first")
    assert read_json(check.file)["record"]["at"] == "first"
    with check.trying("first"):
        assert check.part == {1: 2}, "not here"  # any exception is one measurement's alone
    assert read_json(check.file)["record"] == {"values": {"first": {"error": "AssertionError: not here"}}}
    assert not check.want("first")
    check.record["deaths"] = {"second": ["SIGSEGV", "SIGKILL"]}
    assert not check.want("second")
    assert "2 times: SIGKILL" in check.part["second"]["error"]
    with pytest.raises(OutOfTime, match="third waits: "):
        check.want("third", 50.0)
    with pytest.raises(OutOfTime), check.trying("third"):
        raise OutOfTime("later")
    assert "third" not in check.part


def test_ranges_around_kernels_are_none():
    """The profiler puts them on the device's timeline, over the kernels that they contain."""
    ranges = ("Optimizer.step#AdamW.step", "Torch-Compiled Region: 0/0", "## Call CompiledFxGraph ##")
    assert all(is_annotation(SimpleNamespace(name=name)) for name in ranges)
    assert is_annotation(SimpleNamespace(name="anything", is_user_annotation=True))
    assert not is_annotation(SimpleNamespace(name="nvjet_hsh_128x256", is_user_annotation=False))


def test_a_shape_is_cut_to_the_layers_that_fit(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=80 * 2**30))
    model, cuda = load_model_spec("llama-3.1-8b"), torch.device("cuda")
    large, small = cut(model, cuda, 18.0), cut(model, cuda, 12.0)
    assert large.num_hidden_layers < small.num_hidden_layers < 32
    assert large.name == f"llama-3.1-8b, {large.num_hidden_layers} of 32 layers"
    assert cut(load_model_spec("llama-3.2-1b"), cuda, 18.0) == load_model_spec("llama-3.2-1b")


def test_drift_is_said():
    def ceilings(matmul: float) -> dict[str, dict[str, float]]:
        return {"matmul_bf16_tflops": {"per_s": matmul}, "copy_gb": {"per_s": 100.0}}

    assert not drift(ceilings(790), ceilings(770))["drifted"]
    assert drift(ceilings(790), ceilings(750))["drifted"]


def test_time_call_takes_turns_and_times_one_call():
    met = []
    found = time_call([lambda n=n: (met.append(n), time.sleep(0.002)) for n in range(3)], CPU, 0.02, least=5)
    assert 0.002 <= found.median < 0.2  # a busy machine sleeps longer
    assert met[:6] == [0, 1, 2, 0, 1, 2]


def test_chunked_loss_equals_the_whole_with_gradients():
    """fp32, so only the order of sums differs."""
    torch.manual_seed(0)
    hidden = torch.randn(50, 16, requires_grad=True)
    weight = torch.randn(40, 16, requires_grad=True)
    targets = torch.randint(40, (50,))
    one = whole(hidden, weight, targets)
    other = chunked(16, hidden, weight, targets)
    torch.testing.assert_close(other, one)
    torch.testing.assert_close(torch.autograd.grad(other, (hidden, weight)), torch.autograd.grad(one, (hidden, weight)))


def test_the_masked_reference_is_causal_within_documents():
    at = torch.arange(8)
    mask = (at >= documents(CPU, 8).first[0][:, None]) & (at <= at[:, None])
    assert mask.sum() == 4 * 3  # four documents of two tokens: one and two visible keys
    q, k, v = (torch.randn(1, 1, 8, 4) for _ in range(3))
    slope = torch.zeros(1, 1, 8, 4)
    slope[:, :, 3] = 1.0
    _, _, dv = gradients(q, k, v, slope, mask[None, None], plain)
    assert dv[0, 0].abs().sum(-1).nonzero().flatten().tolist() == [2, 3]


def test_a_table_is_aligned():
    assert table(["", "n"], [["a", 1], ["bb", 22]]).splitlines() == [
        "|    |  n |",
        "| -- | -: |",
        "| a  |  1 |",
        "| bb | 22 |",
    ]


def test_growth_is_of_the_rank_that_grows_most_and_not_of_spikes():
    """A save or a validation takes memory for a moment, at both ends alike."""
    rising = [(step, [100.0 + 50.0 * (step % 100 == 0), 100.0 + 0.1 * step]) for step in range(10, 1001, 10)]
    assert growth(rising, 200) == pytest.approx(100, rel=1e-6)
    assert growth([(step, held[:1]) for step, held in rising], 200) == 0
    with pytest.raises(ValueError, match="too few"):
        growth(rising[:1], 0)


def test_the_last_step_is_that_of_a_whole_training_row(tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    assert last_step(metrics) == 0
    metrics.write_text('{"kind": "train", "step": 7}\n{"kind": "valid", "step": 7}\n{"kind": "train", "st')
    assert last_step(metrics) == 7
