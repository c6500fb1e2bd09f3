"""The decoder is what its spec says, and the same when cut, packed, cached, recomputed or compiled."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from devices import DEVICES
from model.tiny_specs import SPECS, make, tokens
from scalewright.model.cache import Cache
from scalewright.model.context import Context, View
from scalewright.model.decoder import Decoder
from scalewright.spec.errors import UserError
from scalewright.spec.model import ModelSpec
from scalewright.spec.tensors import tensors

# The same sums in another order: a few fp32 roundings (6e-8 each) on logits of order 1 to 10.
ROUNDING = 2e-5


@pytest.fixture(params=SPECS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_names_and_shapes_are_the_specs(name: str) -> None:
    found = [(key, tuple(value.shape)) for key, value in Decoder(SPECS[name]).state_dict().items()]
    assert found == [(t.name, t.shape) for t in tensors(SPECS[name])]


def test_built_without_memory_first(name: str) -> None:
    with torch.device("meta"):
        model = Decoder(SPECS[name])
    assert all(p.is_meta for p in model.parameters())
    assert not list(model.buffers())  # nothing that `to_empty` would leave undefined


def test_nothing_looks_ahead(name: str) -> None:
    model, ids = make(name), tokens()
    changed = ids.clone()
    changed[:, 15:] = (changed[:, 15:] + 1) % 64
    before, after = model(ids), model(changed)
    assert torch.equal(before[:, :15], after[:, :15]) or (before[:, :15] - after[:, :15]).abs().max() < ROUNDING
    assert (before[:, 15:] - after[:, 15:]).abs().max() > 0.01


@pytest.mark.parametrize("device", DEVICES)
def test_packed_documents_are_as_if_alone(name: str, device: str) -> None:
    model, ids = make(name).to(device), tokens(2, 24).to(device)
    lengths = (7, 13, 4)
    documents = torch.cat([torch.full((n,), i) for i, n in enumerate(lengths)]).expand(2, -1).to(torch.int32)
    positions = torch.cat([torch.arange(n) for n in lengths]).expand(2, -1)
    packed = model(ids, positions.to(device), documents.to(device))
    start = 0
    for count in lengths:
        alone = model(ids[:, start : start + count])
        assert (packed[:, start : start + count] - alone).abs().max() < ROUNDING
        start += count
    assert (packed[:, 7:] - model(ids)[:, 7:]).abs().max() > 0.01  # and the mask does something


def test_packed_documents_leak_no_gradient(name: str) -> None:
    model, ids = make(name), tokens(1, 12)
    documents = torch.tensor([[0] * 5 + [1] * 7])
    seen: list[Tensor] = []
    assert model.embed is not None
    model.embed.register_forward_hook(lambda m, i, out: seen.append(out) or out.retain_grad())
    model(ids, None, documents)[:, 5:].sum().backward()
    assert seen[0].grad is not None
    assert torch.count_nonzero(seen[0].grad[:, :5]) == 0
    assert seen[0].grad[:, 5:].abs().min() > 0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("cuts", [(24,), (9, 15), (1,) * 24, (20, 1, 3)])
def test_a_cache_changes_nothing(name: str, cuts: tuple[int, ...], device: str) -> None:
    model, ids = make(name).to(device), tokens().to(device)
    whole = model(ids)
    cache, parts, start = Cache(24), list[Tensor](), 0
    with torch.no_grad():
        for count in cuts:
            parts.append(model(ids[:, start : start + count], cache=cache))
            start += count
    assert cache.length == 24
    assert (torch.cat(parts, dim=1) - whole).abs().max() < ROUNDING


def test_stages_compose_to_the_whole(name: str) -> None:
    spec, model, ids = SPECS[name], make(name), tokens()
    first = Decoder(spec, range(1), last=False)
    middle = Decoder(spec, range(1, 2), first=False, last=False)
    last = Decoder(spec, range(2, 3), first=False)
    whole = model.state_dict()
    whole.setdefault("head.weight", whole["embed.weight"])
    for stage in (first, middle, last):
        stage.load_state_dict({key: whole[key] for key in stage.state_dict()})
    names = [key for stage in (first, middle, last) for key in stage.state_dict()]
    tied = ["head.weight"] if spec.tie_word_embeddings else []
    assert sorted(names) == sorted([*model.state_dict(), *tied])
    assert torch.equal(last(middle(first(ids))), model(ids))


class _Recomputed(nn.Module):
    """A block under activation checkpointing."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor, context: Context) -> Tensor:
        out: Tensor = checkpoint(self.block, x, context, use_reentrant=False)
        return out


