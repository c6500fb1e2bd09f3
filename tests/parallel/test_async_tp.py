"""A compiled block under tensor and sequence parallelism has its collectives in the form that inductor fuses.

    forward    gather -> q, k, v    o -> scatter    gather -> gate, up    down -> scatter          4 of 4
    backward   gather -> down    gate + up -> scatter    gather -> o    q + k + v -> scatter       2 of 4

The others of a backward scatter a sum of products, which is no product.
"""

from __future__ import annotations

import pytest

from parallel.block_graphs import block_graphs, fusable

pytestmark = pytest.mark.slow  # the compiler's import alone takes seconds


def test_the_pass_finds_the_collectives_of_a_block():
    graphs = block_graphs()
    assert [fusable(graph) for graph in graphs.forward] == [(4, 4)]
    assert [fusable(graph) for graph in graphs.backward] == [(2, 4)]


def test_without_sequence_parallelism_nothing_can_be_fused():
    """All-reduces have no such form."""
    graphs = block_graphs(sp=False)
    assert [fusable(graph) for graph in graphs.forward] == [(0, 2)]
    assert [fusable(graph) for graph in graphs.backward] == [(0, 2)]
