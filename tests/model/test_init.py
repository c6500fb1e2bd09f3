"""First weights depend on the seed and the name only: whole, in boxes, or in stages, they are the same.

Normal numbers by index: the hash, the series, any box of a stream, and what statistics say of them.
"""

from __future__ import annotations

import math
import random
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from devices import ON_GPU
from model.tiny_specs import SPECS
from scalewright.model.decoder import Decoder
from scalewright.model.init import (
    COSINE,
    GAMMA,
    LARGEST,
    SINE,
    _minus_two_log,
    _polynomial,
    _signed,
    fill_normal,
    init_box,
    init_tensor,
    initialize,
    mix,
    root,
    tensor_seed,
)
from scalewright.spec.errors import RunError
from scalewright.spec.tensors import TensorSpec, tensors

LLAMA = SPECS["llama"]
PINNED_SEED = 1845875384748339236
PINNED_VALUES = [-0.007036127150058746, 0.011506444774568081, 0.05603582039475441]


def test_every_tensor_equals_its_own_draw_and_the_global_state_is_left_alone() -> None:
    model = Decoder(LLAMA)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    initialize(model, LLAMA, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    state = model.state_dict()
    for t in tensors(LLAMA):
        assert torch.equal(state[t.name], init_tensor(t, LLAMA, 3)), t.name


def test_seed_and_name_both_matter() -> None:
    up = next(t for t in tensors(LLAMA) if t.name == "layers.0.mlp.up.weight")
    gate = next(t for t in tensors(LLAMA) if t.name == "layers.0.mlp.gate.weight")
    assert up.shape == gate.shape
    assert not torch.equal(init_tensor(up, LLAMA, 0), init_tensor(gate, LLAMA, 0))
    assert not torch.equal(init_tensor(up, LLAMA, 0), init_tensor(up, LLAMA, 1))
    assert len({tensor_seed(seed, t.name) for seed in range(20) for t in tensors(LLAMA)}) == 20 * len(tensors(LLAMA))


def test_boxes_are_parts_of_the_whole() -> None:
    for t in tensors(LLAMA):
        whole = init_tensor(t, LLAMA, 0)
        offsets, sizes = [n // 4 for n in t.shape], [n // 2 for n in t.shape]
        box = tuple(slice(o, o + s) for o, s in zip(offsets, sizes, strict=True))
        assert torch.equal(init_box(t, LLAMA, 0, offsets, sizes), whole[box])


@pytest.mark.parametrize("name", ["llama", "tied", "gpt2", "bloom"])
def test_stages_hold_the_wholes_weights(name: str) -> None:
    spec = SPECS[name]
    whole = Decoder(spec)
    initialize(whole, spec, 0)
    state = whole.state_dict()
    state.setdefault("head.weight", state["embed.weight"])  # a tied head on a stage of its own
    for stage in (Decoder(spec, range(2), last=False), Decoder(spec, range(2, 3), first=False)):
        initialize(stage, spec, 0)
        for key, value in stage.state_dict().items():
            assert torch.equal(value, state[key]), key


def test_spread_and_constants() -> None:
    wide = TensorSpec("layers.0.mlp.up.weight", (400, 500), "column", 0)
    down = TensorSpec("layers.0.mlp.down.weight", (500, 400), "row", 0, "residual")
    error = 4 / math.sqrt(2 * 200_000)  # four standard errors of a standard deviation from 200,000 draws
    assert init_tensor(wide, LLAMA, 0).std() == pytest.approx(0.02, rel=error)
    assert init_tensor(down, LLAMA, 0).std() == pytest.approx(0.02 / math.sqrt(2 * 3), rel=error)
    assert abs(init_tensor(wide, LLAMA, 0).mean()) < 4 * 0.02 / math.sqrt(200_000)
    for t in tensors(SPECS["gemma3"]):
        value = init_tensor(t, SPECS["gemma3"], 0)
        if t.role == "norm":
            assert value.abs().max() == 0, t.name  # 1 + w
    for t in tensors(SPECS["bloom"]):
        if t.name.endswith("norm.weight"):
            assert (init_tensor(t, SPECS["bloom"], 0) == 1).all(), t.name


def test_the_values_are_pinned() -> None:
    """A change of these numbers changes every run ever seeded: it needs a sentence in the commit."""
    t = TensorSpec("embed.weight", (4, 8), "embedding", -1)
    assert tensor_seed(0, "embed.weight") == PINNED_SEED
    assert init_tensor(t, LLAMA, 0)[0, :3].tolist() == pytest.approx(PINNED_VALUES, rel=1e-6)


def test_a_parameter_that_the_spec_lacks_is_named() -> None:
    with pytest.raises(RunError, match=r"'positions\.weight' is not a tensor"):
        initialize(Decoder(SPECS["gpt2"]), LLAMA, 0)


def test_after_the_meta_device_and_in_bf16() -> None:
    with torch.device("meta"):
        model = Decoder(LLAMA)
    model.to(torch.bfloat16).to_empty(device="cpu")
    initialize(model, LLAMA, 0)
    expected = init_tensor(next(iter(tensors(LLAMA))), LLAMA, 0).to(torch.bfloat16)
    assert torch.equal(model.state_dict()["embed.weight"], expected)


COUNT = 2**20
# Of a statistic that is N(0, 1) for true normal numbers: beyond by chance once in 1.7 million tests.
FIVE_SIGMA = 5.0


def draw(shape: tuple[int, ...], key: int = 1, offsets: tuple[int, ...] = (), **keys: Any) -> Tensor:
    """A whole stream laid over a shape, or with `of`, the box of this shape at `offsets` of that one."""
    out = torch.empty(shape)
    of = keys.pop("of", shape)
    fill_normal(out, key, of, offsets or (0,) * len(shape), keys.pop("deviation", 1.0), **keys)
    return out


def hashed(key: int, pair: int) -> int:
    """The hash of a pair, in Python's own integers."""
    z = (key + (pair + 1) * GAMMA) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def test_the_hash_is_splitmix64():
    """The first numbers of the authors' generator, seeded with 1234567."""
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    counters = [_signed(1234567 + (i + 1) * GAMMA) for i in range(5)]
    assert [value % 2**64 for value in mix(torch.tensor(counters)).tolist()] == published
    assert [hashed(1234567, pair) for pair in range(5)] == published


def test_each_number_is_the_formulas():
    """Against math's functions of the same hash, in double precision: apart by fp32's rounding alone."""
    for key in (0, 1, 2**63, 2**64 - 1):
        numbers = draw((4096,), key).double().tolist()
        for index in (0, 1, 2, 777, 4094, 4095):
            z = hashed(key, index // 2)
            low = z % 2**32
            radius = math.sqrt(-2 * math.log(((z >> 33) + 0.5) / 2**31)) * (-1) ** (z >> 32 & 1)
            x = (low - 2**32 * (low >> 31)) / 2**31
            value = radius * (math.sin if index % 2 else math.cos)(math.pi / 2 * x)
            # sums of numbers up to 45, rounded a few times at 24 bits, under a root
            assert numbers[index] == pytest.approx(value, rel=2e-6, abs=2e-6)


def test_the_series_are_as_good_as_single_precision():
    x = torch.linspace(-1, 1, 100_001, dtype=torch.float64)
    single = x.float()
    square = single * single
    angle = single.double() * (math.pi / 2)
    assert (_polynomial(square, COSINE).double() - angle.cos()).abs().max() < 3e-7
    assert ((_polynomial(square, SINE) * single).double() - angle.sin()).abs().max() < 3e-7
    u = torch.cat([torch.logspace(-1, 31, 100_000, base=2.0), 2.0**31 - torch.logspace(7, 30, 1000, base=2.0)])
    u = u.clamp(0.5, 2.0**31)
    expected = -2 * (u.double() / 2**31).log()
    value = _minus_two_log(u)
    assert value.min() >= 0
    torch.testing.assert_close(value.double(), expected, rtol=4e-7, atol=0)
    assert _minus_two_log(torch.tensor([2.0**31])).item() == 0


def test_roots_are_rounded_as_ieee_has_it():
    """On which the same bits on every device rest. numpy's root of fp32 is the processor's own."""
    values = torch.rand(300_001, generator=torch.Generator().manual_seed(0)) * 45
    values = torch.cat([values, torch.arange(100_000).float() ** 2 + 1])
    assert torch.equal(root(values), torch.from_numpy(np.sqrt(values.numpy())))


@pytest.mark.parametrize("dims", [1, 2, 3, 4])
def test_any_box_in_any_chunks_is_a_part_of_the_whole(dims):
    """Bit by bit, rows of odd lengths and boxes of one element included."""
    choose = random.Random(dims)
    for _ in range(40):
        shape = tuple(choose.randint(1, 40 // dims) for _ in range(dims))
        whole = draw(shape, key=dims)
        offsets = tuple(choose.randrange(n) for n in shape)
        sizes = tuple(choose.randint(1, n - o) for n, o in zip(shape, offsets, strict=True))
        part = draw(sizes, dims, offsets, of=shape, chunk=choose.choice([1, 2, 3, 7, 64, 10**6]))
        box = tuple(slice(o, o + s) for o, s in zip(offsets, sizes, strict=True))
        assert torch.equal(part, whole[box]), (shape, offsets, sizes)


def test_boxes_of_a_large_tensor_at_their_real_chunks():
    """Rows longer than a chunk, columns of odd rows, and the last elements beyond 2^32."""
    shape = (3, 100_001)
    whole = draw(shape)
    assert torch.equal(draw((2, 70_000), 1, (1, 30_001), of=shape), whole[1:, 30_001:100_001])
    assert torch.equal(draw((3, 5), 1, (0, 99_996), of=shape), whole[:, 99_996:])
    assert torch.equal(whole.flatten(), draw((300_003,)))
    huge = (2**20, 2**14)
    corner = draw((2, 3), 1, (2**20 - 2, 2**14 - 3), of=huge)
    last = draw((3,), 1, (2**34 - 3,), of=(2**34,))
    assert torch.equal(corner[1], last)


def test_an_empty_box_and_other_types():
    assert draw((0, 5), of=(3, 5)).shape == (0, 5)
    half = torch.empty(1000, dtype=torch.bfloat16)
    fill_normal(half, 1, (1000,), (0,), 0.02)
    assert torch.equal(half, draw((1000,), deviation=0.02).bfloat16())


class Largest(TorchDispatchMode):
    """The most elements of any result with a storage of its own."""

    def __init__(self, out: Tensor) -> None:
        super().__init__()
        self.out, self.numel = out.untyped_storage().data_ptr(), 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.untyped_storage().data_ptr() != self.out:
            self.numel = max(self.numel, result.numel())
        return result


@pytest.mark.parametrize(("sizes", "offsets"), [((64, 4096), (10, 0)), ((4096, 64), (0, 10))])
def test_a_box_takes_chunks_beside_itself(sizes, offsets):
    """Of 262,144 numbers 2,048 at a time, a pair more a row, and where each row begins; never the whole."""
    out = torch.empty(sizes)
    with Largest(out) as largest:
        fill_normal(out, 1, (4096, 4096), offsets, 1.0, chunk=2048)
    assert largest.numel <= max(2048 + 2 * 2048 // 64, sizes[0])


def test_mean_deviation_and_tails():
    """Each statistic's standard error for N(0, 1) is beside it; their bounds are five of them."""
    x = draw((COUNT,)).double()
    root = math.sqrt(COUNT)
    assert abs(x.mean()) < FIVE_SIGMA / root
    assert abs(x.square().mean() - 1) < FIVE_SIGMA * math.sqrt(2) / root
    assert abs(x.pow(3).mean()) < FIVE_SIGMA * math.sqrt(15) / root
    assert abs(x.pow(4).mean() - 3) < FIVE_SIGMA * math.sqrt(96) / root
    for bound in (0.01, 0.5, 1, 2, 3, 4):
        share = math.erfc(bound / math.sqrt(2))
        beyond = (x.abs() > bound).double().mean().item()
        assert abs(beyond - share) < FIVE_SIGMA * math.sqrt(share * (1 - share)) / root, bound
    assert 4 < x.abs().max() < LARGEST


def test_the_distribution_is_the_normal_one():
    """Kolmogorov and Smirnov: sqrt(n) D is above 2.2 by chance once in 8,000 (2 exp(-2 * 2.2^2))."""
    x = draw((COUNT,), key=7).double().sort().values
    expected = 0.5 * torch.erfc(-x / math.sqrt(2))
    steps = torch.arange(COUNT + 1, dtype=torch.float64) / COUNT
    distance = max((expected - steps[:-1]).max().item(), (steps[1:] - expected).max().item())
    assert math.sqrt(COUNT) * distance < 2.2


@pytest.mark.parametrize("lag", [1, 2, 3, 64, 4096])
def test_numbers_of_a_stream_are_independent(lag):
    """Neither they nor their squares are correlated: of a pair, of neighbours, of one column's rows."""
    x = draw((COUNT,), key=3).double()
    for values in (x, (x.square() - 1) / math.sqrt(2), x.sign()):
        correlation = (values[:-lag] * values[lag:]).mean()
        assert abs(correlation) < FIVE_SIGMA / math.sqrt(COUNT - lag)


def test_tensors_and_seeds_are_independent_of_each_other():
    """All pairs of 10 tensors and of 10 seeds."""
    count = 2**15
    names = [f"layers.{layer}.mlp.{part}.weight" for layer in range(5) for part in ("up", "down")]
    keys = [tensor_seed(0, name) for name in names] + [tensor_seed(seed, names[0]) for seed in range(1, 11)]
    rows = torch.stack([draw((count,), key) for key in keys]).double()
    products = rows @ rows.T / count
    for a, b in combinations(range(len(keys)), 2):
        assert abs(products[a, b]) < FIVE_SIGMA / math.sqrt(count), (a, b)


def test_stacked_experts_are_one_stream():
    """An expert alone, some of its rows, and some of its columns."""
    stack = TensorSpec("layers.0.mlp.experts.up.weight", (6, 10, 14), "expert_column", 0)
    whole = init_box(stack, SPECS["llama"], 0, (0, 0, 0), (6, 10, 14))
    for offsets, sizes in (((2, 0, 0), (1, 10, 14)), ((2, 5, 0), (4, 5, 14)), ((0, 0, 7), (6, 10, 7))):
        box = tuple(slice(o, o + s) for o, s in zip(offsets, sizes, strict=True))
        assert torch.equal(init_box(stack, SPECS["llama"], 0, offsets, sizes), whole[box])
    assert len({tuple(expert.flatten().tolist()) for expert in whole}) == 6


@pytest.mark.parametrize("device", ON_GPU)
def test_a_gpu_draws_the_cpus_bits(device):
    out = torch.empty(1000, 777, device=device)
    fill_normal(out, 5, (2000, 1555), (3, 111), 0.02)
    assert torch.equal(out.cpu(), draw((1000, 777), 5, (3, 111), of=(2000, 1555), deviation=0.02))
