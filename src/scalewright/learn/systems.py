"""Small arithmetic of machines and runs: lines, switches, files, steps.

line         bytes x 8 / (bits/s) + delay               network lines are sold in bits
leaves       ceil(hosts / (ports / 2))                  a fat tree's lowest switches: half of their ports go up
mesh         n (n - 1) / 2                              connections of n processes that all know each other
pass@k       1 - C(n - c, k) / C(n, k)                  c of n tries right (Chen et al. 2021, arXiv 2107.03374 §2.1)
"""

from __future__ import annotations

from math import ceil, comb


def each(total: float, parts: float) -> float:
    """What each of `parts` has."""
    return total / parts


def together(one: float, count: float) -> float:
    """What `count` have together."""
    return one * count


def ratio(value: float, other: float) -> float:
    """How many times the other a value is."""
    return value / other


def seconds_at(size: float, rate: float) -> float:
    """Seconds of `size` bytes at `rate` bytes/s, or of FLOPs at FLOP/s."""
    return size / rate


def transfer_seconds(size: float, bits_per_s: float, delay: float = 0.0) -> float:
    """Seconds of `size` bytes over a line, one way."""
    return size * 8 / bits_per_s + delay


def leaf_switches(hosts: int, ports: int) -> int:
    """Leaf switches of a fat tree without oversubscription."""
    return ceil(hosts / (ports // 2))


def connections(processes: int) -> int:
    """Pairs of processes."""
    return comb(processes, 2)


def token_bytes(tokens: float, vocabulary: int) -> float:
    """Bytes of tokens on disk: 2 each where the vocabulary fits 16 bits, else 4."""
    return tokens * (2 if vocabulary <= 1 << 16 else 4)


def steps(tokens: float, step_tokens: float) -> int:
    """Steps until so many tokens were seen."""
    return ceil(tokens / step_tokens)


def checkpoint_bytes(parameters: float, weights: float = 4.0, optimizer: float = 8.0) -> float:
    """Bytes of a checkpoint with all that a run needs to go on: master weights and Adam's two moments."""
    return parameters * (weights + optimizer)


def epochs(tokens: float, unique: float) -> float:
    """How often each token is seen."""
    return tokens / unique


def pass_at_k(tries: int, right: int, k: int) -> float:
    """The chance that one of k tries is right, estimated from `right` of `tries`."""
    return 1 - comb(tries - right, k) / comb(tries, k)


def low_rank_share(rows: int, columns: int, rank: int) -> float:
    """Numbers of two factors of this rank over those of their matrix (Vogels et al. 2019)."""
    return rank * (rows + columns) / (rows * columns)


def mode_after(mode: int, umask: int) -> int:
    """The rights of a new file: those that it asks for, less the mask's."""
    return mode & ~umask
