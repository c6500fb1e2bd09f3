"""One device's rates, matrix products and passes over memory, and a step's operators beside these roofs.

    product   (rows, k) x (k, n)       2 rows k n FLOPs
    copy      b = a                    2 passes over memory
    triad     a = b + s c              3 passes

    achieved FLOP/s of linear and attention           / FLOP/s of the largest product of this benchmark
    achieved bytes/s of norms, activations, the loss  / bytes/s of a triad beyond the caches

Passes are counted as STREAM does (McCalpin 1995): a cache's own fetch of what is written is left out. Sizes of memory
grow from inside the caches to beyond them; the last is the memory's own rate. Operators are timed as `machine.kernels`
times them for the planner, at their largest size, on a CPU. A share above 1 of a roof of memory means that the cache
took part. An embedding's backward and sums of gradients are left to the planner's own curves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from scalewright.machine.kernels import torch_timings
from scalewright.machine.probe import TORCH_TYPES, Rate, load_torch, matmul_rate, synchronize, time_runs
from scalewright.spec.errors import UserError, install
from scalewright.spec.model import ModelSpec
from scalewright.spec.tensors import tensors

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
PASSES = {"copy": 2, "triad": 3}
MEMORY_BYTES = tuple(1 << power for power in range(16, 29, 2))  # of one array
Shape = tuple[int, int, int]  # rows, k, n
COMPUTE = ("linear", "attention", "attention_narrow")
MOVED = ("norm", "layer_norm", "gated", "activation", "rope", "residual", "loss")
LARGE = 1 << 26  # bytes of an array beyond the caches


def need_torch() -> Any:
    """torch, or a UserError with the way to install it."""
    torch = load_torch()
    if torch is None:
        raise UserError("a benchmark needs torch, which isn't installed", "bench", install("train"))
    return torch


def model_shapes(model: ModelSpec, tokens: int) -> dict[str, Shape]:
    """The products of a model's first block and of its head, by the tensor's name; equal shapes once."""
    names: dict[Shape, str] = {}
    for tensor in tensors(model):
        if tensor.layer <= 0 and len(tensor.shape) == 2:
            names.setdefault((tokens, tensor.shape[1], tensor.shape[0]), tensor.name)
    return {name: shape for shape, name in names.items()}


def products(
    shapes: dict[str, Shape], device: str = "cpu", precisions: Sequence[str] = PRECISIONS, seconds: float = 0.2
) -> Iterator[dict[str, object]]:
    """A row for each shape and precision that the device can multiply; about `seconds` each."""
    torch = need_torch()
    for name, (rows, k, n) in shapes.items():
        for precision in precisions:
            if precision == "tf32":  # a setting of fp32 on CUDA, which `squares` times
                continue
            run = _product(torch, rows, k, n, precision, device)
            if run is not None:
                how = f"{rows} x {k} x {n}"
                rate = Rate.of(f"matmul {precision}", 2.0 * rows * k * n, time_runs(run, seconds), how)
                yield {"what": name, "precision": precision, **_figures(rate, "flops"), "shape": [rows, k, n]}


def squares(
    device: str = "cpu", precisions: Sequence[str] = PRECISIONS, seconds: float = 0.3
) -> Iterator[dict[str, Any]]:
    """A row for each precision: the rate of a square product, large enough to time."""
    need_torch()
    for precision in precisions:
        rate = matmul_rate(precision, device, seconds)
        if rate is not None:
            yield {"what": "square", "precision": precision, **_figures(rate, "flops"), "how": rate.how}


def _product(torch: Any, rows: int, k: int, n: int, precision: str, device: str) -> Callable[[], None] | None:
    """One product on random numbers; None where the device has none in this precision."""
    generator = torch.Generator(device=device).manual_seed(0)
    dtype = getattr(torch, TORCH_TYPES[precision])
    left, right = (torch.randn(*shape, device=device, generator=generator).to(dtype) for shape in ((rows, k), (k, n)))

    run = partial(_finished, torch, partial(torch.mm, left, right), device)
    try:
        run()
    except (RuntimeError, NotImplementedError):
        return None
    return run


def _finished(torch: Any, operation: Callable[[], object], device: str) -> None:
    operation()
    synchronize(torch, device)


def memory(device: str = "cpu", sizes: Sequence[int] = MEMORY_BYTES, seconds: float = 0.1) -> Iterator[dict[str, Any]]:
    """A row for each pattern and size of one array, in bytes; about `seconds` each."""
    torch = need_torch()
    for size in sizes:
        first, second, target = (torch.full((size // 4,), value, device=device) for value in (1.0, 2.0, 0.0))

        triad = partial(torch.add, first, second, alpha=3.0, out=target)
        for what, operation in (("copy", partial(target.copy_, first)), ("triad", triad)):
            run = partial(_finished, torch, operation, device)
            run()
            rate = Rate.of(what, float(PASSES[what] * size), time_runs(run, seconds, most=1000), "")
            yield {"what": what, "bytes": size, **_figures(rate, "bytes")}


def _figures(rate: Rate, unit: str) -> dict[str, float]:
    return {f"{unit}_per_s": rate.median_per_s, f"best_{unit}_per_s": rate.per_s, "runs": rate.runs}


def roofs(precision: str) -> dict[str, float]:
    """FLOP/s of a large product, and bytes/s of a triad beyond the caches."""
    product, (_, triad) = next(squares("cpu", (precision,))), memory("cpu", (LARGE,))
    return {"flops_per_s": product["best_flops_per_s"], "bytes_per_s": triad["best_bytes_per_s"]}


def kernels(precision: str = "fp32", seconds: float = 0.05) -> Iterator[dict[str, object]]:
    """A row for each operator's forward at its largest size, with its share of the roof it is under."""
    torch, roof = need_torch(), roofs(precision)
    for curve in torch_timings(torch, precision, seconds):
        what, size, time = curve["what"], curve["sizes"][-1], curve["seconds"][-1]
        unit = "flops" if what in COMPUTE else "bytes" if what in MOVED else None
        if unit is not None and curve["phase"] == "forward":
            rates = {f"{unit}_per_s": size / time, "bound": unit, "share_of_roof": size / time / roof[f"{unit}_per_s"]}
            yield {"what": what, "precision": precision, "size": size, "time_s": time, **rates}
