"""Packed rows, windows, caps, ALiBi and sinks against a loop over documents: numbers, leaks, and memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from devices import DEVICES
from model.packed_rows import CASES, LENGTH, Case, Rows, by_documents, keywords, make, random_lengths, with_gradients
from scalewright.model import attend as attend_module
from scalewright.model import attention, gpu_rows
from scalewright.model.attend import Part, Scores, attend, attend_backward
from scalewright.model.context import Rule
from scalewright.model.gpu_rows import Segments
from scalewright.model.rows import _part, attend_rows
from scalewright.model.visible import first_keys

# The same sums in another order; of fp32 a few roundings (6e-8 each) of numbers of order 1, over 300 keys.
# bf16 rounds inputs, weights and outputs to 2^-9 each.
NEAR = {torch.float64: 1e-11, torch.float32: 1e-5, torch.bfloat16: 3e-2}


def ours(rows: Rows) -> Tensor:
    return attend_rows(rows.q, rows.k, rows.v, rows.first, rows.scores, **keywords(rows))


def away(actual: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest number or 1: a window of one has no gradient of q."""
    return float((actual.double() - expected).abs().max() / expected.abs().max().clamp(min=1.0))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", CASES)
def test_it_is_a_loop_over_documents(name: str, dtype: torch.dtype, device: str) -> None:
    """The output and every gradient."""
    expected = with_gradients(by_documents(CASES[name], rows := make(CASES[name])), rows)
    there = make(CASES[name], dtype, device)
    for actual, wanted in zip(with_gradients(ours(there), there), expected, strict=True):
        assert actual.dtype == dtype
        assert away(actual.cpu(), wanted) < NEAR[dtype]


@pytest.mark.parametrize("name", ["documents", "documents, cap, window", "documents, alibi", "documents, sinks"])
def test_bf16_is_near(name: str) -> None:
    expected = with_gradients(by_documents(CASES[name], rows := make(CASES[name])), rows)
    half = make(CASES[name], torch.bfloat16)
    for actual, wanted in zip(with_gradients(ours(half), half), expected, strict=True):
        assert away(actual, wanted) < NEAR[torch.bfloat16]


@pytest.mark.parametrize("seed", range(6))
def test_documents_of_random_lengths(seed: int) -> None:
    case = Case((random_lengths(seed), random_lengths(seed + 100)), cap=None if seed % 2 else 3.0)
    rows = make(case)
    expected = with_gradients(by_documents(case, rows), rows)
    for actual, wanted in zip(with_gradients(ours(rows), rows), expected, strict=True):
        assert away(actual, wanted) < NEAR[torch.float64]


@pytest.mark.parametrize("name", ["documents", "documents, cap, window", "documents, alibi", "window"])
def test_tiles_of_any_size_give_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = make(CASES[name])
    expected = with_gradients(ours(rows), rows)
    monkeypatch.setattr(attend_module, "ROWS", 17)
    for actual, wanted in zip(with_gradients(ours(rows), rows), expected, strict=True):
        assert away(actual, wanted) < NEAR[torch.float64]


