"""The optimizers, over this rank's local fp32 weights: plain tensors, whatever the layout.

    adamw   w -= lr * (m / (sqrt(v) + eps) + decay w)                Loshchilov & Hutter 2019, algorithm 2
    lion    w -= lr * (sign(b1 m + (1 - b1) g) + decay w)            Chen et al. 2023, algorithm 2
    sgd     w -= lr * (momentum of g + decay w)                      as torch.optim.SGD: an L2 penalty

Tensors of one dimension (norms, biases) are not decayed. State travels as {name: {state: tensor}}, with the
tensors in the shape of the weight's master, so that a checkpoint can cut it like the weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from scalewright.parallel.offload import keep_states_on_host
from scalewright.parallel.weights import Weight, Weights
from scalewright.spec.errors import UserError
from scalewright.spec.run import OptimizerSpec, PythonRef
from scalewright.train.elementwise import check_made

Named = dict[str, dict[str, Any]]


class Lion(torch.optim.Optimizer):
    """EvoLved Sign Momentum (Chen et al. 2023, algorithm 2), for all tensors at once.

    Obeys `found_inf`, a scalar on the device: 1 leaves everything as it is, as torch's fused optimizers do.
    """

    elementwise = True
    _step_supports_amp_scaling = True
    found_inf: Tensor | None = None

    def __init__(
        self, params: Any, lr: float, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0
    ):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            grads = [p.grad for p in params]
            momenta = [self._momentum(p) for p in params]
            first, second = group["betas"]
            decay = 1 - group["lr"] * group["weight_decay"]
            if self.found_inf is not None:
                skip = self.found_inf.to(torch.bool)
                decay = torch.where(skip, 1.0, decay)
                for grad, momentum in zip(grads, momenta, strict=True):  # lerp(m, m) is m, to the bit
                    torch.where(skip, momentum, grad, out=grad)
            torch._foreach_mul_(params, decay)
            update = torch._foreach_lerp(momenta, grads, 1 - first)
            torch._foreach_sign_(update)
            if self.found_inf is not None:
                torch._foreach_mul_(update, 1 - self.found_inf)
            torch._foreach_add_(params, update, alpha=-group["lr"])
            torch._foreach_lerp_(momenta, grads, 1 - second)

    def _momentum(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if "exp_avg" not in state:
            state["exp_avg"] = torch.zeros_like(parameter)
        found: Tensor = state["exp_avg"]
        return found


def build_optimizer(
    spec: OptimizerSpec | PythonRef, weights: Weights, load: Callable[[PythonRef], Callable[..., Any]]
) -> torch.optim.Optimizer:
    """The run's optimizer over the local weights, wherever they lie.

    A user's own is called with (groups, **arguments). It gets parts of tensors only if it says that parts are
    enough (`train/elementwise.py`); raises UserError.
    """
    optimizer = _build(spec, weights, load)
    keep_states_on_host(optimizer)
    return optimizer


def _build(
    spec: OptimizerSpec | PythonRef, weights: Weights, load: Callable[[PythonRef], Callable[..., Any]]
) -> torch.optim.Optimizer:
    trained = weights.trained()
    decayed = [w.master for w in trained if len(w.placement.tensor.shape) > 1]
    plain = [w.master for w in trained if len(w.placement.tensor.shape) <= 1]
    if isinstance(spec, PythonRef):
        try:
            made = load(spec)([{"params": decayed}, {"params": plain, "weight_decay": 0.0}])
        except TypeError as error:
            raise UserError(
                f"{spec.python} can't be called so: {error}",
                "optimizer",
                "it gets the parameter groups, and the keys beside `python` by name",
            ) from error
        if not isinstance(made, torch.optim.Optimizer):
            raise UserError(
                f"{spec.python} gave a {type(made).__name__}", "optimizer", "return a torch.optim.Optimizer"
            )
        if any(weight.box[1] != tuple(weight.placement.tensor.shape) for weight in trained):
            check_made(spec, made)
        return made
    groups = [{"params": decayed, "weight_decay": spec.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    if spec.name == "sgd":
        return torch.optim.SGD(groups, lr=spec.lr, momentum=spec.momentum, fused=_can_fuse(weights))
    if spec.name == "lion":
        return Lion(groups, lr=spec.lr, betas=spec.betas)
    return torch.optim.AdamW(groups, lr=spec.lr, betas=spec.betas, eps=spec.eps, fused=_can_fuse(weights))


def _can_fuse(weights: Weights) -> bool:
    """Whether torch has its one-kernel update here: all weights on a CPU, a GPU or MPS."""
    return all(w.master.device.type in ("cpu", "cuda", "mps") for w in weights)


def set_rate(optimizer: torch.optim.Optimizer, base: float, rate: float) -> None:
    """Sets this step's learning rate, keeping the ratio of any group that has a rate of its own."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.setdefault("initial_lr", group["lr"]) / base


