"""A pipeline's bubble as each paper divides it, and what its schedule keeps in memory.

    over the ideal   idle / busy            Narayanan et al. 2021; Hugging Face's playbook
    of the step      idle / (idle + busy)   Huang et al. 2019, Qi et al. 2023: `spec.schedule.bubble_fraction`

p ranks, m micro-batches, v chunks a rank. Idle and busy times, and how many activations are alive, are
`spec.schedule`'s, by the order of the actions.
"""

from __future__ import annotations

from scalewright.spec.schedule import bubble_fraction, busy_time, idle_time, peak_activations, schedule

# Waits as a share of 1F1B's, in the table of the zero-bubble papers' code (sail-sg/zero-bubble): Qi et al.
# 2023 for ZB-H1 (ZB1P) and ZB-H2 (ZB2P), Qi et al. 2024 for the V schedules with controlled memory.
OF_1F1B = {"1f1b": 1.0, "zb1p": 1 / 3, "zb2p": 0.0, "zbv": 0.0, "v-half": 1 / 2, "v-min": 2 / 3}


def bubble_over_ideal(kind: str, ranks: int, micro_batches: int, chunks: int = 1) -> float:
    """Time that a rank waits over the time that it computes, by the schedule itself."""
    idle = idle_time(kind, ranks, chunks, micro_batches)
    return idle / busy_time(kind, ranks, chunks, micro_batches)


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
