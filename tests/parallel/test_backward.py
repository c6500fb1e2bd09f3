"""A split backward has the gradients of a whole one, and does no matrix product twice."""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any

import pytest
import torch
import torch._functorch.config
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils._python_dispatch import TorchDispatchMode

from devices import DEVICES
from model.tiny_specs import SPECS
from scalewright.model.decoder import Decoder
from scalewright.model.init import initialize
from scalewright.parallel.backward import Pending, backward, backward_input, in_parts
from scalewright.spec.model import ModelSpec

# One kernel in another order of sums at most; the operators are the same, called once.
TOLERANCE = 1e-6


class Operators(TorchDispatchMode):
    """Counts operators by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: Any = None
    ) -> Any:
        self.counts[function.overloadpacket.__name__] += 1
        return function(*arguments, **(keywords or {}))

    @property
    def matmuls(self) -> int:
        """Matrix products of any kind."""
        return sum(self.counts[name] for name in ("mm", "addmm", "bmm", "baddbmm"))


def _cut(spec: ModelSpec, first: bool, last: bool) -> Decoder:
    layers = range(0 if first else 1, spec.num_hidden_layers if last else 2)
    cut = Decoder(spec, layers, first=first, last=last)
    initialize(cut, spec, 1)
    random = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in cut.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=random))
    return cut


def _run(cut: Decoder, split: bool) -> tuple[Tensor | None, dict[str, Tensor], list[Operators]]:
    """Input gradient, weight gradients, and the operators of the parts."""
    random, device = torch.Generator().manual_seed(6), next(cut.parameters()).device
    spec, seen = cut.spec, [Operators(), Operators()]
    inputs: Tensor = torch.randint(0, spec.vocab_size, (2, 7), generator=random).to(device)
    boundary: list[GradientEdge] = []
    if cut.first:
        block = next(iter(cut.layers.values()))
        block.register_forward_pre_hook(lambda _, args: boundary.append(get_gradient_edge(args[0])))
    else:
        inputs = torch.randn(2, 7, spec.hidden_size, generator=random).to(device).requires_grad_()
        boundary.append(get_gradient_edge(inputs))
    out = cut(inputs)
    grad_output = torch.randn(out.shape, generator=random).to(device)
    edges = [get_gradient_edge(out)]
    grad_input: Tensor | None
    if split:
        with seen[0]:
            grad_input, pending = backward_input(edges, [grad_output], boundary[-1])
        assert all(parameter.grad is None for parameter in cut.parameters())
        with seen[1]:
            pending.run()
    else:
        with seen[0]:
            backward(edges, [grad_output])
        grad_input = inputs.grad if not cut.first else None
    gradients = {name: p.grad for name, p in cut.named_parameters() if p.grad is not None}
    return grad_input, gradients, seen


@pytest.mark.parametrize("name", list(SPECS))
@pytest.mark.parametrize(("first", "last"), [(True, False), (False, False), (False, True)])
def test_split_equals_whole(name: str, first: bool, last: bool) -> None:
    expected_input, expected, (whole, _) = _run(_cut(SPECS[name], first, last), split=False)
    grad_input, gradients, (first_part, second_part) = _run(_cut(SPECS[name], first, last), split=True)
    names = dict(_cut(SPECS[name], first, last).named_parameters()).keys()
    assert expected.keys() == gradients.keys() == names
    if expected_input is not None and grad_input is not None:
        torch.testing.assert_close(grad_input, expected_input, rtol=TOLERANCE, atol=TOLERANCE)
    for key, gradient in expected.items():
        torch.testing.assert_close(gradients[key], gradient, rtol=TOLERANCE, atol=TOLERANCE, msg=key)
    assert whole.matmuls == first_part.matmuls + second_part.matmuls > 0
    linears = sum(p.dim() == 2 for n, p in _cut(SPECS[name], first, last).named_parameters() if _is_linear(n))
    assert second_part.matmuls == linears, "the weight part is one product for every linear layer"


def _is_linear(name: str) -> bool:
    return not name.startswith(("embed.", "positions."))


def test_fused_norms_split_too() -> None:
    """The norm's input gradient is made in one part, its weight's in the other; nothing twice but factors."""
    cut = _cut(SPECS["gpt2"], first=False, last=False)
    _, _, (inputs, weights) = _run(cut, split=True)
    norms = sum("norm" in name and name.endswith("weight") for name, _ in cut.named_parameters())
    operator = "native_layer_norm_backward"
    assert inputs.counts[operator] == weights.counts[operator] == norms > 0


class _Noting(torch.autograd.Function):
    """Stands for communication: notes that its backward ran."""

    log: list[str] = []  # noqa: RUF012  (a test's)

    @staticmethod
    def forward(ctx: Any, x: Tensor, name: str) -> Tensor:
        ctx.name = name
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        _Noting.log.append(ctx.name)
        return grad_outputs[0], None


def note(x: Tensor, name: str) -> Tensor:
    """x, noting in the backward that it passed."""
    out: Tensor = _Noting.apply(x, name)  # type: ignore[no-untyped-call]
    return out


class _TensorParallel(nn.Module):
    """A block that communicates where tensor parallelism does: around matmuls, at norms and the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 4)
        self.up, self.down = nn.Linear(4, 6), nn.Linear(6, 4, bias=False)
        self.norm = nn.Parameter(torch.randn(4))

    def embedded(self, tokens: Tensor) -> Tensor:
        return note(self.embed(tokens), "embedding")

    def forward(self, x: Tensor) -> Tensor:
        inner = x * note(self.norm, "norm")
        return x + note(self.down(F.gelu(self.up(note(inner, "enter")))), "leave")


