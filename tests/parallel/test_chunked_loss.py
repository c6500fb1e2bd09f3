"""Head and loss in chunks: the numbers of whole logits, on any layout, and logits that never exist whole.

Chunks are made small here (`few_logits`): real sizes from which the head is in chunks would take gigabytes.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.utils._python_dispatch import TorchDispatchMode

from few_logits import few_logits
from loss_function import cross_entropy
from model.tiny_specs import SPECS
from parallel import small_steps
from parallel.tensor_cases import mesh_of
from scalewright.dry_run.watch import Watch
from scalewright.model.decoder import Decoder, soft_cap
from scalewright.model.init import initialize
from scalewright.parallel import cross_entropy as losses
from scalewright.parallel.backward import backward, backward_input
from scalewright.parallel.chunked_loss import head_in_chunks
from scalewright.parallel.cross_entropy import CrossEntropy
from scalewright.parallel.inputs import Micro
from scalewright.parallel.mesh import Mesh
from scalewright.spec.layout import Layout
from scalewright.spec.loss_chunks import LossSizes, head_tokens
from scalewright.train.loss import build_loss
from scalewright.train.network import load_python
from worlds import one_rank, run_world

TOKENS, COLUMNS, HIDDEN, Z_LOSS = (3, 19), 23, 8, 1e-2


@pytest.fixture
def five_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss of five tokens at once of the samples here, a head of ten; the last one is shorter."""
    few_logits(5 * COLUMNS, 7, put=monkeypatch.setattr)


def sample(dtype: torch.dtype, bias: bool = False, tokens: tuple[int, ...] = TOKENS) -> list[Tensor]:
    """Hidden, weight, bias (with numbers that a head has), and targets, of which some aren't counted."""
    random = torch.Generator().manual_seed(7)
    hidden, weight = (torch.randn(*shape, HIDDEN, generator=random) for shape in (tokens, (COLUMNS,)))
    leaves = [hidden, weight, *([torch.randn(COLUMNS, generator=random)] if bias else [])]
    targets = torch.randint(0, COLUMNS, tokens, generator=random)
    targets.view(-1)[:7] = -100  # more than a chunk
    return [*(x.to(dtype).requires_grad_() for x in leaves), targets]


def whole(hidden: Tensor, weight: Tensor, *rest: Any, cap: float | None = None) -> list[Tensor]:
    """The losses of whole logits and the gradients, by torch's own operators in fp64."""
    *bias, targets = rest
    leaves = [x.detach().double().requires_grad_() for x in (hidden, weight, *bias)]
    logits = soft_cap(F.linear(*leaves), cap).flatten(0, -2)
    total = F.cross_entropy(logits, targets.flatten(), reduction="sum")
    auxiliary = Z_LOSS * (logits.logsumexp(-1).square() * (targets.flatten() != -100)).sum()
    ((total + auxiliary) / 7).backward()
    return [total, auxiliary, *(x.grad for x in leaves)]


def chunked(hidden: Tensor, weight: Tensor, *rest: Any, cap: float | None = None) -> list[Tensor]:
    """The same by the head in chunks, through the loss's own rule."""
    *bias, targets = rest
    of_head = CrossEntropy(Z_LOSS).of_head(targets, cap)
    total, auxiliary = of_head(hidden, weight, *(bias or [None]))
    ((total + auxiliary) / 7).backward()
    return [total, auxiliary, *(x.grad for x in (hidden, weight, *bias))]


def off(actual: Tensor, expected: Tensor) -> float:
    """The largest deviation, relative to the largest number."""
    return float((actual.detach().double() - expected.detach()).abs().max() / expected.detach().abs().max())


@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.usefixtures("five_at_once")
def test_losses_and_gradients_are_those_of_whole_logits(bias, cap):
    """fp32 sums in another order; rows that aren't counted have no gradient at all."""
    inputs = sample(torch.float32, bias)
    found = chunked(*inputs, cap=cap)
    for actual, expected in zip(found, whole(*inputs, cap=cap), strict=True):
        assert off(actual, expected) < 1e-6
    assert not inputs[0].grad[inputs[-1] == -100].any()
    assert [x.dtype for x in found] == [torch.float32] * len(found)


