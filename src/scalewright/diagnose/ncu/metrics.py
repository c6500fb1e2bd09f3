"""The metrics of Nsight Compute that are used, by all their names, as data.

    here          raw page (--page raw)                                  details page
    compute_pct   sm__throughput.avg.pct_of_peak_sustained_elapsed       Compute (SM) Throughput
    time_s        gpu__time_duration.sum                                 Duration

A metric has one kind of unit; values are turned into seconds, bytes per second, percent or numbers.
"""

from __future__ import annotations

METRICS: dict[str, tuple[str, ...]] = {
    "time_s": ("gpu__time_duration.sum", "gpu__time_duration.avg", "Duration"),
    "compute_pct": ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "Compute (SM) Throughput",
                    "SM Throughput", "SOL SM", "SM [%]"),
    "memory_pct": ("gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed", "Memory Throughput",
                   "SOL Memory", "Memory [%]"),
    "dram_pct": ("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
                 "dram__throughput.avg.pct_of_peak_sustained_elapsed", "DRAM Throughput"),
    "l2_pct": ("lts__throughput.avg.pct_of_peak_sustained_elapsed", "L2 Cache Throughput"),
    "l1_pct": ("l1tex__throughput.avg.pct_of_peak_sustained_active", "L1/TEX Cache Throughput"),
    "tensor_pct": ("sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
                   "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
                   "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active"),
    "dram_bytes_per_s": ("dram__bytes.sum.per_second", "Memory Throughput"),
    "occupancy_pct": ("sm__warps_active.avg.pct_of_peak_sustained_active", "Achieved Occupancy"),
    "theoretical_occupancy_pct": ("sm__maximum_warps_per_active_cycle_pct", "Theoretical Occupancy"),
    "waves": ("launch__waves_per_multiprocessor", "Waves Per SM"),
    "registers": ("launch__registers_per_thread", "Registers Per Thread"),
    "limit_registers": ("launch__occupancy_limit_registers", "Block Limit Registers"),
    "limit_shared_memory": ("launch__occupancy_limit_shared_mem", "Block Limit Shared Mem"),
    "limit_warps": ("launch__occupancy_limit_warps", "Block Limit Warps"),
    "limit_blocks": ("launch__occupancy_limit_blocks", "Block Limit SM"),
}  # fmt: skip
BY_NAME: dict[str, tuple[str, ...]] = {
    name: tuple(metric for metric, names in METRICS.items() if name in names)
    for names in METRICS.values()
    for name in names
}
PREFIX = {
    "n": 1e-9,
    "u": 1e-6,
    "µ": 1e-6,
    "m": 1e-3,
    "": 1.0,
    "k": 1e3,
    "K": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
}
SECONDS = ("seconds", "second", "sec", "s")
BYTES_PER_SECOND = ("byte/second", "byte/s", "B/s")


def scaled(metric: str, value: float, unit: str) -> float | None:
    """The value in this metric's own unit; None where the unit is of another kind."""
    if metric.endswith("_per_s"):
        return _by_prefix(value, unit, BYTES_PER_SECOND)
    if metric.endswith("_s"):
        return _by_prefix(value, unit, SECONDS)
    if metric.endswith("_pct"):
        return value if unit in ("%", "") else None
    return value


def _by_prefix(value: float, unit: str, bases: tuple[str, ...]) -> float | None:
    for base in bases:
        if unit.endswith(base):
            factor = PREFIX.get(unit[: -len(base)])
            return None if factor is None else value * factor
    return None
