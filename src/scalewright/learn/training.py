"""Training numbers from a model's operators, where the rules of `laws.py` have only N.

    FLOPs of a step     batch x (3 forwards + what recomputation adds)      spec/operators.py
    reached             FLOPs / (seconds x devices)                         HFU when recomputation is counted

`seq_len` T is in tokens; FLOPs count attention over the full square unless `causal`. A pipeline's bubble is

    over the ideal   idle / busy            Narayanan et al. 2021; Hugging Face's playbook
    of the step      idle / (idle + busy)   Huang et al. 2019, Qi et al. 2023: `spec.schedule.bubble_fraction`

p ranks, m micro-batches, v chunks a rank. Times, and the activations alive, are `spec.schedule`'s, by its actions.
"""

from __future__ import annotations

from dataclasses import dataclass

from scalewright.learn import laws
from scalewright.spec.flops import flops_per_token, forward_flops, recompute_flops
from scalewright.spec.layout import Layout, Recompute
from scalewright.spec.model import ModelSpec
from scalewright.spec.operators import operator_groups
from scalewright.spec.schedule import bubble_fraction, busy_time, idle_time, peak_activations, schedule
from scalewright.spec.tensors import count, tensors


def step_flops(
    model: ModelSpec, seq_len: int, sequences: int = 1, recompute: Recompute = "none", causal: bool = False
) -> float:
    """FLOPs of one optimizer step on all devices, recomputation included.

    For a GPT under full recomputation: 96 B s l h² (1 + s / 6h + V / 16 l h) (Narayanan et al. 2021, eq. 3).
    """
    again = recompute_flops(model, Layout(), seq_len, causal=causal, recompute=recompute)
    return sequences * (seq_len * flops_per_token(model, seq_len, causal) + again)


def achieved_flops_per_s(
    model: ModelSpec,
    seq_len: int,
    sequences: int,
    seconds: float,
    devices: int,
    recompute: Recompute = "none",
    causal: bool = False,
) -> float:
    """FLOP/s that every device reached in a step of `seconds`, as Megatron's papers report it."""
    return laws.flops_per_s(step_flops(model, seq_len, sequences, recompute, causal), seconds, devices)


def model_mfu(
    model: ModelSpec, seq_len: int, tokens_per_s: float, peak: float, devices: int = 1, causal: bool = False
) -> float:
    """MFU of a throughput, by the model's own operators: an input embedding is no FLOPs, a head is."""
    return laws.utilization(tokens_per_s * flops_per_token(model, seq_len, causal), 1.0, peak, devices)


def attention_share(model: ModelSpec, seq_len: int, causal: bool = False) -> float:
    """The share of a model's FLOPs that attention's two products are: for GPT (s/6h) / (1 + s/6h + V/12hL).

    Korthikanti et al. 2022 §5 give it as the price of selective recomputation. The recomputed part is the
    forward of these products alone, a third of it; `spec.operators.recompute_flops` counts that.
    """
    cores = [(o, n) for o, n in operator_groups(model, Layout(), seq_len) if o.kind == "attention"]
    core = sum(n * (o.flops_causal if causal else o.flops) for o, n in cores)
    return core / forward_flops(model, seq_len, causal)


def attention_crossover(model: ModelSpec) -> float:
    """Tokens of a sequence above which a block's attention is more FLOPs than all its other products.

    Full square, head left out. With F = 4 D in three matrices and as many KV as query heads it is 8 D
    (scaling book, part 4).
    """
    seq_len = 1024  # attention grows with the square of any, the rest with its length
    blocks = [(o, n) for o, n in operator_groups(model, Layout(), seq_len) if 0 <= o.layer < model.num_hidden_layers]
    core = sum(n * o.flops for o, n in blocks if o.kind == "attention")
    rest = sum(n * o.flops for o, n in blocks if o.kind != "attention")
    return seq_len * rest / core


def flash_attention_flops(
    batch: int, seq_len: int, heads: int, head_dim: int, causal: bool = True, phase: str = "forward"
) -> float:
    """FLOPs of attention as flash-attention's benchmark counts them: 4 b s² h d, half of it when causal.

    The backward has five products for the forward's two, one of them the scores again: 2.5 times as many.
    `phase`: forward, backward or both.
    """
    forward = 4.0 * batch * seq_len**2 * heads * head_dim / (2 if causal else 1)
    return forward * {"forward": 1.0, "backward": 2.5, "both": 3.5}[phase]