def _gradients(model: Decoder, ids: Tensor, documents: Tensor | None = None) -> list[Tensor]:
    model.zero_grad()
    model(ids, None, documents).square().mean().backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    assert len(gradients) == len(list(model.parameters()))
    return gradients


def test_every_parameter_gets_a_gradient_and_recomputing_gives_its_bits(name: str) -> None:
    model, ids = make(name), tokens()
    documents = torch.tensor([[0] * 10 + [1] * 14] * 2)
    for mask in (None, documents):
        straight = _gradients(model, ids, mask)
        assert all(g.abs().max() > 0 for g in straight)
        plain = dict(model.layers.items())
        for key, block in plain.items():
            model.layers[key] = _Recomputed(block)
        again = _gradients(model, ids, mask)
        for key, block in plain.items():
            model.layers[key] = block
        assert all(torch.equal(a, b) for a, b in zip(straight, again, strict=True))


LATER = ("neox", "gemma2", "gemma3", "windows-side-by-side")


@pytest.mark.parametrize(
    "which", ["llama", "bloom", "sinks", *(pytest.param(name, marks=pytest.mark.slow) for name in LATER)]
)
def test_blocks_compile_whole(which: str) -> None:
    torch.compiler.reset()  # each model compiles `Block.forward` anew, and only some versions are kept
    model, ids = make(which), tokens()
    straight, expected = _gradients(model, ids), model(ids)
    for block in model.layers.values():
        block.compile(backend="aot_eager", fullgraph=True)  # fullgraph: a graph break is an error
    assert (model(ids) - expected).abs().max() < ROUNDING
    for a, b in zip(straight, _gradients(model, ids), strict=True):
        assert (a - b).abs().max() <= 1e-4 * a.abs().max() + 1e-7


def test_heads_are_counted_from_the_weights(name: str) -> None:
    """Half of the heads' weights give their part of the sum: what tensor parallelism does."""
    spec, model, ids = SPECS[name], make(name), tokens()
    if spec.kv_heads == 1 or spec.qk_norm == "full" or spec.o_bias:
        pytest.skip("one kv head, a norm over all heads, or a bias to be added once: the cut has more to it")
    block = model.layers["0"]
    context, x = _context(model, ids), model.embedded_tokens(ids, None)
    whole = block.attention(x, context)
    parts = []
    for half in range(2):
        cut = Decoder(spec)
        cut.load_state_dict(model.state_dict())
        attention = cut.layers["0"].attention
        latent = (attention.q or attention.q_up, attention.kv_up) if spec.mla else ()
        for linear in latent or (attention.q, attention.k, attention.v):
            linear.weight = nn.Parameter(linear.weight.chunk(2)[half])
            if linear.bias is not None:
                linear.bias = nn.Parameter(linear.bias.chunk(2)[half])
        attention.o.weight = nn.Parameter(attention.o.weight.chunk(2, dim=1)[half])
        if spec.attention_sinks:
            attention.sinks = nn.Parameter(attention.sinks.chunk(2)[half])
        heads = spec.num_attention_heads // 2
        cut.heads = range(half * heads, half * heads + heads)
        parts.append(attention(x, _context(cut, ids)))
    assert (parts[0] + parts[1] - whole).abs().max() < ROUNDING


def _context(model: Decoder, ids: Tensor) -> Context:
    x = model.embedded_tokens(ids, None)
    return model.context(x, ids.shape[1], None, None, None)


@pytest.mark.parametrize("device", DEVICES)
def test_bf16_is_near_fp32(name: str, device: str) -> None:
    model, ids = make(name).to(device), tokens().to(device)
    expected = model(ids)
    found = model.to(torch.bfloat16)(ids)
    assert found.dtype == torch.bfloat16
    # 2^-8 a rounding, some ten in a row through three layers: a few per cent of the logits' size
    assert (found.float() - expected).norm() < 0.06 * expected.norm()


