"""The example log that comes with the package: made up by `write_example`, and diagnosed as planted.

python -c "from tests.diagnose.logs.test_example import *; EXAMPLE_LOG.write_bytes(pack(write_example()))"
"""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest

from scalewright.api import diagnose
from scalewright.diagnose.diagnose import EXAMPLE_LOG

TOKEN_FLOPS = 449_226_473_472  # of Llama 3.1 70B at 8,192 tokens, forward and backward
DEVICES, BATCH, SEQ_LEN, TFLOPS, SAVE_EVERY = 128, 128, 8192, 296.0, 10
ARGUMENTS = {
    "bf16": True, "context_parallel_size": 1, "data_parallel_size": 4, "expert_model_parallel_size": 1,
    "ffn_hidden_size": 28672, "global_batch_size": BATCH, "group_query_attention": True, "hidden_size": 8192,
    "kv_channels": 128, "micro_batch_size": 1, "num_attention_heads": 64, "num_experts": None,
    "num_layers": 80, "num_query_groups": 8, "padded_vocab_size": 128256,
    "pipeline_model_parallel_size": 4, "recompute_granularity": None, "save_interval": SAVE_EVERY,
    "seq_length": SEQ_LEN, "sequence_parallel": True, "swiglu": True,
    "tensor_model_parallel_size": 8, "untie_embeddings_and_output_weights": True,
    "use_distributed_optimizer": True, "virtual_pipeline_model_parallel_size": 5, "world_size": DEVICES,
}  # fmt: skip


def write_example() -> str:
    """A log of Megatron-LM: Llama 3.1 70B on 128 H100 at 296 TFLOP/s; a save of 38 s every 10 steps."""
    source = random.Random(8)
    usual = TOKEN_FLOPS * BATCH * SEQ_LEN / (TFLOPS * 1e12 * DEVICES)
    lines = [
        "using world size: 128, data-parallel size: 4, context-parallel size: 1, tensor-model-parallel "
        "size: 8, "
        "pipeline-model-parallel size: 4",
        "using torch.bfloat16 for parameters ...",
        "------------------------ arguments ------------------------",
        *(f"  {name} {'.' * (48 - len(name))} {value}" for name, value in ARGUMENTS.items()),
        "-------------------- end of arguments ---------------------",
    ]
    clock = 4 * 3600 + 11.2
    for step in range(1, 61):
        seconds = usual * source.gauss(1, 0.004) * (4 if step == 1 else 1)
        clock += seconds
        lines.append(_line(step, seconds, clock, 9 * 0.97**step + 2.9 + source.gauss(0, 0.03), usual))
        if step % SAVE_EVERY == 0:
            lines.append(f"saving checkpoint at iteration {step:7d} to checkpoints/llama in torch_dist format")
            clock += 38 + source.gauss(0, 2)
    return "\n".join(lines) + "\n"


def _line(step: int, seconds: float, clock: float, loss: float, usual: float) -> str:
    hour, minute, second = int(clock // 3600), int(clock // 60 % 60), clock % 60
    return (
        f" [2026-10-02 {hour:02}:{minute:02}:{second:09.6f}] iteration {step:8d}/  100000 | consumed "
        f"samples: "
        f"{step * BATCH:12d} | elapsed time per iteration (ms): {seconds * 1000:.1f} | throughput per GPU "
        f"(TFLOP/s/GPU): {TFLOPS * usual / seconds:.1f} | learning rate: {step * 1.5e-7:.6E} | global "
        f"batch size: "
        f"{BATCH:5d} | lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: {1.2 - step / 500:.3f} | number of "
        "skipped iterations:   0 | number of nan iterations:   0 |"
    )


def pack(text: str) -> bytes:
    return gzip.compress(text.encode(), mtime=0)


def test_it_is_what_the_function_writes() -> None:
    assert gzip.decompress(EXAMPLE_LOG.read_bytes()).decode() == write_example()


def test_it_is_diagnosed_as_planted() -> None:
    answer = diagnose(Path("example-log"), cluster="dgx-h100")
    assert answer["log"]["measured"]["tflops"] == pytest.approx(TFLOPS, rel=0.01)
    assert (len(answer["log"]["steps"]), answer["log"]["restarts"]) == (60, 0)
    assert answer["expected"]["verdict"].startswith("slow: ")
    assert [verdict["cause"] for verdict in answer["verdicts"]] == ["slower than expected", "periodic slow steps"]
