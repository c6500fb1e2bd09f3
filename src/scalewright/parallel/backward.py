"""A backward, whole or in two parts: the input's gradient now, the weights' later (Qi et al. 2023, §2).

    y = f(x @ W)          input part    dy -> d(xW) -> dx      runs at once: another rank waits for dx
                          weight part   d(xW) -> dW            waits; it needs d(xW), kept by the input part

In a stage's graph the nodes between outputs and input are its path; a node of the path from which an edge
leads off towards weights is a fork (a matrix product, a norm):

    outputs -> o -> fork -> o -> o -> fork -> o -> input -> before the input (the embedding)
                     |                 |
                     W                 W

The input part runs the path alone and keeps the gradients that arrive at the forks. The weight part runs each fork
again, from those gradients, for its weights alone. A matrix product does one of its two multiplications in each part,
and so do sums for biases and PyTorch's fused norms; only their elementwise factors are made twice. Collectives lie on
the path or between a fork and a weight: they run once, in the order of the graph, which is the same on all ranks.

Two kinds of fork can't run again, and make their weights' gradients in the input part already: a Python
`autograd.Function`, which has no parts (a compiled block is one, so compiled blocks gain nothing from a split), and a
fork with a weight that is reached from elsewhere too, since that would run the path between a second time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node

from scalewright.model.torch_private import functorch_config

_Edge = tuple[Node, int]  # a node, and which of its outputs


@contextmanager
def in_parts() -> Iterator[None]:
    """Lets a backward run in parts through compiled blocks: around their forward, and both parts.

    A compiled backward overwrites the tensors that its forward kept, and so refuses to run in a graph that is
    still to be used, unless `donated_buffer` is off. The setting is the calling thread's alone (torch 2.13),
    while a GPU's backward has a thread of its own unless that is turned off, too.
    """
    with functorch_config.patch(donated_buffer=False), torch.autograd.set_multithreading_enabled(False):
        yield


def backward(outputs: Sequence[GradientEdge], gradients: Sequence[Tensor]) -> None:
    """The whole backward: adds gradients to the leaves' `.grad`, the input's too, and frees the graph."""
    torch.autograd.backward(list(outputs), list(gradients))


def backward_input(
    outputs: Sequence[GradientEdge], gradients: Sequence[Tensor], boundary: GradientEdge | None
) -> tuple[Tensor | None, Pending]:
    """The input part: the gradient at the boundary, and the weight part that is left to do.

    `boundary` is the input's edge: that of a leaf, or of a tensor that weights have made (their part of the
    backward is left, too). None, or one that the outputs don't depend on: no gradient, and all is left.
    """
    path = _path(outputs, boundary)
    if boundary is None or not path:
        return None, Pending([_Part(edges=list(outputs), gradients=list(gradients))])
    parts = _parts(path, outputs, gradients, boundary)
    early = [part for part in parts if part.early]
    roots = [pair for pair in zip(outputs, gradients, strict=True) if pair[0].node in path]
    roots += [pair for part in early for pair in zip(part.edges, part.gradients, strict=True)]
    leaves = list({leaf: None for part in early for leaf in part.leaves})
    later = [part for part in parts if not part.early]
    hooks = [part.fork.register_prehook(part.keep) for part in later if part.fork is not None]
    at_boundary, *leaf_gradients = torch.autograd.grad(
        [edge for edge, _ in roots],
        [boundary, *(GradientEdge(leaf, 0) for leaf in leaves)],
        [gradient for _, gradient in roots],
        retain_graph=True,
        allow_unused=True,
    )
    for hook in hooks:
        hook.remove()
    for part in later:
        if part.before and at_boundary is not None:
            part.edges, part.gradients = [boundary], [at_boundary]
    reached = [(leaf, g) for leaf, g in zip(leaves, leaf_gradients, strict=True) if g is not None]
    later.append(_Part([GradientEdge(leaf, 0) for leaf, _ in reached], [gradient for _, gradient in reached]))
    return at_boundary, Pending([part for part in later if part.edges])


@dataclass
class _Part:
    """A start of weights' backwards: a fork, the boundary (for weights before it), an output off the path."""

    edges: list[GradientEdge] = field(default_factory=list)  # where its backward starts
    gradients: list[Tensor] = field(default_factory=list)
    leaves: dict[Node, None] = field(default_factory=dict)  # the weights, an ordered set
    fork: Node | None = None
    before: bool = False  # whether the weights lie before the boundary
    early: bool = False  # whether its weights' gradients come with the input part

    def keep(self, gradients: tuple[Tensor | None, ...]) -> None:
        """A hook before the fork runs: keeps the gradients that arrived."""
        assert self.fork is not None
        for number, gradient in enumerate(gradients):
            if gradient is not None:
                self.edges.append(GradientEdge(self.fork, number))
                self.gradients.append(gradient)

    def run(self) -> None:
        """Naming a fork's weights keeps its backward off the path; from elsewhere no way leads there."""
        weights = [_variable(leaf) for leaf in self.leaves] if self.fork is not None else None
        torch.autograd.backward(self.edges, self.gradients, inputs=weights)