@pytest.mark.parametrize("many", [5, 1000], ids=["several", "one"])
def test_logits_that_exist_whole_are_capped_in_their_place(many, monkeypatch):
    """Their gradient lies there, too: nothing else as large waits for the backward."""
    monkeypatch.setattr(LossSizes, "head_in_chunks", False)
    few_logits(many * COLUMNS, put=monkeypatch.setattr)
    *leaves, targets = sample(torch.float32, bias=True)
    of_head = CrossEntropy(Z_LOSS).of_head(targets, 2.0)
    with Watch(one_rank()[0], None) as watch:
        for tensor in (*leaves, targets):
            watch.live.tag(tensor, "parameters")
        before = watch.live.total
        total, auxiliary = of_head(*leaves)
        kept = watch.live.total - before
    ((total + auxiliary) / 7).backward()
    assert kept == pytest.approx(targets.numel() * COLUMNS * 4, abs=64)
    found = [total, auxiliary, *(x.grad for x in leaves)]
    for actual, expected in zip(found, whole(*leaves, targets, cap=2.0), strict=True):
        assert off(actual, expected) < 1e-6


@pytest.mark.usefixtures("five_at_once")
def test_nothing_is_counted():
    *leaves, targets = sample(torch.float32, bias=True)
    found = chunked(*leaves, torch.full_like(targets, -100))
    assert not any(x.detach().abs().max() for x in found)


@pytest.mark.parametrize("frozen", [0, 1, 2])
@pytest.mark.usefixtures("five_at_once")
def test_a_part_that_is_not_trained_gets_no_gradient(frozen):
    inputs = sample(torch.float32, bias=True)
    expected = whole(*inputs)[2:]
    inputs[frozen].requires_grad_(False)
    for index, (actual, wanted) in enumerate(zip(chunked(*inputs)[2:], expected, strict=True)):
        if index == frozen:
            assert actual is None
        else:
            assert off(actual, wanted) < 1e-6


@pytest.mark.usefixtures("five_at_once")
def test_without_gradients_nothing_is_kept():
    inputs = sample(torch.float32)
    with torch.no_grad():
        total, _ = CrossEntropy(Z_LOSS).of_head(inputs[-1])(*inputs[:2], None)
    assert not total.requires_grad
    assert off(total, whole(*inputs)[0]) < 1e-6


@pytest.mark.usefixtures("five_at_once")
def test_a_second_backward_is_refused_not_wrong():
    *leaves, targets = sample(torch.float32)
    total, _ = CrossEntropy().of_head(targets)(*leaves, None)
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="has had its backward"):
        total.backward()


def test_the_weights_gradient_is_summed_in_fp32(monkeypatch):
    """Of 128 chunks. Sums in bf16 lose what is smaller than 2^-9 of them at every chunk; ours round each
    chunk's product and the result."""
    few_logits(8 * COLUMNS, put=monkeypatch.setattr)
    hidden, weight, targets = sample(torch.bfloat16, tokens=(1024,))
    with torch.no_grad():
        hidden.add_(1.0)  # so that sums grow
    expected = whole(hidden, weight, targets)[3]
    mine = chunked(hidden, weight, targets)[3]
    assert mine.dtype == torch.bfloat16
    narrow = torch.zeros_like(weight)
    for part, wanted in zip(hidden.detach().split(8), targets.split(8), strict=True):
        leaf = weight.detach().clone().requires_grad_()
        total, auxiliary = cross_entropy(F.linear(part, leaf), wanted, Z_LOSS)
        ((total + auxiliary) / 7).backward()
        narrow += leaf.grad
    errors = [float((x.double() - expected).square().mean().sqrt()) for x in (mine, narrow)]
    assert errors[0] < 0.4 * errors[1]
    assert off(mine, expected) < 2 * torch.finfo(torch.bfloat16).eps


