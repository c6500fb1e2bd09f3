"""What a kernel does, by its name: communication, matrix products, attention, ...; a table of patterns.

    name ──► the first row of KINDS with a pattern in it ──► kind        nothing matches: "other"

Communication is more than NCCL: RCCL, MSCCL and oneCCL carry other names; DeepEP's and NVSHMEM's kernels move
tokens of experts; symmetric memory and custom all-reduces (vLLM, TensorRT-LLM) run in kernels of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

COMMUNICATION = "communication"
KINDS: tuple[tuple[str, str], ...] = (
    (COMMUNICATION,
     r"nccl|rccl|msccl|oneccl|ccl_?kernel|nvshmem|(?:deep_?ep|dpsk::ep)::|ep::(?:inter|intra)node|multimem_|cross_device_reduce|all_?reduce_?kernel"
     r"|one_shot_all_?reduce|two_shot_all_?reduce|symm_mem|lamport|allgather_(?:kernel|bf16|push)"
     r"|reducescatter_kernel|alltoall_?kernel"),
    ("attention", r"flash|fmha|attention|attn|softmax_warp|sdpa"),
    ("matrix product",
     r"gemm|cutlass|xmma|cublas|wgrad|dgrad|cijk_|matmul|hgmma|nvjet|convolve|conv\d?d|winograd|implicit"),
    ("normalisation", r"norm|welford|bn_fw|bn_bw"),
    ("optimizer", r"adam|multi_tensor|lamb|sgd|foreach"),
    ("loss", r"cross_entropy|log_softmax|nll_loss"),
    ("embedding", r"embedding|indexselect|index_select"),
    ("reduction", r"reduce"),
    ("elementwise", r"elementwise|vectorized|triton_poi|copy|fill|gelu|silu|dropout|cat_?array|unrolled"),
)  # fmt: skip
OTHER = "other"
_PATTERNS = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in KINDS)


def kind_of(name: str) -> str:
    """The kind of a kernel."""
    return next((kind for kind, pattern in _PATTERNS if pattern.search(name)), OTHER)


def kinds_of(names: Iterable[str]) -> np.ndarray:
    """The kind of each name; objects, one a name."""
    return np.array([kind_of(name) for name in names], dtype=object)


def communicates(names: Iterable[str]) -> np.ndarray:
    """Whether each name is a communication kernel's; bool, one a name."""
    return np.asarray(kinds_of(names) == COMMUNICATION, dtype=bool)
