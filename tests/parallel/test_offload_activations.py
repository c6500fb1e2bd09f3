"""Offloaded activations: the same bits, and off the device between forward and backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from runs import MODEL
from scalewright.dry_run.live_bytes import LiveBytes
from scalewright.model.decoder import Decoder
from scalewright.model.init import initialize
from scalewright.parallel import offload_activations as activations
from scalewright.parallel.offload_activations import PackedTensor, apply_offload_activations
from scalewright.parallel.offload_states import host_empty, is_host
from scalewright.parallel.parallelize import apply_compile
from scalewright.parallel.recompute import apply_recompute
from scalewright.spec.layout import Layout, RecomputeBudget, RecomputeEvery
from scalewright.spec.model import ModelSpec

SPEC = ModelSpec.parse(MODEL).replace(num_hidden_layers=4)
LAYOUT = Layout(offload="activations", micro_batch=2, precision="fp32")
CPU = torch.device("cpu")
TOKENS = torch.randint(0, 67, (2, 32), generator=torch.Generator().manual_seed(0))
DOCUMENTS = torch.tensor([[0] * 7 + [1] * 25, [0] * 12 + [1] * 20])
KINDS: list[Any] = ["none", "selective", "full", RecomputeEvery(every=2), RecomputeBudget(budget=0.5)]
IDS = ["none", "selective", "full", "every2", "budget"]


class Meter(TorchDispatchMode):
    """Live bytes of the device that forwards and backwards make, host copies left out."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.live = LiveBytes(is_host)
        for parameter in decoder.parameters():
            parameter.grad = torch.zeros_like(parameter)
            self.live.tag(parameter, "parameters")
            self.live.tag(parameter.grad, "gradients")

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = function(*args, **(kwargs or {}))
        for tensor in output if isinstance(output, (tuple, list)) else (output,):
            if isinstance(tensor, Tensor):
                self.live.count(tensor, "activations")
        return output


def build(kind: Any = "none", offload: bool = True, small: int = 0, compiled: bool = False) -> Decoder:
    decoder = Decoder(SPEC)
    initialize(decoder, SPEC, 0)
    blocks = list(decoder.layers.values())
    apply_recompute(blocks, kind, model=SPEC, layout=LAYOUT, seq_len=32)
    if compiled:
        apply_compile(blocks, "aot_eager", forward_only=True)
    if offload:
        apply_offload_activations(blocks, LAYOUT, CPU, small=small)
    return decoder


def gradients(decoder: Decoder, **arguments: Tensor) -> list[Tensor]:
    """The gradients of two micro-batches in flight at once: both forwards, then the backwards, in order."""
    losses = [decoder(tokens, **arguments).logsumexp(-1).sum() for tokens in (TOKENS, TOKENS.flip(0))]
    for loss in losses:
        loss.backward()
    return [p.grad for p in decoder.parameters() if p.grad is not None]


def assert_same_bits(offloaded: list[Tensor], control: list[Tensor]) -> None:
    assert len(offloaded) == len(control) > 0
    assert all(torch.equal(a, b) for a, b in zip(offloaded, control, strict=True))


@pytest.mark.parametrize("kind", KINDS, ids=IDS)
@pytest.mark.parametrize("masked", [False, True])
def test_gradients_are_equal_bit_for_bit(kind, masked):
    more = {"documents": DOCUMENTS} if masked else {}
    assert_same_bits(gradients(build(kind), **more), gradients(build(kind, offload=False), **more))


@pytest.mark.parametrize("kind", ["none", "full"])
def test_the_device_holds_no_more_than_a_block(kind):
    """Between forward and backward; in the backward the block that runs, and the next."""

    def measure(offload: bool) -> tuple[int, int]:
        decoder = build(kind, offload)
        with Meter(decoder) as meter:
            hidden = decoder.features(TOKENS)
            kept = meter.live.now["activations"]
            window = meter.live.open()
            hidden.backward(torch.ones_like(hidden))
            return kept, window.peak

    kept, peak = measure(True)
    kept_none, peak_none = measure(False)
    stream = TOKENS.numel() * SPEC.hidden_size * 4
    # tokens and tables, the final norm's input and numbers, and the output stay
    assert kept < 4 * stream
    assert kept_none - kept > 0.9 * (kept_none - 3 * stream)
    assert peak < peak_none


