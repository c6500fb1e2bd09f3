"""The operators' sums against PyTorch on our own network: bytes kept for backward, and FLOPs."""

from __future__ import annotations

from typing import Any

import pytest

from scalewright.spec.block import before, block
from scalewright.spec.flops import forward_flops
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.operators import activation_bytes, operators
from scalewright.spec.presets import load_model_spec
from scalewright.spec.primitives import sizes

torch = pytest.importorskip("torch")

MODELS = ["llama-56m", "gpt2-124m", "pythia-160m", "qwen3-0.6b", "olmo-2-1b", "gemma-3-270m", "bloom-560m"]
CAPPED = "gemma-2-2b"
BATCH, LENGTH = 2, 128


def small(name: str) -> ModelSpec:
    spec = load_model_spec(name).replace(num_hidden_layers=2, vocab_size=512, moe=None)
    if name == "llama-4-scout":  # narrow, and both of its kinds of layer
        keys = {"hidden_size": 1024, "intermediate_size": 2048, "num_attention_heads": 8, "rope_every_not": 2}
        spec = spec.replace(**keys, window_pattern=(True, False))
    return spec


def build(spec: ModelSpec) -> Any:
    """The network with uninitialized weights: neither bytes nor FLOPs depend on them."""
    from scalewright.model.decoder import Decoder

    with torch.device("meta"):
        network = Decoder(spec)
    return network.to_empty(device="cpu")


def kept_bytes(network: Any, documents: Any = None) -> int:
    """Bytes of the storages, without parameters, that autograd keeps of a forward up to the final norm."""
    parameters = {p.untyped_storage().data_ptr() for p in network.parameters()}
    kept: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage  # held, so that no address is reused
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = network.features(torch.randint(0, 512, (BATCH, LENGTH)), None, documents)
    del out
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("name", [*MODELS, CAPPED, "deepseek-v2-lite", "gpt-oss-20b", "llama-4-scout"])
@pytest.mark.parametrize("recompute", ["none", pytest.param("full", marks=pytest.mark.slow)])
def test_activations_are_what_autograd_keeps(name: str, recompute: str) -> None:
    from scalewright.parallel.recompute import apply_recompute

    spec = small(name)
    network = build(spec)
    apply_recompute(list(network.layers.values()), recompute)
    layout = Layout.parse({"micro_batch": BATCH, "precision": "fp32", "recompute": recompute})
    outside = [o for o in operators(spec, layout, LENGTH, kernels="cpu") if o.kind in ("loss", "head")]
    final = next(o.written for o in operators(spec, layout, LENGTH) if o.name == "norm")  # the head's input
    ours = activation_bytes(spec, layout, LENGTH, kernels="cpu") - final - sum(o.saved for o in outside)
    # 1%: norms keep a number a row, RoPE its tables, the embedding its ids
    assert ours == pytest.approx(kept_bytes(network), rel=0.01)


@pytest.mark.parametrize("name", ["llama-56m", CAPPED, "bloom-560m", "deepseek-v2-lite"])
def test_packed_rows_keep_as_little(name: str) -> None:
    """Of several documents in a row: what blocks keep beyond those of plain rows is nothing of T x T."""
    spec = small(name)
    network, documents = build(spec), (torch.arange(LENGTH) // 50)[None].expand(BATCH, -1)
    s = sizes(Layout(micro_batch=BATCH, precision="fp32"), LENGTH, kernels="cpu", documents=True)
    ops = [*before(spec, s), *(o for layer in range(2) for o in block(spec, s, layer))]
    ours = sum(o.saved for o in ops)
    final = kept_bytes(network, documents) - ours
    stream = BATCH * LENGTH * spec.hidden_size * 4
    assert 0 <= final < 3 * stream + 0.01 * ours  # the last norm, whose input, and x / rms(x), are kept


@pytest.mark.parametrize("name", [*MODELS, "starcoder2-3b", "gemma-2b", "gpt-oss-20b", "llama-4-scout"])
def test_flops_are_what_torch_counts(name: str) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    spec = small(name)
    network = build(spec)
    counted = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)  # on a CPU, only this one
    with counted, torch.no_grad(), FlopCounterMode(display=False) as counter:
        network(torch.randint(0, 512, (BATCH, LENGTH)))
    assert counter.get_total_flops() == BATCH * forward_flops(spec, LENGTH, causal=False)