@pytest.mark.parametrize("name", CASES)
def test_zeros_behind_a_tile_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As 16-bit tiles on a CPU have them; here in fp64, where the sums show it."""
    rows = make(CASES[name])
    expected = with_gradients(ours(rows), rows)
    monkeypatch.setattr(attend_module, "costs_by_shape", lambda x: True)
    for actual, wanted in zip(with_gradients(ours(rows), rows), expected, strict=True):
        assert away(actual, wanted) < NEAR[torch.float64]


@pytest.mark.parametrize("name", ["documents", "documents, cap, window"])
def test_documents_that_the_host_lacks_are_hidden_all_the_same(name: str) -> None:
    """A GPU's fallback: masks hide what tiles don't leave out."""
    rows = make(CASES[name])
    known = _part(LENGTH, rows.first, None, None)
    assert known.visible is not None
    visible = replace(known.visible, span=known.visible.span._replace(first=None))
    part = Part(slice(None), slice(None), visible=visible)
    q, k, v = (x.detach() for x in (rows.q, rows.k, rows.v))
    expected = with_gradients(ours(rows), rows)
    out, lse = attend(q, k, v, part, rows.scores)
    found = [out, *attend_backward(rows.grad, q, k, v, out, lse, part, rows.scores)]
    for actual, wanted in zip(found, expected, strict=True):
        assert away(actual, wanted) < NEAR[torch.float64]


@pytest.mark.parametrize("queries", [1, 40, LENGTH])
def test_the_last_tokens_alone(queries: int) -> None:
    """After a cache: fewer queries than keys."""
    case = CASES["documents, window"]
    rows = make(case)
    whole = ours(rows).detach()[:, :, LENGTH - queries :]
    some = attend_rows(rows.q[:, :, LENGTH - queries :], rows.k, rows.v, rows.first, rows.scores)
    assert away(some.detach(), whole) < NEAR[torch.float64]


@pytest.mark.parametrize("name", ["documents", "documents, cap, window", "documents, alibi", "documents, sinks"])
def test_a_token_moves_its_own_document_alone(name: str) -> None:
    """Token 200 of row 0 is in its last document, from 193 on: other outputs and gradients keep bits."""
    case = CASES[name]
    plain, moved = make(case), make(case)
    with torch.no_grad():
        for x in (moved.q, moved.k, moved.v):
            x[0, :, 200] += 1.0
    before, after = with_gradients(ours(plain), plain), with_gradients(ours(moved), moved)
    for x, y in list(zip(before, after, strict=True))[:4]:
        assert torch.equal(x[0, :, :193], y[0, :, :193])
        assert torch.equal(x[1], y[1])
        assert not torch.equal(x[0, :, 200:], y[0, :, 200:])


def test_recomputing_gives_its_bits() -> None:
    for name in ("documents", "documents, cap, window"):
        rows = make(CASES[name], torch.float32)
        expected = with_gradients(ours(rows), rows)
        again = checkpoint(lambda rows=rows: ours(rows), use_reentrant=False)
        assert all(torch.equal(x, y) for x, y in zip(with_gradients(again, rows), expected, strict=True))


def test_it_is_an_operator_as_torch_wants_them() -> None:
    """Schema, fake tensors, autograd and tracing, with every optional input and with none."""
    for name in ("documents", "documents, alibi", "window, sinks, cap"):
        rows = make(CASES[name], torch.float32)
        arguments = (rows.q, rows.k, rows.v, rows.first, None, rows.slopes, rows.sinks, *rows.scores)
        torch.library.opcheck(torch.ops.scalewright.attend_rows.default, arguments)


@pytest.mark.parametrize("name", ["documents", "documents, cap, window", "window, sinks, cap"])
def test_a_compiled_graph_takes_it_whole(name: str) -> None:
    rows = make(CASES[name], torch.float32)
    expected = with_gradients(ours(rows), rows)
    compiled = torch.compile(lambda q, k, v: 2 * attend_rows(
        q, k, v, rows.first, rows.scores, **keywords(rows)
    ), backend="aot_eager", fullgraph=True)  # fmt: skip
    found = with_gradients(compiled(rows.q, rows.k, rows.v) / 2, rows)
    for actual, wanted in zip(found, expected, strict=True):
        assert away(actual, wanted.double()) < NEAR[torch.float32]


# -- memory ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_nothing_of_a_square_is_kept(name: str) -> None:
    """Inputs, the output, a number a query and head, and small vectors; no copy of a key head."""
    rows = make(CASES[name], torch.float32)
    saved: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        out = ours(rows)
    inputs = {x.untyped_storage().data_ptr() for x in rows.inputs}
    kept = sum(x.untyped_storage().nbytes() for at, x in saved.items() if at not in inputs)
    heads = CASES[name].heads
    assert kept <= out.nbytes + 2 * heads * LENGTH * 4 + rows.first.nbytes + 4 * heads
    assert max(x.numel() for x in saved.values()) < LENGTH * LENGTH


class Largest(TorchDispatchMode):
    """The largest storage that any operator makes, in bytes and in numbers, and the operators."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.numbers, self.ran = 0, 0, set[str]()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        self.ran.add(str(function._overloadpacket))
        for x in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(x, Tensor):
                size = x.untyped_storage().nbytes()
                self.bytes = max(self.bytes, size)
                self.numbers = max(self.numbers, size // x.element_size())
        return result


@pytest.mark.parametrize("name", ["documents", "window", "documents, cap, window", "alibi", "cap"])
def test_nothing_of_a_square_is_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward: at most the scores of a tile, of 16 queries by all keys."""
    monkeypatch.setattr(attend_module, "ROWS", 16)
    case, rows = CASES[name], make(CASES[name], torch.float32)
    part = _part(LENGTH, rows.first, None, rows.slopes)
    q, k, v = (x.detach() for x in (rows.q, rows.k, rows.v))
    with Largest() as largest:
        out, lse = attend(q, k, v, part, rows.scores)
        attend_backward(rows.grad, q, k, v, out, lse, part, rows.scores)
    rows_at_once = 2 if case.lengths is None else 1
    tile, whole = rows_at_once * case.heads * 16 * LENGTH * 4, 2 * case.heads * LENGTH * 8 * 4
    assert largest.bytes <= max(tile, whole)
    assert largest.bytes < case.heads * LENGTH * LENGTH * 4 / 2


# -- a GPU's kernels, as far as a CPU can tell --------------------------------------------------------


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c.cap is None and not c.alibi and not c.sinks])
def test_documents_as_flash_attention_takes_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a plain form of `varlen_attn` in its place."""
    monkeypatch.setattr(gpu_rows, "_varlen", lambda: SimpleNamespace(varlen_attn=plain_varlen))
    case, rows = CASES[name], make(CASES[name])
    begins = first_keys(torch.arange(LENGTH), rows.documents, case.window if case.chunks else None, case.chunks)
    bounds, longest = gpu_rows.bounds_of(begins.expand(2, -1).numpy())
    segments = gpu_rows.Segments(torch.from_numpy(bounds), longest, None if case.chunks else case.window)
    out = gpu_rows.attend_segments(rows.q, rows.k, rows.v, segments, rows.scores.scale)
    for actual, wanted in zip(with_gradients(out, rows), with_gradients(ours(rows), rows), strict=True):
        assert away(actual, wanted) < NEAR[torch.float64]


def plain_varlen(
    q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, of_keys: Tensor, longest: int, longest_keys: int, *,
    scale: float, window_size: tuple[int, int], enable_gqa: bool,
) -> Tensor:  # fmt: skip
    """What torch's documentation has it compute, of [tokens, heads, K]."""
    assert bounds is of_keys
    assert bounds.dtype == torch.int32
    assert int(bounds.diff().max()) <= longest == longest_keys
    assert q.shape[-1] == v.shape[-1]
    assert enable_gqa == (q.shape[1] != k.shape[1])
    left, right = window_size
    assert right == 0
    outs = []
    for start, end in pairwise(bounds.tolist()):
        index = torch.arange(end - start)
        away = index[:, None] - index[None, :]
        visible = (away >= 0) & ((away <= left) | (left < 0))
        parts = (x[None, start:end].transpose(1, 2) for x in (q, k, v))
        out = nn.functional.scaled_dot_product_attention(*parts, attn_mask=visible, scale=scale, enable_gqa=enable_gqa)
        outs.append(out[0].transpose(0, 1))
    return torch.cat(outs)


@pytest.mark.parametrize("flash", [True, False])
def test_nothing_of_a_square_in_a_trace_for_a_gpu(flash: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors without numbers through FlashAttention's operator and ours: a build for CPUs has no others."""
    monkeypatch.setattr(attention, "takes_segments", lambda *_: flash)
    length = 1024
    q = torch.empty(2, length, 4, 64, dtype=torch.bfloat16, device="meta", requires_grad=True)
    k = torch.empty(2, length, 2, 64, dtype=torch.bfloat16, device="meta", requires_grad=True)
    bounds = torch.empty(9, dtype=torch.int32, device="meta")
    rule = Rule(torch.empty(2, length, dtype=torch.int64, device="meta"), segments=Segments(bounds, 512))
    with Largest() as largest:
        heads = (x.transpose(1, 2) for x in (q, k, k))
        out = attention.ruled_attention(*heads, rule, Scores(0.1))
        out.transpose(1, 2).flatten(2).sum().backward()
    assert largest.bytes == q.nbytes  # and no copy of a head of keys
    assert ("torch_attn._varlen_attn_backward" in largest.ran) == flash
    assert ("scalewright.attend_rows_backward" in largest.ran) != flash


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c.wide == 8])
def test_flex_attentions_blocks_and_scores(name: str) -> None:
    """Its forward runs on a CPU, without gradients; its own way of writing scores and masks is compared."""
    from scalewright.model.gpu_rows import attend_blocks, block_mask

    rows = make(CASES[name], torch.float32)
    with torch.no_grad():
        expected = ours(rows)
        q, k, v = (x.detach() for x in (rows.q, rows.k, rows.v))
        with uncompiled_flex():
            found = attend_blocks(q, k, v, block_mask(rows.first), rows.scores, rows.slopes, rows.sinks)
    assert away(found, expected.double()) < NEAR[torch.float32]


