"""The roofline: worked tables at ideal rates, and what must hold at any."""

from __future__ import annotations

import numpy as np
import pytest

from scalewright.inference import cost
from scalewright.inference.ask import Wanted, ask
from scalewright.inference.constants import constants, engine_of, format_of
from scalewright.inference.setup import Columns, setup, table
from scalewright.spec.hardware.cluster import load_cluster

IDEAL = {name: 0.0 if value < 0.01 else 1.0 for name, value in constants().items()} | {"experts.width": 0.0}


def asked(model="llama-3.1-8b", cluster="dgx-h100", **keys):
    return ask(model, load_cluster(cluster), Wanted(keys.pop("input_len", 1024), keys.pop("output_len", 256), **keys))[
        0
    ]


def seconds(question, batch, context=1024.0, c=None):
    return float(cost.decode_s(table([question]), c or constants(), np.array([float(batch)]), np.array([context]))[0])


@pytest.mark.parametrize(
    ("batch", "kv", "step"), [(8, 6.7e9, 0.01213), (1, 1.34e9, 0.00417), (16, 1.34e9, 0.00723), (64, 1.34e9, 0.01704)]
)
def test_the_scaling_book_s_table_of_a_13b(batch, kv, step):
    """8 TPU v5e at 8.2e11 bytes/s, 26 GB of weights, so many bytes of cache a sequence of 8,192 tokens."""
    usual = setup(asked("llama-2-13b", "tpu-v5e", layout={"tp": 8}))
    bare = {
        "block_bytes": 26e9 / 8,
        "head_bytes": 0.0,
        "full_bytes": kv / 8192 / 8,
        "bandwidth": 8.2e11,
        "reductions": 0.0,
    }
    t = Columns([type(usual)(**{**vars(usual), **bare})])
    assert float(cost.decode_s(t, IDEAL, np.array([batch]), np.array([8192.0]))[0]) == pytest.approx(step, rel=2e-3)


def test_a_batch_reads_the_experts_that_it_hits():
    """DeepSeek-V3: 8 of 256 a token, so that one token reads a 32nd of them and 64 tokens most of them."""
    t = table([asked("deepseek-v3", "hgx-h200", layout={"tp": 8})])
    dense = float(t.block_bytes[0] / (t.bandwidth[0]))
    one, many = (float(cost.matrices(t, IDEAL, np.array([n]))[0]) - dense for n in (1.0, 64.0))
    alike = float(cost.matrices(t, IDEAL | {"experts.alike": 0.8}, np.array([64.0]))[0]) - dense
    whole = float(t.expert_bytes[0] / t.bandwidth[0])
    assert one == pytest.approx(whole * 8 / 256)
    assert many == pytest.approx(whole * (1 - (1 - 8 / 256) ** 64), rel=1e-6)
    assert alike == pytest.approx(whole * (1 - (1 - 8 / 256) ** 64**0.8), rel=1e-6)  # as so many that choose apart


def test_what_the_host_does_beside_the_device_is_hidden():
    question = asked(layout={"tp": 1})
    shown, hidden = (seconds(question, 64, c=constants() | {"hidden.modern": share}) for share in (0.0, 1.0))
    c = constants()
    assert shown - hidden == pytest.approx(c["host.vllm"] + 64 * c["sequence.vllm"])
    older = asked(layout={"tp": 1}, engine_version="0.5")
    assert seconds(older, 64) == pytest.approx(shown)  # one after the other


def test_int8_weights_become_bound_by_compute_at_half_the_batch():
    """The scaling book: B_crit = peak / bandwidth with 16 bits, half of that with 8 that multiply in 16."""
    crossings = []
    for precision in ("bf16", "int8-weights"):
        t = table([asked("llama-2-13b", "tpu-v5e", precision=precision, layout={"tp": 8})])
        crossings.append(float(t.peak[0] * t.block_bytes[0] / t.block_flops[0] / t.bandwidth[0]))
    assert crossings[1] / crossings[0] == pytest.approx(0.5, rel=1e-3)


def test_a_longer_text_and_a_larger_batch_take_longer_but_less_a_token():
    question = asked("llama-3.1-70b", layout={"tp": 4})
    steps = [seconds(question, batch) for batch in (1, 8, 64, 256)]
    assert steps == sorted(steps)
    assert [s / b for s, b in zip(steps, (1, 8, 64, 256), strict=True)] == sorted(
        (s / b for s, b in zip(steps, (1, 8, 64, 256), strict=True)), reverse=True
    )
    assert seconds(question, 8, 32768.0) > seconds(question, 8, 1024.0)


def test_layers_over_devices_add_no_speed_to_one_sequence():
    """llama.cpp splits layers: a token still reads every weight, one device after the other."""
    one = seconds(asked(engine="llama.cpp", layout={"pp": 1}), 1)
    four = seconds(asked(engine="llama.cpp", layout={"pp": 4}), 1)
    assert four == pytest.approx(one, rel=0.02)
    assert seconds(asked(layout={"tp": 4}), 1) < 0.7 * one  # not a quarter: a step has costs that nobody shares


def test_more_tensor_parallel_ranks_than_heads_hold_copies():
    t = table([asked("qwen2.5-7b", layout={"tp": n}) for n in (4, 7)])  # 4 KV heads
    assert t.full_bytes[1] == t.full_bytes[0]


def test_formats_and_engines_by_their_names():
    assert format_of("AWQ").name == "int4"
    assert format_of("NVFP4").bits == 4.5
    h100, a100 = load_cluster("dgx-h100").device, load_cluster("dgx-a100-80g").device
    assert format_of("fp8").rate(h100) == (h100.peaks.fp8, "format.8")
    assert format_of("fp8").rate(a100) == (a100.peaks.bf16, "format.unpacked")  # no such hardware: unpacked
    vllm = engine_of("vLLM")
    assert vllm.on(h100) == (1024, 8192)
    assert vllm.on(a100) == (256, 2048)
    assert vllm.older("0.5.4")
    assert not vllm.older("0.11.0")
    assert not vllm.older("")