def test_fp16_keeps_unlikely_tokens_and_sums_beyond_its_range(monkeypatch):
    """A gradient of 5e-9 is 0 in fp16, and 4,096 tokens of hidden 20 sum up to more than 65,504."""
    few_logits(512 * COLUMNS, put=monkeypatch.setattr)
    hidden, weight = torch.full((4096, HIDDEN), 20.0), torch.zeros(COLUMNS, HIDDEN)
    weight[0], weight[1] = 0.06, -0.06  # logits 9.6, -9.6, and 0
    leaves = [x.half().requires_grad_() for x in (hidden, weight)]
    targets = torch.full((4096,), 2)
    total, _ = CrossEntropy().of_head(targets)(*leaves, None)
    (total * 16 / 4096).backward()
    double = [x.detach().double().requires_grad_() for x in leaves]
    (F.cross_entropy(F.linear(*double), targets, reduction="sum") * 16 / 4096).backward()
    for mine, theirs in zip(leaves, double, strict=True):
        assert torch.isfinite(mine.grad).all()
        assert off(mine.grad, theirs.grad) < 4e-3
    # of the unlikely token: fp16 has few bits left for 1e-6
    assert (leaves[1].grad[1].double() / double[1].grad[1] - 1).abs().max() < 0.05


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_memory_is_the_formulas(dtype, monkeypatch):
    """spec/loss_chunks.py's; the rest is a few numbers a token."""
    tokens, columns, hidden, chunk = 2048, 2048, 64, 128
    few_logits(chunk * columns, 3 * chunk, put=monkeypatch.setattr)
    leaves = [torch.randn(n, hidden).to(dtype).requires_grad_() for n in (tokens, columns)]
    targets, width = torch.randint(0, columns, (tokens,)), leaves[0].element_size()
    with Watch(one_rank()[0], None) as watch:
        for tensor in (*leaves, targets):
            watch.live.tag(tensor, "parameters")
        before, window = watch.live.total, watch.live.open()
        total, _ = head_in_chunks(*leaves, None, targets, CrossEntropy().chunk, keep=True)
        kept = watch.live.total - before
        watch.live.close(window)
        total.backward()
    sizes = LossSizes(tokens, columns, hidden, width)
    assert sizes.head_in_chunks
    assert kept == pytest.approx(sizes.kept, abs=64)
    copies = 1 if width == 4 else 2
    highest = sizes.kept + columns * (head_tokens(columns) * width + chunk * 4 * copies)
    assert window.peak - before == pytest.approx(highest, rel=0.01)
    assert leaves[1].grad.dtype == dtype


# -- in a stage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["llama", "gemma2", "head-bias"])
def test_a_split_backward(model, monkeypatch):
    """The weight part adds the gradient that the input part has made; nothing is multiplied twice."""
    few_logits(1000, put=monkeypatch.setattr)
    spec = SPECS[model].replace(tie_word_embeddings=False)
    found = []
    for split in (False, True):
        cut = Decoder(spec, range(1, spec.num_hidden_layers), first=False)
        initialize(cut, spec, 1)
        random = torch.Generator().manual_seed(2)
        hidden = torch.randn(2, 64, spec.hidden_size, generator=random).requires_grad_()
        targets = torch.randint(0, spec.vocab_size, (2, 64), generator=random)
        total, _ = cut(hidden, product=CrossEntropy(Z_LOSS).of_head(targets, spec.logit_softcap))
        edges, gradients = [get_gradient_edge(total)], [torch.tensor(0.1)]
        assert type(total.grad_fn).__name__ == "_OfHeadBackward"
        if split:
            gradient, pending = backward_input(edges, gradients, get_gradient_edge(hidden))
            assert all(p.grad is None for p in cut.parameters())
            pending.run()
        else:
            backward(edges, gradients)
            gradient = hidden.grad
        assert gradient is not None
        found.append({"input": gradient} | {name: p.grad for name, p in cut.named_parameters()})
    for name, expected in found[0].items():
        assert off(found[1][name], expected.double()) < 1e-6, name


# -- layouts -----------------------------------------------------------------------------------------

CASES: dict[str, dict[str, Any]] = {
    "zero 3": {"zero_stage": 3},
    "zero 3, tied": {"zero_stage": 3, "model": {"tie_word_embeddings": True}},
    "tp": {"tp": 2},
    "tp, tied, capped": {"tp": 2, "sp": False,
                         "model": {"tie_word_embeddings": True, "logit_softcap": 3.0, "head_bias": True}},
    "zb-h1": {"pp": 2, "schedule": "zb-h1"},
    "zb-h1, tied": {"pp": 2, "schedule": "zb-h1", "model": {"tie_word_embeddings": True}},
    "zbv, tied": {"pp": 2, "schedule": "zbv",
                  "model": {"tie_word_embeddings": True, "num_hidden_layers": 5}},
}  # fmt: skip
FOUR: dict[str, dict[str, Any]] = {
    "zb-h1, zero 3": {"pp": 2, "schedule": "zb-h1", "zero_stage": 3},
    "zbv, tied, zero 2": {"pp": 2, "schedule": "zbv", "zero_stage": 2,
                          "model": {"tie_word_embeddings": True, "num_hidden_layers": 5}},
    "1f1b, tp, capped": {"pp": 2, "tp": 2, "model": {"logit_softcap": 3.0}},
    "tp, zero 1": {"tp": 2, "zero_stage": 1, "model": {"head_bias": True}},
}  # fmt: skip
MICRO = {"zero_stage": 0, "micro_batch": 2, "global_batch": small_steps.ROWS}


