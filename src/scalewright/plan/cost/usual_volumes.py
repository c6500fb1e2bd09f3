"""What trainers in general send in a step: the tensors that their techniques' papers exchange, by habits.

gradient, fsdp   ZeRO 0: all-reduce of gradients                          (Li et al. 2020)
                 1, 2: reduce-scatter, and a gather of parameters         (Rajbhandari et al. 2020 §7.1)
                 3, FSDP: two gathers and a reduce-scatter a micro-batch  (§7.2; Zhao et al. 2023 §3.2),
                 or once a step where a pipeline keeps parameters gathered (Dubey et al. 2024 §3.3.2)
expert, efsdp    the same of experts' parameters, which fewer ranks share
tp               two all-reduces of the residual stream a block and pass, or as many gathers and scatters
                 (Shoeybi et al. 2019 §3; Korthikanti et al. 2022 §4.2.2); one where attention and MLP run
                 side by side
pp, tie          a message over every border of stages; a tied head's gradient
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from scalewright.plan.cost.columns import Columns, PipelineRank
from scalewright.plan.cost.links import message_bytes
from scalewright.spec.volumes import Collective, During, Transfer


def data_parallel(at: Columns) -> Iterator[Transfer]:
    """Of the fullest rank: dense parameters over their group, experts' over theirs; and between replicas."""
    t = at.table
    yield from _shared(at, "dense", at.dense)
    if at.expert.any():
        yield from _shared(at, "expert", at.expert)
    part = at.dense * at.trainer.grads / np.maximum(at.shard, 1)
    across = 1.0 * ((t.zero_stage >= 3) & (t.dp_replicate > 1))
    yield Transfer("dp_replicate", "all_reduce", part, across * ~at.islands, "nothing")


def numbers(at: Columns) -> np.ndarray:
    """The numbers that the fullest rank holds of its tensors."""
    shards = np.where(at.table.zero_stage >= 1, np.maximum(at.shard, 1.0), 1.0)
    return np.asarray((at.dense + at.expert) / shards)


def _shared(at: Columns, what: str, elements: np.ndarray) -> Iterator[Transfer]:
    """Gradients and parameters of either sort."""
    t = at.table
    grads, weights = elements * at.trainer.grads, elements * at.trainer.weight_bytes
    three = t.zero_stage >= 3
    pieces = np.where(three, np.maximum(at.fullest, 1.0), 1.0)
    pieces = np.where(~three & (at.trainer.by_block > 0), at.fullest, pieces)
    grads, weights = grads / np.maximum(pieces, 1.0), weights / np.maximum(pieces, 1.0)
    # FSDP in a pipeline, and ZeRO 2, reduce once a step, but this package's own after every micro-batch
    rounds = np.where((t.pp > 1) & ~at.own, 1.0, t.accumulation)
    sums, shared = pieces * (at.summing > 1) * ~three, pieces * (at.shard > 1) * three * rounds
    times = np.where(at.own & (t.zero_stage == 2), t.accumulation, 1.0)
    if what == "expert":  # ranks that share an expert: none, where each has its own
        several = at.summing * t.tp > t.ep * t.etp
        sums, shared = sums * several, shared * several
    axis = "gradient" if what == "dense" else "expert"
    yield Transfer(axis, "all_reduce", grads, sums * (t.zero_stage == 0), "backward")
    yield Transfer(axis, "reduce_scatter", grads, sums * (t.zero_stage > 0) * times, "backward", times)
    yield Transfer(axis, "all_gather", weights, sums * (t.zero_stage > 0), "forward")
    axis = "fsdp" if what == "dense" else "expert"
    yield Transfer(axis, "all_gather", weights, 2 * shared, "all", rounds)
    yield Transfer(axis, "reduce_scatter", grads, shared, "all", rounds)


def tensor_parallel(at: Columns, place: PipelineRank) -> Iterator[Transfer]:
    """Sums of the residual stream, forward, backward and in what runs again."""
    t, sparse = at.table, at.work.sparse
    calls = (at.work.exchanges + sparse * (t.etp > 1)) * place.blocks * t.accumulation * (t.tp > 1)
    whole, parts = 1.0 * (t.sp <= 0), 1.0 * (t.sp > 0)
    kinds: dict[Collective, np.ndarray] = {"all_reduce": whole, "all_gather": parts, "reduce_scatter": parts}
    phases: dict[During, np.ndarray | float] = {"forward": 1.0, "backward": 1.0, "recompute": at.rerun}
    for kind, used in kinds.items():
        for during, share in phases.items():
            yield Transfer("tp", kind, at.work.stream, calls * used * share, during, t.accumulation)
    kept = at.rerun * place.blocks * t.accumulation * (t.tp > 1) * (t.sp <= 0) * (at.trainer.partitions > 0)
    yield Transfer("tp", "all_gather", at.work.stream, kept, "recompute", t.accumulation)


def borders(at: Columns, place: PipelineRank) -> np.ndarray:
    """Borders of a rank's stages with another rank's: as many messages leave and arrive a micro-batch."""
    t = at.table
    fold = 4.0 - 2 * (place.rank == 0) - 2 * (place.rank == t.pp - 1)
    v_shaped = t.schedules("folded") & ~t.schedules("both_ways")
    return np.where(t.pp > 1, np.where(v_shaped, fold, 2 * at.visits - place.first - place.last), 0.0)


def pipeline(at: Columns, place: PipelineRank) -> Iterator[Transfer]:
    """Messages over every border; a tied head's gradient."""
    t = at.table
    piped, m = 1.0 * (t.pp > 1), t.accumulation
    crossed = borders(at, place)
    yield Transfer("pp", "send", message_bytes(at), crossed * m, "all", m)
    parts = at.trainer.pipe_engine * (t.tp > 1) * (t.sp <= 0)
    yield Transfer("tp", "all_gather", at.work.stream, parts * crossed * m, "nothing", m)
    part = at.work.tied * at.trainer.grads
    yield Transfer("tie", "all_reduce", part, piped * ~t.schedules("folded") * (part > 0), "nothing")