def test_shared_tensors_stay_and_views_are_copied_once():
    """Parameters, rules and tables stay; q, k and v's views share storages, which are copied once."""
    packed: list[Any] = []
    decoder = build()
    block = decoder.layers["0"]
    forward = block.forward

    x = torch.randn(2, 32, SPEC.hidden_size, requires_grad=True)
    context = decoder.context(x, 32, None, DOCUMENTS, None)
    original = activations.SavedTensors.pack

    def pack(saved: Any, tensor: Tensor) -> Any:
        replacement = original(saved, tensor)
        packed.append((tensor, replacement))
        return replacement

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(activations.SavedTensors, "pack", pack)
        out = forward(x, context)
    assert context.full.rule is not None
    rule = context.full.rule
    shared = {t.untyped_storage()._cdata for t in (*block.parameters(), rule.first, *context.rope)}
    offloaded = [replacement for _, replacement in packed if isinstance(replacement, PackedTensor)]
    for tensor, replacement in packed:
        assert isinstance(replacement, Tensor) == (tensor.untyped_storage()._cdata in shared)
    buffers = {id(tensor.buffer): tensor.buffer for tensor in offloaded}
    assert len(buffers) < len(offloaded)
    assert all(is_host(buffer.host) for buffer in buffers.values())
    assert sum(buffer.host.nbytes for buffer in buffers.values()) > x.nbytes
    del out


def test_small_tensors_stay():
    decoder, control = build(small=1 << 30), build(offload=False)
    with Meter(decoder) as meter:
        hidden = decoder.features(TOKENS)
        kept = meter.live.now["activations"]
    with Meter(control) as meter:
        hidden = control.features(TOKENS)
        assert kept == meter.live.now["activations"]
    del hidden


def test_a_split_backward_unpacks_twice():
    """Zero-bubble schedules make input gradients first and weight gradients later, from the same graph."""

    def run(offload: bool) -> list[Tensor]:
        decoder = build(offload=offload)
        hidden = torch.randn(2, 32, SPEC.hidden_size, generator=torch.Generator().manual_seed(1))
        stage = [hidden.clone().requires_grad_() for _ in range(2)]
        outs = []
        for x in stage:
            y = x
            context = decoder.context(x, 32, None, None, None)
            for block in decoder.layers.values():
                y = block(y, context)
            outs.append(y)
        params = list(decoder.layers.parameters())
        for x, y in zip(stage, outs, strict=True):
            (x.grad,) = torch.autograd.grad(y, [x], torch.ones_like(y), retain_graph=True)
        total = [torch.zeros_like(p) for p in params]
        for y in outs:
            for t, g in zip(total, torch.autograd.grad(y, params, torch.ones_like(y)), strict=True):
                t += g
        return [x.grad for x in stage] + total  # type: ignore[misc]

    assert_same_bits(run(True), run(False))


def test_a_dropped_graph_leaves_nothing_behind():
    decoder = build()
    with Meter(decoder) as meter:
        for _ in range(3):
            decoder(TOKENS).sum()
        decoder(TOKENS).sum().backward()
        left = meter.live.now["activations"]
    assert left <= TOKENS.nbytes


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["none", "full"])
def test_compiled_blocks_are_offloaded_too(kind, monkeypatch):
    """Hooks stay outside of the compiled code, and see the tensors that it saves."""
    packed: list[Any] = []
    original = activations.SavedTensors.pack

    def pack(saved: Any, tensor: Tensor) -> Any:
        packed.append(original(saved, tensor))
        return packed[-1]

    monkeypatch.setattr(activations.SavedTensors, "pack", pack)
    torch._dynamo.reset()
    compiled, control = gradients(build(kind, compiled=True)), gradients(build(kind, offload=False))
    for a, b in zip(compiled, control, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)  # compiled steps may round elsewhere
    assert sum(isinstance(tensor, PackedTensor) for tensor in packed) > 4
    assert not torch._dynamo.utils.counters["graph_break"]


def test_the_previous_block_is_that_of_the_same_forward(monkeypatch):
    """Blocks are chained within a forward and never beyond it, or the chain would grow for ever."""
    blocks: list[Any] = []
    original = activations.Offloader.begin_forward

    def begin_forward(offloader: Any, x: Tensor, stays: set[int], small: int) -> Any:
        blocks.append(original(offloader, x, stays, small))
        return blocks[-1]

    monkeypatch.setattr(activations.Offloader, "begin_forward", begin_forward)
    decoder = build()
    for _ in range(20):
        decoder(TOKENS).sum().backward()
    for index, block in enumerate(blocks):
        assert block.previous is (None if index % 4 == 0 else blocks[index - 1])


def test_evaluation_saves_nothing():
    decoder = build()
    with torch.no_grad():
        assert torch.equal(decoder(TOKENS), build(offload=False)(TOKENS))


def test_host_memory_is_marked():
    tensor = host_empty((4, 2), torch.float32, CPU)
    assert is_host(tensor)
    assert is_host(tensor.view(8)[2:])
    assert not is_host(tensor.clone())
    assert not is_host(torch.empty(8))