def base_rate(spec: OptimizerSpec | PythonRef, optimizer: torch.optim.Optimizer) -> float:
    """The highest learning rate: the spec's, or that of the user's first group."""
    return spec.lr if isinstance(spec, OptimizerSpec) else float(optimizer.param_groups[0]["lr"])


def read_states(
    optimizer: torch.optim.Optimizer, weights: Weights
) -> tuple[Named, dict[str, dict[str, float]]]:
    """The optimizer's tensors by (name, state), and its numbers (such as Adam's step) apart.

    Raises UserError as `check_states` does.
    """
    check_states(optimizer, weights)
    tensors: Named = {}
    numbers: dict[str, dict[str, float]] = {}
    for weight in weights:
        for key, value in optimizer.state.get(weight.master, {}).items():
            if isinstance(value, Tensor) and value.shape == weight.master.shape and value.dim() > 0:
                tensors.setdefault(weight.name, {})[key] = value
            elif value is not None:
                numbers.setdefault(key, {})[weight.name] = float(value)
    return tensors, {key: _compact(by_name) for key, by_name in numbers.items()}


def check_states(optimizer: torch.optim.Optimizer, weights: Weights) -> None:
    """Raises UserError when a checkpoint can't hold the optimizer's state.

    What has another shape than its weight could not be cut for another layout.
    """
    for weight in weights:
        for key, value in optimizer.state.get(weight.master, {}).items():
            if value is None or isinstance(value, (int, float)):
                continue
            if not isinstance(value, Tensor):
                problem = f"is a {type(value).__name__}, not a tensor or a number"
            elif value.shape != weight.master.shape and value.numel() != 1:
                problem = "has another shape than the weight"
            else:
                continue
            raise UserError(
                f"optimizer state '{key}' of '{weight.name}' {problem}, so a checkpoint can't hold it",
                "optimizer",
                "use one whose state is elementwise, or save nothing: "
                "checkpoint.every=0 checkpoint.at_end=false",
            )


def check_first_states(optimizer: torch.optim.Optimizer, weights: Weights) -> None:
    """Lets the optimizer's next update end with `check_states`: not hours later, at the first save.

    No hook of torch's: where a class inherits from another optimizer, the inner `step` would call it, before
    the outer one has made its states.
    """
    update = optimizer.step

    def first(*arguments: Any, **keywords: Any) -> Any:
        optimizer.step = update  # type: ignore[method-assign]
        answer = update(*arguments, **keywords)
        check_states(optimizer, weights)
        return answer

    optimizer.step = first  # type: ignore[method-assign]


def _compact(by_name: dict[str, float]) -> dict[str, float]:
    """One entry for all, when all are equal."""
    values = set(by_name.values())
    return {"*": values.pop()} if len(values) == 1 else by_name


def write_states(
    optimizer: torch.optim.Optimizer,
    weights: Weights,
    kinds: Iterable[str],
    read: Callable[[str, Any], Tensor | None],
    numbers: dict[str, dict[str, float]],
) -> None:
    """Gives the optimizer its state back; `read(kind, weight)` gives a state's box, or None.

    What pads a weight pads its state, with zeros.
    """
    index = {id(p): i for i, p in enumerate(p for g in optimizer.param_groups for p in g["params"])}
    kinds = list(kinds)
    state: dict[int, dict[str, Any]] = {}
    for weight in weights.trained():
        entry: dict[str, Any] = {}
        for kind in kinds:
            if (tensor := read(kind, weight)) is not None:
                entry[kind] = _padded(tensor, weight)
        for key, by_name in numbers.items():
            value = by_name.get(weight.name, by_name.get("*"))
            if value is not None:
                entry[key] = torch.tensor(value, dtype=torch.float32)
        if entry:
            state[index[id(weight.master)]] = entry
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _padded(tensor: Tensor, weight: Weight) -> Tensor:
    """A box of a state in the shape of the weight's master."""
    if tensor.shape == weight.master.shape:
        return tensor
    whole = torch.zeros(weight.master.shape, dtype=tensor.dtype, device=tensor.device)
    weight.true(whole).copy_(tensor)
    return whole