@contextmanager
def uncompiled_flex() -> Iterator[None]:
    """FlexAttention by its plain form: the whole square of scores, and no compiler."""
    from torch.nn.attention import flex_attention

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
        yield


@pytest.mark.parametrize("name", ["documents", "window", "documents, window", "documents, chunks"])
def test_flex_attentions_blocks_leave_out_what_nobody_sees(name: str) -> None:
    """Blocks of the mask are those that a mask of all pairs gives; without a mask, those that all see."""
    from scalewright.model.gpu_rows import BLOCK, block_mask
    from scalewright.model.visible import is_visible

    rows = make(CASES[name])
    index = torch.arange(LENGTH)
    seen = is_visible(index, index, rows.first)
    count = -(-LENGTH // BLOCK)
    padded = nn.functional.pad(seen, (0, count * BLOCK - LENGTH) * 2)
    by_block = padded.unflatten(3, (count, BLOCK)).unflatten(2, (count, BLOCK)).transpose(3, 4)
    some, every = by_block.flatten(-2).any(-1), by_block.flatten(-2).all(-1)
    mask = block_mask(rows.first)
    for b in range(len(seen)):
        for i in range(count):
            partly = set(mask.kv_indices[b, 0, i, : mask.kv_num_blocks[b, 0, i]].tolist())
            whole = set(mask.full_kv_indices[b, 0, i, : mask.full_kv_num_blocks[b, 0, i]].tolist())
            assert not partly & whole
            assert {j for j in range(count) if some[b, 0, i, j]} <= partly | whole
            assert whole <= {j for j in range(count) if every[b, 0, i, j]}
            if name == "documents":
                assert partly | whole == {j for j in range(count) if some[b, 0, i, j]}
