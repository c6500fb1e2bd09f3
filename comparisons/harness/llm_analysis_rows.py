"""Measured runs through `llm-analysis` (PyPI, Apache-2.0, by Cheng Li): seconds of a step, and memory.

    pip install --no-deps llm-analysis fire termcolor

It counts the FLOPs of a dense model and divides by a share of the peak that the user gives; its documentation
says that training reaches about 0.5. Two of its answers are kept:

    iteration   latency_per_iter, what it prints as the time of a step: FLOPs alone
    forward     its forward latency (which adds norms and the exchange of tensor parallelism) x 3, or x 4 with
                full recomputation, x the micro-batches

What it has no words for is refused with a reason, never guessed: experts and latent attention (its time
leaves them out), context parallelism, TPUs, more than 8 tensor-parallel ranks, batches that don't divide. A
GPU that its own files don't list is described to it by the data sheet that this package has.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from scalewright.plan.chips import WIDTHS
from scalewright.plan.request import Request

SHARE = 0.5  # of the peak; constant.py of llm-analysis: "achieved by Megatron-LM is ~0.5 for LLM training"
WIDEST_TP = 8
OWN_GPUS = {
    "a100-sxm-80": "a100-sxm-80gb", "a100-sxm-40": "a100-sxm-40gb", "a100-pcie-80": "a100-pcie-80gb",
    "a100-pcie-40": "a100-pcie-40gb", "h100-sxm": "h100-sxm-80gb", "h100-pcie": "h100-pcie-80gb",
    "v100-sxm-32": "v100-sxm-32gb", "v100-sxm-16": "v100-sxm-16gb",
}  # fmt: skip


def refusal(request: Request) -> str | None:
    """Why the package can't express a run; None where it can."""
    model = request.model
    reasons = (
        (request.chip.kind != "gpu", "not a GPU"),
        (model.moe is not None, "experts: its time leaves them out"),
        (model.mla is not None, "latent attention"),
        (request.cp > 1, "context parallelism"),
        (request.tp > WIDEST_TP, "more than 8 tensor-parallel ranks"),
        (request.accumulation != int(request.accumulation), "the batch doesn't divide"),
        (model.num_attention_heads % model.kv_heads != 0, "heads don't divide"),
    )
    return next((why for holds, why in reasons if holds), None)


def predicted(request: Request) -> dict[str, float]:
    """Seconds of a step by its two answers, and GiB of a device. Raises AssertionError where it refuses."""
    from llm_analysis import analysis, config

    logging.getLogger("llm_analysis").setLevel(logging.CRITICAL)
    analysis.logger.setLevel(logging.CRITICAL)
    whole = request.recompute == "full"
    kinds = analysis.ActivationRecomputation
    kind = kinds.FULL if whole else kinds.SELECTIVE if request.recompute == "core" else kinds.NONE
    wide = request.tp if request.sp else 1
    layout = config.ParallelismConfig(tp_size=request.tp, pp_size=request.pp, dp_size=request.dp, sp_size=wide)
    tool = analysis.LLMAnalysis(
        _model(config, request), _gpu(config, request), _precision(config, request), layout, flops_efficiency=SHARE
    )
    found: Mapping[str, Any] = tool.training(
        batch_size_per_gpu=request.micro_batch, gradient_accumulation_steps=int(request.accumulation),
        global_batch_size=int(request.global_batch), seq_len=request.seq_len, activation_recomputation=kind,
        ds_zero=analysis.DSZeRO(request.zero_stage), flash_attn=request.attention in ("flash", "best"),
        mlp_gated_linear_units=request.model.gated,
    )  # fmt: skip
    return {
        "iteration_s": float(found["latency_per_iter"]),
        "forward_s": float(found["latency_fwd"]) * (4 if whole else 3) * request.accumulation,
        "memory_gib": float(found["(weight+op_state+grad+act)_memory_per_gpu"]) / 2**30,
    }


def _model(config: Any, request: Request) -> Any:
    m = request.model
    return config.ModelConfig(
        name=m.name, num_layers=m.num_hidden_layers, n_head=m.num_attention_heads, hidden_dim=m.hidden_size,
        vocab_size=m.vocab_size, max_seq_len=request.seq_len, num_key_value_heads=m.kv_heads,
        ffn_embed_dim=m.intermediate_size, expansion_ratio=m.intermediate_size / m.hidden_size,
    )  # fmt: skip


def _gpu(config: Any, request: Request) -> Any:
    chip, peaks = request.chip, dict(request.chip.peaks)
    if chip.name in OWN_GPUS:
        return config.get_gpu_config_by_name(OWN_GPUS[chip.name])
    return config.GPUConfig(
        name=chip.name, mem_per_GPU_in_GB=chip.capacity / 2**30,
        hbm_bandwidth_in_GB_per_sec=chip.memory_rate / 1e9,
        intra_node_bandwidth_in_GB_per_sec=chip.link_rate / 1e9,
        intra_node_min_message_latency=chip.link_delay, peak_fp16_TFLOPS=chip.peak("bf16")[1] / 1e12,
        peak_i8_TFLOPS=peaks["fp8"] / 1e12 if "fp8" in peaks else None,
        peak_i4_TFLOPS=peaks["fp4"] / 1e12 if "fp4" in peaks else None,
        inter_node_bandwidth_in_GB_per_sec=chip.fabric_rate * chip.node / 1e9,
    )  # fmt: skip


def _precision(config: Any, request: Request) -> Any:
    width = WIDTHS[request.chip.peak(request.precision)[0]]
    bits = {2: 8, 3: 4}.get(width, 16)
    return config.DtypeConfig(name=f"w{bits}a{bits}e16", weight_bits=bits, activation_bits=bits)
