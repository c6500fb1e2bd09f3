"""First values of the weights: each a pure function of (seed, canonical name, the element's index).

    seed, "layers.3.mlp.up.weight" --blake2b--> key of 64 bits --fill_normal--> number i of its stream, fp32

So the weights are equal, bit for bit, on every layout and device, and a rank makes its own box alone.

    normal     N(0, 0.02)                  GPT-1 (Radford et al. 2018 §4.1), GPT-2, Megatron-LM
    residual   N(0, 0.02 / sqrt(2 L))      outputs into the residual stream, 2 L of them (GPT-2 §2.3)
    ones, zeros                            norms and biases

The values are fp32 whatever the model's dtype; only the copy into place converts. A stack of experts
[E, ., .] is one tensor: an element's index is that of the whole stack. Number i of the stream of a key:

    pair     p = i // 2
    hash     z = mix(key + (p + 1) * GAMMA)           SplitMix64 (Steele, Lea & Flood 2014, OOPSLA, figure 16)
    cut      z = [31 bits k | 1 bit s | 32 bits a]    from the highest bit down; a is signed
    radius   r = sqrt(-2 ln u),  u = (k + 1/2) / 2^31
    angle    pi/2 x,  x = a / 2^31 in [-1, 1]         a half turn; the other half, r < 0, where s is set
    number   r cos(pi/2 x) for an even i, r sin(pi/2 x) for an odd one       (Box & Muller 1958)

Logarithm, cosine and sine are series of single-precision additions, multiplications and one division, each rounded as
IEEE 754 has it: a library's functions differ in their last bit by processor, and on one processor by a number's place
in its vector. No number is beyond sqrt(64 ln 2) = 6.66. Streams of different keys are parts of one sequence of 2^64
hashes: of 1,000 tensors with 10^9 numbers each, two overlap with a probability of 1,000^2 * 10^9 / 2^65 = 3e-5.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from scalewright.spec.errors import RunError
from scalewright.spec.model import ModelSpec
from scalewright.spec.tensors import TensorSpec, tensors

STANDARD_DEVIATION = 0.02
Device = str | torch.device
DRAWN_ON = ("cpu", "cuda")  # kinds of devices with integers of 64 bits; the others' numbers come from the CPU


class _Undrawn(TorchFunctionMode):
    """Leaves out what torch's own modules draw as they are made."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"]
        return func(*args, **(kwargs or {}))


@contextmanager
def on_meta() -> Iterator[None]:
    """Modules made within it have shapes and no values. As `torch.device("meta")`, on which a normal draw imports
    torch's compiler: 2 CPU seconds at the start of a run that compiles nothing."""
    with torch.device("meta"), _Undrawn():
        yield


def to_empty(module: nn.Module, device: Device) -> None:
    """As `module.to_empty(device=...)`, of a module made `on_meta`: torch's own imports sympy to lay a tensor out."""

    def empty(tensor: Tensor) -> Tensor:
        if hasattr(tensor, "to_local"):  # a DTensor, and FSDP has imported that already
            return torch.empty_like(tensor, device=device)
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=device)

    module._apply(empty)  # type: ignore[no-untyped-call]


def tensor_seed(seed: int, name: str) -> int:
    """The 64-bit key of one tensor's stream."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest(), "little")


def init_tensor(t: TensorSpec, model: ModelSpec, seed: int, device: Device = "cpu") -> Tensor:
    """The first values of one tensor, whole: fp32, of shape `t.shape`."""
    return init_box(t, model, seed, [0] * len(t.shape), t.shape, device)


def init_box(
    t: TensorSpec, model: ModelSpec, seed: int, offsets: Sequence[int], sizes: Sequence[int], device: Device = "cpu"
) -> Tensor:
    """One box of the same values, fp32, of shape `sizes`: nothing outside of it is drawn."""
    wanted = torch.device(device)
    out = torch.empty(tuple(sizes), dtype=torch.float32, device=wanted if wanted.type in DRAWN_ON else "cpu")
    _set_values(out, t, model, seed, offsets)
    return out.to(wanted)


def named_tensors(model: ModelSpec) -> dict[str, TensorSpec]:
    """The tensor that each parameter name stands for; a tied head's name stands for the embedding."""
    specs = tensors(model, mtp=True)
    return {t.name: t for t in specs} | {t.tied_to: t for t in specs if t.tied_to is not None}