def chinchilla_ratio(model: ModelSpec, seq_len: int) -> float:
    """FLOPs by Chinchilla's appendix F over 6 N D, as its table A4 prints them.

    The numerator leaves out embedding and logits (though the text counts them) and adds 3 a T² of softmax to
    a layer; N has one vocabulary matrix, and a fifth d² in attention for relative positions.
    """
    blocks = [(o, n) for o, n in operator_groups(model, Layout(), seq_len) if 0 <= o.layer < model.num_hidden_layers]
    softmax = 3 * model.num_attention_heads * seq_len**2 * model.num_hidden_layers
    forward = sum(n * o.flops for o, n in blocks) + softmax
    parameters = count(model).total + model.num_hidden_layers * model.hidden_size**2
    return 3 * forward / laws.training_flops(parameters, seq_len)


@dataclass(frozen=True)
class Parts:
    """Parameters of a model by what they are in."""

    attention: int
    mlp: int
    vocabulary: int  # embedding, and the head where it is stored apart
    norms: int  # and what else there is
    total: int

    @property
    def matrices(self) -> int:
        """Without norms, as textbooks count."""
        return self.attention + self.mlp + self.vocabulary

    @property
    def bf16_bytes(self) -> int:
        """Bytes of all weights in 16 bits."""
        return 2 * self.total

    @property
    def fp32_bytes(self) -> int:
        """Bytes of all weights in 32 bits."""
        return 4 * self.total


def parameter_parts(model: ModelSpec) -> Parts:
    """A model's parameters by part; sums over `spec.tensors`."""
    sizes = {"attention": 0, "mlp": 0, "vocabulary": 0, "norms": 0}
    for tensor in tensors(model):
        owner = tensor.name.split(".")
        if tensor.role in ("embedding", "head"):
            sizes["vocabulary"] += tensor.size
        elif tensor.layer in range(model.num_hidden_layers) and owner[2] in ("attention", "mlp"):
            sizes[owner[2]] += tensor.size
        else:
            sizes["norms"] += tensor.size
    return Parts(**sizes, total=sum(sizes.values()))


# Waits as a share of 1F1B's, in the table of the zero-bubble papers' code (sail-sg/zero-bubble): Qi et al.
# 2023 for ZB-H1 (ZB1P) and ZB-H2 (ZB2P), Qi et al. 2024 for the V schedules with controlled memory.
OF_1F1B = {"1f1b": 1.0, "zb1p": 1 / 3, "zb2p": 0.0, "zbv": 0.0, "v-half": 1 / 2, "v-min": 2 / 3}


def bubble_over_ideal(kind: str, ranks: int, micro_batches: int, chunks: int = 1) -> float:
    """Time that a rank waits over the time that it computes, by the schedule itself."""
    return idle_time(kind, ranks, chunks, micro_batches) / busy_time(kind, ranks, chunks, micro_batches)


def megatron_bubble(ranks: int, micro_batches: int, chunks: int = 1) -> float:
    """(p-1) / (v m) of the ideal, as Narayanan et al. 2021 §2.2 print it for m a multiple of p.

    With fewer micro-batches than ranks and several chunks a rank waits longer than this: its own next chunk
    isn't there yet (`bubble_over_ideal` gives how long).
    """
    kind = "interleaved" if chunks > 1 else "1f1b"
    return idle_time(kind, ranks, chunks, ranks) / busy_time(kind, ranks, chunks, micro_batches)


def zero_bubble_rate(kind: str, ranks: int, micro_batches: int) -> float:
    """Waits as a share of 1F1B's step, by the rule of thumb of the zero-bubble papers' table; see OF_1F1B."""
    return OF_1F1B[kind] * bubble_fraction("1f1b", ranks, 1, micro_batches)


def interleaved_activation_factor(ranks: int, chunks: int) -> float:
    """Activations on the first rank of interleaved 1F1B over those of plain 1F1B: 1 + (p-1) / (p v).

    Narayanan et al. 2021 §2.2.2, Korthikanti et al. 2022 §4.2.3; counted from the two schedules' actions.
    """
    micros = 2 * ranks  # more change nothing: the warm-up is over
    plain = peak_activations(schedule("1f1b", ranks, 1, micros))[0]
    return peak_activations(schedule("interleaved", ranks, chunks, micros))[0] / chunks / plain


def parameter_copies(kind: str, ranks: int, chunks: int, micro_batches: int) -> float:
    """Copies of each parameter over the whole pipeline; DualPipe keeps two, for its two ways."""
    plan = schedule(kind, ranks, chunks, micro_batches)
    return len(plan.rank_of) / plan.model_stages


def peak_micro_batches(kind: str, ranks: int, chunks: int, micro_batches: int) -> float:
    """The most micro-batches whose activations a rank holds, each as a whole rank's share of the model."""
    plan = schedule(kind, ranks, chunks, micro_batches)
    return max(peak_activations(plan)) * ranks / plan.model_stages
