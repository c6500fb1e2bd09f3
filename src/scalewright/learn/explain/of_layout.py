"""Quantities of a run's batch and layout: tokens, sizes of the mesh, what a rank holds and moves."""

from __future__ import annotations

from functools import cached_property

from scalewright.learn.explain.of_model import ModelQuantities


class LayoutQuantities(ModelQuantities):
    """What a rank has to do, whatever device it is."""

    @property
    def seq_len(self) -> int:
        return self.question.seq_len

    @property
    def micro_batch(self) -> int:
        return self.layout.micro_batch

    @property
    def global_batch(self) -> int:
        return self.layout.global_batch

    @property
    def micro_batches(self) -> int:
        """Of one rank and step."""
        return self.layout.accumulation

    @property
    def micro_tokens(self) -> int:
        """Of one micro-batch on one rank."""
        return self.micro_batch * self.seq_len // self.layout.cp

    @property
    def step_tokens(self) -> int:
        return self.global_batch * self.seq_len

    @property
    def devices(self) -> int:
        return self.layout.devices

    @property
    def tp(self) -> int:
        return self.layout.tp

    @property
    def pp(self) -> int:
        return self.layout.pp

    @property
    def cp(self) -> int:
        return self.layout.cp

    @property
    def ep(self) -> int:
        return self.layout.ep

    @property
    def dp(self) -> int:
        return self.layout.dp

    @property
    def dp_shard(self) -> int:
        return self.layout.dp_shard

    @property
    def model_parallel(self) -> int:
        return self.tp * self.pp

    @property
    def rank_parameters(self) -> float:
        """A rank's parameters before ZeRO: those of its part of the model."""
        return self.parameters / self.model_parallel

    @property
    def rank_weight_bytes(self) -> float:
        """Of those in 16 bits."""
        return 2 * self.rank_parameters

    @property
    def rank_fp32_bytes(self) -> float:
        """Of those in 32 bits."""
        return 4 * self.rank_parameters

    @property
    def shard_optimizer_bytes(self) -> float:
        """Of master weights and moments on a device, 12 a parameter."""
        return 12 * self.rank_parameters / (self.dp if self.zero_stage else 1)

    @property
    def shard_checkpoint_bytes(self) -> float:
        """A device's share of a checkpoint."""
        return self.checkpoint_bytes / self.devices

    @property
    def width_of_rank(self) -> int:
        """Columns of an MLP on a tensor-parallel rank."""
        return self.width // self.tp

    @property
    def stream_bytes(self) -> int:
        """Of the residual stream of a micro-batch in 16 bits."""
        return 2 * self.micro_tokens * self.hidden

    @property
    def mlp_numbers(self) -> int:
        """Inside an MLP, of a micro-batch on a rank."""
        return self.micro_tokens * self.width // self.tp

    @property
    def logits(self) -> int:
        """Of a micro-batch on a rank."""
        return self.micro_tokens * self.vocabulary // self.tp

    @property
    def routed_tokens(self) -> int | None:
        """Rows that experts take of a micro-batch."""
        return self.micro_tokens * self.top_k if self.top_k else None

    @property
    def stream_numbers(self) -> int:
        return self.micro_tokens * self.hidden

    @property
    def block_forward_flops(self) -> float:
        """Of a micro-batch on a rank, attention's scores left out."""
        return 2.0 * self.block_parameters * self.micro_tokens / self.tp

    @property
    def kv_width(self) -> int:
        """Numbers of a token's keys in a layer."""
        return self.kv_heads * self.head_dim

    @property
    def axes(self) -> dict[str, int]:
        """The mesh, outermost first."""
        names = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
        return {name: getattr(self.layout, name) for name in names}

    @cached_property
    def stage_weights(self) -> list[float]:
        """Parameters of each pipeline stage."""
        from scalewright.spec.placement import place

        sizes = [0.0] * self.pp
        for placement in place(self.model, self.layout):
            for stage in placement.stages:
                sizes[stage % self.pp] += placement.tensor.size
        return sizes

    @property
    def zero_stage(self) -> int:
        return self.layout.zero_stage

    @property
    def schedule(self) -> str:
        return self.layout.schedule

    @property
    def virtual_stages(self) -> int:
        return self.layout.virtual_stages

    @property
    def chunks(self) -> int:
        """Stages of a rank, two at least: of an interleaved schedule."""
        return max(2, self.virtual_stages)

    @property
    def per_node(self) -> int:
        return min(self.cluster.devices_per_node, self.devices)

    @property
    def cluster_per_node(self) -> int:
        return self.cluster.devices_per_node

    @property
    def nodes(self) -> int:
        return -(-self.devices // self.cluster.devices_per_node)

    @property
    def block_bytes(self) -> float:
        """Of one block's weights on a tensor-parallel rank, in 16 bits."""
        return 2 * self.block_parameters / self.tp

    @property
    def request_cache_bytes(self) -> float:
        """Of a request of the run's sequence length, in 16 bits."""
        from scalewright.learn.attention import kv_bytes

        return kv_bytes(self.model, self.seq_len)

    @property
    def prompt_bytes(self) -> int:
        """Of a text of the run's sequence length, at 4 bytes a token."""
        return 4 * self.seq_len

    @property
    def prefill_flops(self) -> float:
        """Of a prompt of the run's sequence length."""
        from scalewright.spec.flops import forward_flops

        return forward_flops(self.model, self.seq_len)