@torch.no_grad()
def initialize(module: nn.Module, model: ModelSpec, seed: int) -> None:
    """Fills a decoder (or a cut of one) in place, tensor by tensor; parameters are whole, plain tensors.

    On the meta device, call `to_empty` first. Raises RunError for a parameter that the spec lacks.
    """
    by_name = named_tensors(model)
    for name, parameter in module.named_parameters():
        if name not in by_name:
            raise RunError(f"parameter '{name}' is not a tensor of model '{model.name}'")
        t = by_name[name]
        if parameter.shape != t.shape:
            raise RunError(f"parameter '{name}' is {tuple(parameter.shape)} here, and {t.shape} in the model")
        if parameter.device.type in DRAWN_ON and parameter.is_contiguous():
            _set_values(parameter, t, model, seed, [0] * len(t.shape))
        else:
            parameter.copy_(init_tensor(t, model, seed))


def _set_values(out: Tensor, t: TensorSpec, model: ModelSpec, seed: int, offsets: Sequence[int]) -> None:
    """Sets `out` to the box of a tensor that begins at `offsets`, in place."""
    if t.init in ("zeros", "ones"):
        out.fill_(float(t.init == "ones"))
        return
    outputs = 2 * model.num_hidden_layers if t.init == "residual" else 1
    fill_normal(out, tensor_seed(seed, t.name), t.shape, offsets, STANDARD_DEVIATION / outputs**0.5)


GAMMA = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, odd
MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))  # (shift right and xor, multiply by)
ROOT_HALF = 0x3F3504F3  # the bits of sqrt(1/2) in fp32
LARGEST = math.sqrt(64 * math.log(2))

CHUNK = {"cpu": 2**16}  # numbers that are drawn at once: what a core's cache holds
CHUNK_ELSEWHERE = 2**23  # enough to keep a GPU busy


def _series(first: float, step: float, terms: int, start: int) -> tuple[float, ...]:
    """first * step^k / (start (start + 1) ... (start + 2k - 1)): coefficients of cosine (1) and sine (2)."""
    coefficients, value = [], first
    for k in range(terms):
        coefficients.append(value)
        value *= step / ((start + 2 * k) * (start + 2 * k + 1))
    return tuple(coefficients)


# In the square of x in [-1, 1]: what is left out is below 1e-8, a tenth of fp32's last bit at 1.
COSINE = _series(1.0, -((math.pi / 2) ** 2), 7, start=1)
SINE = _series(math.pi / 2, -((math.pi / 2) ** 2), 7, start=2)
# -2 ln m = -4 artanh s, s = (m - 1) / (m + 1); |s| is at most 0.172 for m in [sqrt(1/2), sqrt(2)]
ARTANH = tuple(-4.0 / (2 * k + 1) for k in range(5))


def mix(z: Tensor) -> Tensor:
    """SplitMix64's hash of int64 counters, in place: a bijection of their 64 bits."""
    shifted = torch.empty_like(z)
    for shift, factor in MIX:
        torch.bitwise_right_shift(z, shift, out=shifted)
        shifted.bitwise_and_((1 << (64 - shift)) - 1)  # the shift of a signed number repeats its sign
        z.bitwise_xor_(shifted)
        if factor != 1:
            z.mul_(_signed(factor))
    return z


