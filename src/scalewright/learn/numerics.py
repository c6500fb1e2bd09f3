"""Number formats by their bits, and what they can't hold.

                 sign exponent mantissa    largest    smallest normal   subnormal    epsilon
    fp32          1      8       23        3.4e38        1.2e-38         1.4e-45     1.2e-7
    tf32          1      8       10        (stored in 32 bits; products are of 10 bits of mantissa)
    bf16          1      8        7        3.4e38        1.2e-38         9.2e-41     7.8e-3
    fp16          1      5       10        65,504        6.1e-5          6.0e-8      9.8e-4
    fp8 e4m3      1      4        3        448           1.6e-2          2.0e-3      0.125
    fp8 e5m2      1      5        2        57,344        6.1e-5          1.5e-5      0.25

IEEE 754; Micikevicius et al. 2022, FP8 Formats for Deep Learning (e4m3 has no infinity: its last exponent is numbers).
Rounding is to the nearest: half of epsilon, relatively, at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, log, log2


@dataclass(frozen=True)
class Format:
    """A floating-point format by its bits; `top` is its largest number where no infinity takes the last exponent."""

    exponent: int
    mantissa: int
    top: float | None = None

    @property
    def bits(self) -> int:
        """With the sign."""
        return 1 + self.exponent + self.mantissa

    @property
    def bias(self) -> int:
        return int(2 ** (self.exponent - 1)) - 1

    @property
    def epsilon(self) -> float:
        """From 1 to the next number."""
        return float(2.0**-self.mantissa)

    @property
    def largest(self) -> float:
        return self.top or (2 - self.epsilon) * 2.0**self.bias

    @property
    def smallest_normal(self) -> float:
        return float(2.0 ** (1 - self.bias))

    @property
    def smallest(self) -> float:
        """The smallest subnormal one; half of it and less becomes 0."""
        return self.smallest_normal * self.epsilon


FORMATS = {
    "fp32": Format(8, 23), "tf32": Format(8, 10), "bf16": Format(8, 7), "fp16": Format(5, 10),
    "e4m3": Format(4, 3, 448.0), "e5m2": Format(5, 2),
}  # fmt: skip


def number_format(name: str) -> Format:
    """A format by its name."""
    return FORMATS[name]


def loss_scale(largest_gradient: float, name: str = "fp16") -> float:
    """The largest power of two that keeps the largest gradient finite (Micikevicius et al. 2018 §3.2)."""
    return float(2.0 ** floor(log2(FORMATS[name].largest / largest_gradient)))


def lost_update(name: str = "bf16") -> float:
    """The relative change of a weight below which its update rounds away: half of epsilon."""
    return FORMATS[name].epsilon / 2


def sum_error(terms: float, name: str = "fp32") -> float:
    """The relative bound of a sum of `terms` numbers of one sign, one after the other: (n - 1) epsilon / 2."""
    return (terms - 1) * FORMATS[name].epsilon / 2


def tree_sum_error(terms: float, name: str = "fp32") -> float:
    """The same summed in pairs: log2 n roundings in place of n - 1 (Higham 2002 §4.2)."""
    return log2(terms) * FORMATS[name].epsilon / 2


def uniform_loss(classes: float) -> float:
    """Cross-entropy, in nats, of a guess that all classes are alike: ln V, where training begins."""
    return log(classes)


def perplexity_bits(loss: float, bytes_per_token: float) -> float:
    """Bits per byte of a loss in nats a token."""
    return loss / log(2) / bytes_per_token


def quantized_bytes(parameters: float, bits: float, group: float = 128.0, scale_bits: float = 16.0) -> float:
    """Bytes of weights in `bits`, with a scale for each `group` of them."""
    return parameters * (bits + scale_bits / group) / 8


def integer_step(bits: int) -> float:
    """The step between neighbouring values of a symmetric integer format, as a share of its largest."""
    return 1 / (2.0 ** (bits - 1) - 1)
