"""Families of devices: generations with similar kernels, and the constants with which each is priced.

    device --family: ada--> Family --kernels--> hopper, whose rows of plan/data/constants.yaml price it

A family without constants of its own is priced with those of the family in `like`. Formulas depend on the
traits here, never on a family's name or place in a list.
"""

from __future__ import annotations

from dataclasses import dataclass

from scalewright.spec.errors import UserError


@dataclass(frozen=True)
class Family:
    """A generation; traits that explain a constant are those of the family whose constants price it."""

    name: str
    like: str | None = None  # the family whose constants it is priced with; null: its own
    # its `attention` was measured with kernels that use instructions which FlashAttention-2 doesn't
    # (Shah et al. 2024; cuDNN): FlashAttention-2 has `kernel.flash2_hopper` of it
    newer_attention: bool = False
    # its 16-bit matmuls are bound by power, so that 8 bits gain more (`narrow.blackwell8`)
    bound_by_power: bool = False
    # twice the exponentials a clock of the family that it is like: attention gains `kernel.exponentials`
    fast_exponentials: bool = False

    @property
    def kernels(self) -> Family:
        """The family whose constants price it."""
        return FAMILIES[self.like] if self.like else self


_RECORDS = (
    Family("pascal", like="volta"),
    Family("volta"),
    Family("turing", like="volta"),
    Family("ampere"),
    Family("ada", like="hopper"),
    Family("hopper", newer_attention=True),
    Family("blackwell", newer_attention=True, bound_by_power=True),
    Family("blackwell-ultra", like="blackwell", fast_exponentials=True),
    Family("rubin", like="blackwell"),
    Family("tpu"),
    Family("amd"),
    Family("trainium", like="other"),
    Family("gaudi", like="other"),
    Family("apple", like="other"),
    Family("other"),
)
FAMILIES = {family.name: family for family in _RECORDS}
OTHER = FAMILIES["other"]  # of a device without a family
PRICED = tuple(family.name for family in FAMILIES.values() if family.like is None)  # have constants


def find_family(name: str, where: str = "family") -> Family:
    """The family of that name; raises UserError with all names."""
    if name not in FAMILIES:
        raise UserError(f"unknown device family '{name}'", where, "use one of " + ", ".join(FAMILIES))
    return FAMILIES[name]