def fill_normal(
    out: Tensor, key: int, shape: Sequence[int], offsets: Sequence[int], deviation: float, *, chunk: int = 0
) -> None:
    """Sets `out` to a box of the stream `key` laid over a tensor of `shape` in row-major order, in place.

    `out` is contiguous, of any floating dtype, on a CPU or a CUDA device; its shape is the box's sizes, and
    `offsets` is where the box begins. The numbers are N(0, deviation^2), rounded to fp32 first. `chunk`:
    numbers at once (0: by device); the values don't depend on it.
    """
    if not out.numel():
        return
    starts, length = _runs(shape, offsets, out.shape)
    rows = out.view(len(starts), length)
    chunk = chunk or CHUNK.get(out.device.type, CHUNK_ELSEWHERE)
    width = min(length, chunk)
    steps = torch.arange(width // 2 + 1, device=out.device).mul_(_signed(GAMMA))
    for column in range(0, length, width):
        columns = min(width, length - column)
        height = max(1, chunk // columns)
        for row in range(0, len(starts), height):
            block = slice(row, row + height)
            numbers = _normals(key, starts[block] + column, columns, steps, deviation)
            rows[block, column : column + columns].copy_(numbers)


def _runs(shape: Sequence[int], offsets: Sequence[int], sizes: Sequence[int]) -> tuple[Tensor, int]:
    """The first index of every run of a box that is consecutive in the whole, and the length of each."""
    inner = len(shape) - 1  # the last dim that is cut, and all after it
    while inner > 0 and sizes[inner] == shape[inner]:
        inner -= 1
    strides = [prod(shape[dim + 1 :]) for dim in range(len(shape))]
    starts = torch.tensor([sum(o * stride for o, stride in zip(offsets, strides, strict=True))])
    for dim in range(inner):
        starts = (starts[:, None] + torch.arange(sizes[dim]) * strides[dim]).flatten()
    return starts, prod(sizes[max(inner, 0) :])


def _normals(key: int, starts: Tensor, length: int, steps: Tensor, deviation: float) -> Tensor:
    """`length` numbers from each of `starts` on, fp32 [starts, length]; `steps`: multiples of GAMMA."""
    pairs = length // 2 + 1  # one more than needed where a run begins and ends with a pair
    first = (starts >> 1).mul_(_signed(GAMMA)).add_(_signed(key + GAMMA))
    z = mix(first[:, None].to(steps.device) + steps[:pairs])
    both = _box_muller(z, deviation).view(len(starts), 2 * pairs)
    odd = (starts & 1).bool()
    if not odd.any():
        return both[:, :length]
    if odd.all():
        return both[:, 1 : length + 1]
    return torch.where(odd[:, None].to(both.device), both[:, 1 : length + 1], both[:, :length])


def _box_muller(z: Tensor, deviation: float) -> Tensor:
    """Two normal numbers from each of the hashes z [...]: fp32 [..., 2]."""
    words = z.view(torch.int32).view(*z.shape, 2)  # the lower word first, as on every device of torch's
    high = words[..., 1].contiguous()
    x = words[..., 0].to(torch.float32).mul_(2.0**-31)
    u = (high >> 1).bitwise_and_(2**31 - 1).to(torch.float32).add_(0.5)
    radius = root(_minus_two_log(u)).mul_(deviation)
    radius.view(torch.int32).bitwise_xor_(high.bitwise_left_shift_(31))
    square = x * x
    out = torch.empty(*z.shape, 2, dtype=torch.float32, device=z.device)
    torch.mul(_polynomial(square, COSINE), radius, out=out[..., 0])
    torch.mul(_polynomial(square, SINE).mul_(x), radius, out=out[..., 1])
    return out


def root(x: Tensor) -> Tensor:
    """The square root of fp32 numbers, rounded as IEEE 754 has it: a library's of fp32 isn't everywhere.

    By way of fp64, of any library: no root of a number of 24 bits is nearer than 2^-50 of itself to a number
    halfway between two of 24 bits, and fp64's error of a unit in the last place is 2^-52.
    """
    return x.double().sqrt_().float()


def _minus_two_log(u: Tensor) -> Tensor:
    """-2 ln(u / 2^31) of u in [1/2, 2^31], fp32: never negative."""
    bits = u.view(torch.int32)
    exponent = (bits - ROOT_HALF) >> 23  # u = m 2^exponent, m in [sqrt(1/2), sqrt(2))
    m = (bits - (exponent << 23)).view(torch.float32)
    s = (m - 1.0).div_(m + 1.0)
    whole = (31 - exponent).to(torch.float32).mul_(2 * math.log(2))
    return _polynomial(s * s, ARTANH).mul_(s).add_(whole)


def _polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """c0 + c1 x + c2 x^2 + ..., by Horner's rule, rounded after every operation."""
    *rest, last = coefficients
    total = x * last
    for coefficient in reversed(rest[1:]):
        total.add_(coefficient).mul_(x)
    return total.add_(rest[0])


def _signed(value: int) -> int:
    """A number of 64 bits as an int64 holds it."""
    return (value + 2**63) % 2**64 - 2**63