def on_rank(mesh: Mesh, _: Layout, base: dict[str, Any], cases: dict[str, Any], bf16: bool = False) -> dict[str, Any]:
    """Steps of every case, with heads in chunks of a few tokens; and how often there was one."""
    few_logits(200)
    calls, meshes = [0], {}
    original = losses.head_in_chunks

    def counted(*arguments: Any, **keywords: Any) -> Any:
        calls[0] += 1
        return original(*arguments, **keywords)

    losses.head_in_chunks = counted
    results: dict[str, Any] = {}
    for name, keys in cases.items():
        keys = dict(keys)
        changes = keys.pop("model", {})
        case_layout = Layout.parse({**base, **keys})
        spec = small_steps.SPEC.replace(**changes)
        case_mesh = mesh_of(spec, case_layout, mesh.rank, meshes)
        loss = build_loss("cross_entropy", Z_LOSS, load_python, case_mesh, spec.vocab_size)
        calls[0] = 0
        results[name] = small_steps.train(case_mesh, case_layout, bf16, changes, loss=loss)
        results[name]["chunked"] = calls[0]
    return results


def control(changes: dict[str, Any], bf16: bool = False) -> dict[str, Any]:
    """One rank with whole logits."""
    mesh, layout = one_rank()
    layout = layout.replace(global_batch=small_steps.ROWS, micro_batch=2)

    def loss(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return cross_entropy(logits, targets, Z_LOSS)

    return small_steps.train(mesh, layout, bf16, changes, loss=loss)


def check(ranks: list[dict[str, Any]], cases: dict[str, Any], bf16: bool, *tolerances: float) -> None:
    for name, keys in cases.items():
        found = [rank[name] for rank in ranks]
        assert any(rank["chunked"] for rank in found), name
        small_steps.assert_same(found, control(keys.get("model", {}), bf16), *tolerances)


def test_two_ranks_train_as_one_with_whole_logits():
    """fp32 sums in another order, over three updates."""
    base = {"devices": 2, **MICRO}
    check(run_world(on_rank, base, base, CASES), CASES, False, 1e-5, 1e-5)


def test_four_ranks_train_as_one_with_whole_logits():
    base = {"devices": 4, **MICRO}
    check(run_world(on_rank, base, base, FOUR), FOUR, False, 1e-5, 1e-5)


def test_in_bf16():
    """Products of a chunk are rounded to 8 bits each, where one of all tokens is rounded once."""
    cases = {"zero 0": {}, "zero 3": {"zero_stage": 3}, "zb-h1": {"pp": 2, "schedule": "zb-h1"}}
    base = {"devices": 2, **MICRO, "micro_batch": 4, "precision": "bf16"}
    check(run_world(on_rank, base, base, cases, True), cases, True, 1e-2, 1e-2)


# -- what never exists -------------------------------------------------------------------------------


class _Largest(TorchDispatchMode):
    """The most elements of a tensor that an operator returned, and the most rows of one as wide as logits."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.columns, self.elements, self.rows = columns, 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, Tensor) and tensor.dim():
                self.elements = max(self.elements, tensor.numel())
                if tensor.shape[-1] == self.columns:
                    self.rows = max(self.rows, tensor.numel() // self.columns)
        return out


def largest(mesh: Mesh, layout: Layout) -> list[int]:
    """Of a training step and a validation's forward, on this rank."""
    changes = {"vocab_size": 2003, "hidden_size": 8, "head_dim": 4, "intermediate_size": 16}
    columns = -(-2003 // layout.tp)
    few_logits(11 * columns)
    spec = small_steps.SPEC.replace(**changes)
    parallel = small_steps.build(mesh, layout, spec=spec)
    loss = build_loss("cross_entropy", Z_LOSS, load_python, mesh, spec.vocab_size)
    tokens, targets = small_steps.batch(0)
    rows = [slice(row, row + layout.micro_batch) for row in range(0, small_steps.ROWS, layout.micro_batch)]
    micros = [Micro(tokens[row], targets[row], {}) for row in rows][: layout.accumulation]
    with _Largest(columns) as seen:
        parallel.executor.train(micros, loss, torch.tensor(100.0))
        parallel.executor.total(micros[0], loss)
    return [seen.elements, seen.rows]


@pytest.mark.parametrize(
    "layout",
    [{"devices": 2, "tp": 2}, {"devices": 2, "pp": 2, "schedule": "zb-h1"}, {"devices": 2, "zero_stage": 3}],
    ids=["tp", "zb-h1", "zero 3"],
)
def test_whole_logits_never_exist(layout):
    """In no operator of a step: rows as wide as the vocabulary come eleven at a time."""
    layout = {**MICRO, "micro_batch": 4, **layout}
    columns = -(-2003 // layout.get("tp", 1))
    found = run_world(largest, layout)
    assert max(elements for elements, _ in found) < 4 * 16 * columns
    assert max(rows for _, rows in found) == 11