@dataclass
class Pending:
    """The weight part of a backward. It holds the graph until it has run."""

    parts: list[_Part] = field(default_factory=list)

    def run(self) -> None:
        """Adds gradients to the weights' `.grad`, as any backward does, and frees the graph on the way."""
        while self.parts:
            self.parts.pop().run()  # the nearest to the outputs first


def _path(outputs: Sequence[GradientEdge], boundary: GradientEdge | None) -> dict[Node, None]:
    """The nodes from which the boundary is reached: an ordered set, the nearest to the input first."""
    if boundary is None:
        return {}
    goal = (boundary.node, boundary.output_nr)
    path: dict[Node, None] = {}
    seen: set[Node] = set()
    stack = [(edge.node, False) for edge in outputs]
    while stack:
        node, done = stack.pop()
        if done:
            if any(child == goal or child[0] in path for child in _children(node)):
                path[node] = None
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(child, False) for child, _ in _children(node)]
    return path


def _parts(
    path: dict[Node, None], outputs: Sequence[GradientEdge], gradients: Sequence[Tensor], boundary: GradientEdge
) -> list[_Part]:
    """The parts in the path's order: weights before the boundary first, outputs off the path last."""
    goal = (boundary.node, boundary.output_nr)
    parts = []
    before = _leaves([boundary.node])
    if before and boundary.node not in before:  # an input that is a leaf is no weight
        parts.append(_Part(leaves=before, before=True))
    for node in path:
        off = [child[0] for child in _children(node) if child != goal and child[0] not in path]
        if off and (leaves := _leaves(off)):
            parts.append(_Part(leaves=leaves, fork=node, early=isinstance(node, BackwardCFunction)))
    for edge, gradient in zip(outputs, gradients, strict=True):
        if edge.node not in path and (leaves := _leaves([edge.node])):
            parts.append(_Part([edge], [gradient], leaves))
    shares = Counter(leaf for part in parts for leaf in part.leaves)
    for part in parts:
        part.early = part.early or any(shares[leaf] > 1 for leaf in part.leaves)
    return parts


def _leaves(starts: Iterable[Node]) -> dict[Node, None]:
    """The leaves that are reached from some nodes, in order."""
    leaves: dict[Node, None] = {}
    seen: set[Node] = set()
    stack = list(starts)
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            if hasattr(node, "variable"):  # the node that adds to a leaf's gradient
                leaves[node] = None
            stack += [child for child, _ in _children(node)]
    return leaves


def _children(node: Node) -> list[_Edge]:
    return [(child, number) for child, number in node.next_functions if child is not None]


def _variable(leaf: Any) -> Tensor:
    variable: Tensor = leaf.variable
    return variable
