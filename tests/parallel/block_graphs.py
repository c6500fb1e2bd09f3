"""The graphs that a compiled block of a rank gives inductor, and which of their collectives it could fuse.

Inductor's pass for overlap inside matrix products (torch._inductor.fx_passes.micro_pipeline_tp) runs on a GPU
alone; its matchers are asked here, on graphs as its passes before it leave them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes import micro_pipeline_tp as async_tp
from torch._inductor.fx_passes.post_grad import view_to_reshape
from torch.fx import Graph, GraphModule

from scalewright.dry_run.rehearse import fake_world
from scalewright.model.init import init_box
from scalewright.parallel.parallelize import fill, parallelize
from scalewright.parallel.stages import cut_stages
from scalewright.spec.grid import make_grid
from scalewright.spec.layout import Layout
from scalewright.spec.model import ModelSpec
from scalewright.spec.placement import place

c10d = torch.ops._c10d_functional
COLLECTIVES = (c10d.all_gather_into_tensor.default, c10d.reduce_scatter_tensor.default, c10d.all_reduce.default)
SPEC = ModelSpec.parse(
    {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "context": 64,
    }
)


@dataclass
class Graphs:
    """A backend of torch.compile that keeps the graphs it is given, and runs them as they are."""

    forward: list[Graph] = field(default_factory=list)
    backward: list[Graph] = field(default_factory=list)

    def backend(self) -> Callable[..., Any]:
        """For `torch.compile(backend=...)`."""
        backend: Callable[..., Any] = aot_autograd(
            fw_compiler=_keep(self.forward), bw_compiler=_keep(self.backward), decompositions=select_decomp_table()
        )
        return backend


def _keep(graphs: list[Graph]) -> Callable[..., Any]:
    def compiler(module: GraphModule, _: Any) -> Any:
        view_to_reshape(module)
        graphs.append(module.graph)
        return module.forward

    return compiler


def fusable(graph: Graph) -> tuple[int, int]:
    """Collectives of a graph that would be fused with matrix products, and all that there are."""
    gathers = [
        gather
        for gather in async_tp.find_all_gather_patterns(graph)
        if any(
            gather.res_node not in product.arg_ancestor_nodes
            for product in async_tp._find_consumer_matmuls(gather.res_node)
        )
    ]
    scatters = [
        scatter
        for scatter in async_tp.find_reduce_scatter_patterns(graph)
        if async_tp._find_producer_matmul(scatter.input_node) is not None
    ]
    return len(gathers) + len(scatters), sum(node.target in COLLECTIVES for node in graph.nodes)


def block_graphs(**changes: Any) -> Graphs:
    """The graphs of a block's forward and backward, of one of four ranks of `tp`; `changes`: the layout's."""
    layout = Layout.parse({"devices": 4, "tp": 4, "zero_stage": 0, **changes})
    graphs = Graphs()
    torch._dynamo.reset()
    with fake_world(make_grid(layout, SPEC.kv_heads), 1) as mesh:
        with torch.device("meta"):
            model = cut_stages(SPEC, layout, 0)
        backend: Any = graphs.backend()  # by name, or the thing itself
        parallel = parallelize(
            model, place(SPEC, layout), layout, mesh, bf16=False, compile_blocks=True, backend=backend
        )
        fill(parallel.weights, lambda t, box: init_box(t, SPEC, 0, *box))
        parallel.gradients.begin(0, last=True)
        parallel.model(torch.zeros((2, 16), dtype=torch.int64)).sum().backward()
    torch._dynamo.reset()
    return graphs