def test_communication_runs_once() -> None:
    def run(split: bool) -> tuple[list[str], list[list[str]], dict[str, Tensor]]:
        torch.manual_seed(0)
        module = nn.ModuleList([_TensorParallel(), _TensorParallel()])
        _Noting.log.clear()
        x = module[0].embedded(torch.tensor([[1, 2, 3]]))
        out = module[1](module[0](x))
        if not split:
            out.sum().backward()
            return list(_Noting.log), [], _gradients(module)
        _, pending = backward_input([get_gradient_edge(out)], [torch.ones_like(out)], get_gradient_edge(x))
        input_part = list(_Noting.log)
        _Noting.log.clear()
        pending.run()
        return [*input_part, *_Noting.log], [input_part, list(_Noting.log)], _gradients(module)

    whole, _, expected = run(split=False)
    both, (input_part, weight_part), gradients = run(split=True)
    assert Counter(both) == Counter(whole)
    assert input_part == ["leave", "enter"] * 2
    assert weight_part == ["norm", "norm", "embedding"]
    for name, gradient in expected.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=TOLERANCE, atol=TOLERANCE)
    assert run(split=True)[0] == both, "the same order every time: tensor-parallel ranks rely on it"


def _gradients(module: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


def test_weights_used_twice() -> None:
    """A weight that two places of the path reach: its gradient comes with the input part, once."""
    x = torch.randn(5, 4, requires_grad=True)
    shared, single = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4))
    seen = Counter[str]()
    shared.register_post_accumulate_grad_hook(lambda _: seen.update(["shared"]))  # type: ignore[no-untyped-call]
    single.register_post_accumulate_grad_hook(lambda _: seen.update(["single"]))  # type: ignore[no-untyped-call]

    def forward() -> Tensor:
        return F.linear(torch.tanh(F.linear(x, shared) * single), shared) @ shared

    expected = torch.autograd.grad(forward().sum(), [x, shared, single])
    out = forward()
    edge = get_gradient_edge(out)
    grad_input, pending = backward_input([edge], [torch.ones_like(out)], get_gradient_edge(x))
    assert not seen
    pending.run()
    assert seen == {"shared": 1, "single": 1}
    for actual, gradient in zip([grad_input, shared.grad, single.grad], expected, strict=True):
        torch.testing.assert_close(actual, gradient, rtol=TOLERANCE, atol=TOLERANCE)


def test_a_weight_shared_with_the_inputs_own_graph() -> None:
    """A tied head in the same graph as its embedding; a scale besides, that only the embedding has."""
    table, scale = nn.Parameter(torch.randn(9, 4)), nn.Parameter(torch.randn(4))
    tokens = torch.tensor([1, 2, 2, 8])

    def forward() -> tuple[Tensor, Tensor]:
        x = F.embedding(tokens, table) * scale
        return x, torch.tanh(x) @ table.t() + F.linear(x, table)

    x, out = forward()
    expected = torch.autograd.grad(out.sum(), [x, table, scale])
    x, out = forward()
    edge = get_gradient_edge(out)
    grad_input, pending = backward_input([edge], [torch.ones_like(out)], get_gradient_edge(x))
    pending.run()
    for actual, gradient in zip([grad_input, table.grad, scale.grad], expected, strict=True):
        torch.testing.assert_close(actual, gradient, rtol=TOLERANCE, atol=TOLERANCE)


