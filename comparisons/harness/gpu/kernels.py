"""Which kernels ran, by the profiler, and which attention backend they belong to.

A backend that was asked for is not always the one that ran; the kernel's name is the evidence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

# (what its kernels are called by, the backend); the first that fits wins.
ATTENTION = (
    (("cudnn", "sdpa"), "cuDNN"),
    (("cudnn", "flash"), "cuDNN"),
    (("cudnn", "mha"), "cuDNN"),
    (("flash_fwd",), "FlashAttention"),
    (("flash_bwd",), "FlashAttention"),
    (("pytorch_flash",), "FlashAttention"),
    (("fmha_cutlass",), "memory-efficient (CUTLASS)"),
    (("flash_attention_for_cpu",), "flash (CPU)"),
    (("attention_math",), "math"),
)
KINDS = (
    ("attention", ("flash", "fmha", "sdpa", "attention")),
    ("matmul", ("gemm", "nvjet", "cutlass", "xmma", "mm", "matmul")),
    ("compiled element-wise", ("triton",)),
    ("optimizer, norm, copies of lists", ("multi_tensor", "fused_adam", "foreach")),
    ("loss", ("softmax", "nll_loss", "cross_entropy")),
)


def kernels_of(run: Callable[[], object], device: torch.device) -> dict[str, float]:
    """Seconds of every kernel (on a CPU: operator) that `run` launches, the dearest first."""
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
        torch.cuda.synchronize(device)
    with profile(activities=activities) as profiler:
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    found: dict[str, float] = defaultdict(float)
    for event in profiler.events() or []:
        if device.type != "cuda":
            found[event.name] += event.self_cpu_time_total / 1e6
        elif event.device_type.name == "CUDA" and not is_annotation(event):
            found[event.name] += event.self_device_time_total / 1e6
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def is_annotation(event: Any) -> bool:
    """Whether it is a range around kernels (an optimizer's step, a compiled region): they'd count twice."""
    marked = bool(getattr(event, "is_user_annotation", False))
    return marked or event.name.startswith(("Optimizer.", "Torch-Compiled Region", "## ", "ProfilerStep"))


def attention_backends(names: Iterable[str]) -> list[str]:
    """The attention backends that kernels of these names belong to; empty when none is known."""
    found = []
    for name in names:
        lower = name.lower()
        for words, backend in ATTENTION:
            if all(word in lower for word in words):
                if backend not in found:
                    found.append(backend)
                break
    return found


def attention_kernels(names: Iterable[str]) -> list[str]:
    """The names themselves, shortened."""
    return [name[:160] for name in names if attention_backends([name])]


def shares(kernels: dict[str, float]) -> dict[str, Any]:
    """How the time is shared among kinds of kernels, and the dozen dearest by name."""
    total = sum(kernels.values()) or 1.0
    kinds: dict[str, float] = defaultdict(float)
    for name, seconds in kernels.items():
        kinds[kind_of(name)] += seconds / total
    dearest = {name[:160]: round(seconds / total, 4) for name, seconds in list(kernels.items())[:12]}
    return {"kinds": {k: round(v, 4) for k, v in kinds.items()}, "dearest": dearest, "device_s": total}


def kind_of(name: str) -> str:
    """Which kind of work a kernel does, by its name."""
    lower = name.lower()
    if lower.startswith("triton_"):
        return "compiled element-wise"
    for kind, words in KINDS:
        if any(word in lower for word in words):
            return kind
    return "other"