def test_a_row_longer_than_the_learned_positions_is_refused() -> None:
    with pytest.raises(UserError, match=r"65 tokens.*64 positions"):
        make("gpt2")(tokens(1, 65))


def test_plain_rows_are_plainly_causal() -> None:
    model, ids = make("llama"), tokens()
    context = _context(model, ids)
    assert context.full == context.sliding == View(causal=True)
    windowed = _context(make("gemma3"), tokens(1, 5))  # not longer than the window
    assert windowed.sliding == View(causal=True)


def test_a_mask_is_for_few_queries_after_a_cache() -> None:
    """Rows of training have none, whatever hides keys; one new token has a mask of its keys."""
    for name in ("bloom", "gemma2", "gemma3"):
        model, ids = make(name), tokens()
        context = _context(model, ids)
        assert context.full.mask is None
        assert context.sliding.mask is None
        cache = Cache(25)
        model(ids, cache=cache)
        after = model.context(model.embedded_tokens(ids[:, :1], None), 1, None, None, cache).sliding
        assert after.rule is None
        assert after.mask is not None
        assert after.mask.shape[-2:] == (1, 25)


def test_windows_side_by_side_begin_with_their_document() -> None:
    """Windows of 5 tokens: of a row, and of documents of 7 and 6 tokens in it."""
    model, ids = make("windows-side-by-side"), tokens(1, 13)
    documents = torch.tensor([[0] * 7 + [1] * 6])
    for given, begins in ((None, [0] * 5 + [5] * 5 + [10] * 3), (documents, [0] * 5 + [5] * 2 + [7] * 5 + [12])):
        rule = model.context(model.embedded_tokens(ids, None), 13, None, given, None).sliding.rule
        assert rule is not None
        assert rule.first[0].tolist() == begins


EXPERTS = {"num_experts": 4, "top_k": 2, "moe_intermediate_size": 8}


@pytest.mark.parametrize("keys", [{"attention_sinks": True}, {"attention_temperature": {}}])
def test_latent_attention_has_neither_sinks_nor_a_temperature(keys: dict[str, object]) -> None:
    with pytest.raises(UserError, match="latent attention has none"):
        ModelSpec.parse({**SPECS["latent"].dump(), **keys})


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"moe": {**EXPERTS, "latent_size": 8}}, "experts behind a latent"),
        ({"moe": {**EXPERTS, "branch_norms": True}}, "norms of experts' branches"),
        ({"mtp_layers": 1, "positions": "learned"}, "multi-token prediction with learned positions"),
        ({"mtp_layers": 1, "embedding_norm": True}, "multi-token prediction with learned positions"),
        (
            {"mtp_layers": 1, "moe": {**EXPERTS, "dense_layers": [2]}},
            "multi-token prediction behind a last layer of another kind",
        ),
        ({"attention_gate": True}, "gate on attention's output"),
        ({"global_attention": {"num_key_value_heads": 1, "head_dim": 8}}, "other heads on global layers"),
        ({"qk_norm": "qkv"}, "qk_norm 'qkv'"),
        ({"norm_type": "layernorm_plus_one"}, "norm_type 'layernorm_plus_one'"),
        ({"layer_pattern": ["attention", "mlp"]}, "attention or an MLP alone"),
        ({"layer_pattern": ["mamba"], "mamba": {"num_heads": 2, "head_dim": 4, "state_size": 4}}, "Mamba layers"),
        (
            {"deltanet": {"num_key_heads": 1, "num_value_heads": 2, "key_head_dim": 4, "value_head_dim": 4}},
            "DeltaNet layers",
        ),
        ({"rope": {"scaling": {"kind": "longrope"}}}, "longrope"),
    ],
)
def test_what_is_counted_only_says_so_in_a_line(keys: dict[str, object], reason: str) -> None:
    spec = ModelSpec.parse({**SPECS["llama"].dump(), **keys, "head_dim": None})
    with pytest.raises(UserError, match=f"{reason}.*counted but do.*n't run yet") as caught:
        Decoder(spec)
    assert "\n" not in str(caught.value)