def test_auxiliary_losses() -> None:
    """Several outputs: one that the input reaches in the middle, one of the weights alone."""
    x = torch.randn(3, 4, requires_grad=True)
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward() -> list[Tensor]:
        middle = first(x)
        return [second(torch.relu(middle)), middle.square().mean(), second.weight.abs().sum()]

    grad_outputs = [torch.randn(3, 4), torch.tensor(0.5), torch.tensor(0.25)]
    parameters = [*first.parameters(), *second.parameters()]
    expected = torch.autograd.grad(forward(), [x, *parameters], grad_outputs)
    edges = [get_gradient_edge(out) for out in forward()]
    grad_input, pending = backward_input(edges, grad_outputs, get_gradient_edge(x))
    pending.run()
    for actual, gradient in zip([grad_input, *(p.grad for p in parameters)], expected, strict=True):
        torch.testing.assert_close(actual, gradient, rtol=TOLERANCE, atol=TOLERANCE)


def test_without_an_input_all_is_left_to_the_weight_part() -> None:
    layer = nn.Linear(4, 4)
    out = layer(torch.randn(2, 4)).sum()
    grad_input, pending = backward_input([get_gradient_edge(out)], [torch.ones(())], None)
    assert grad_input is None
    assert layer.weight.grad is None
    pending.run()
    assert layer.weight.grad is not None


def test_frozen_weights_get_none() -> None:
    x = torch.randn(2, 4, requires_grad=True)
    frozen, trained = nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4)
    out = frozen(trained(frozen(x)))
    with Operators() as seen:
        edge = get_gradient_edge(out)
        grad_input, pending = backward_input([edge], [torch.ones(2, 4)], get_gradient_edge(x))
        pending.run()
    assert grad_input is not None
    assert trained.weight.grad is not None
    assert frozen.weight.grad is None
    assert seen.matmuls == 4


def test_the_graph_is_free_after_the_weight_part() -> None:
    cut = _cut(SPECS["llama"], first=False, last=False)
    hidden = torch.randn(2, 7, 32, requires_grad=True)
    kept: list[Any] = []

    def pack(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, nn.Parameter) and tensor.data_ptr() != hidden.data_ptr():
            kept.append(weakref.ref(tensor.untyped_storage()))
        return tensor.detach()  # an output that its own node keeps as it is would be a circle

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        edge = get_gradient_edge(cut(hidden))
    alive = sum(reference() is not None for reference in kept)
    _, pending = backward_input([edge], [torch.randn(2, 7, 32)], get_gradient_edge(hidden))
    del edge
    assert sum(reference() is not None for reference in kept) == alive > 10
    pending.run()
    left = [reference() for reference in kept if reference() is not None]
    weights = {parameter.untyped_storage()._cdata for parameter in cut.parameters()}
    assert all(storage._cdata in weights for storage in left if storage is not None)


@pytest.mark.parametrize("device", DEVICES)
def test_compiled_blocks_work_and_run_once(device: str) -> None:
    """A compiled block is one Python Function: its weights' gradients come with the input part."""
    eager_input, eager, _ = _run(_cut(SPECS["llama"], False, False).to(device), split=True)
    cut = _cut(SPECS["llama"], False, False).to(device)
    for block in cut.layers.values():
        block.compile(backend="aot_eager" if device == "cpu" else "inductor")
    with in_parts():
        compiled_input, compiled, (input_part, weight_part) = _run(cut, split=True)
    assert input_part.matmuls > 0
    assert weight_part.matmuls == 0
    torch.testing.assert_close(compiled_input, eager_input, rtol=1e-5, atol=1e-5)  # other kernels for norms
    for key, gradient in eager.items():
        torch.testing.assert_close(compiled[key], gradient, rtol=1e-5, atol=1e-5)
    assert torch._functorch.config.donated_buffer  # as it was


def test_pending_is_empty_after_its_run() -> None:
    x, layer = torch.randn(2, 4, requires_grad=True), nn.Linear(4, 4)
    _, pending = backward_input([get_gradient_edge(layer(x))], [torch.ones(2, 4)], get_gradient_edge(x))
    assert isinstance(pending, Pending)
    assert pending.parts
    pending.run()
    assert not pending.parts
