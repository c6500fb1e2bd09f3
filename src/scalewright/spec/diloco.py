"""`diloco` of `run.yaml`: islands that train by themselves, and meet every `inner_steps` steps.

    inner_steps 6, fragments 3, overlap 1

    step          1     2     3     4     5     6     7     8     9    10
    sent after          0           1           2           0           1
    applied after             0           1           2           0           1

Fragment k of n is sent after the steps (k + 1) inner_steps / n, and every inner_steps from there on; it is applied
`overlap` steps later. A run's last step applies what is under way, and then synchronizes the rest at once, so that a
run that has ended is one model. All of it is a pure function of the step: a resume needs no counter.

(Douillard et al. 2023, arXiv 2311.08105, algorithm 1; fragments, overlap, mixing: Streaming DiLoCo, Douillard
et al. 2025, arXiv 2501.18512, algorithm 2. outer_lr 1 and outer_momentum 0 is LocalSGD: Stich 2019.)
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from scalewright.spec.base import Spec
from scalewright.spec.errors import UserError
from scalewright.spec.layout import Layout
from scalewright.spec.memory import offloads_optimizer, offloads_parameters

WireDtype = Literal["fp32", "bf16", "fp8", "int8"]
BLOCK = 256  # numbers that share a scale, of fp8 and int8
_WIDTH = {"fp32": 4.0, "bf16": 2.0, "fp8": 1.0 + 4 / BLOCK, "int8": 1.0 + 4 / BLOCK}


class DilocoSpec(Spec):
    """Islands along `layout.dp_replicate`, and the outer optimizer that joins them."""

    inner_steps: int = Field(50, ge=1)  # of every fragment, from one outer step to the next
    outer_lr: float = Field(0.7, gt=0, le=1e6)
    outer_momentum: float = Field(0.9, ge=0, lt=1)  # Nesterov's
    outer_dtype: WireDtype = "fp32"  # of what travels; sums, weights and momentum are fp32
    fragments: int = Field(1, ge=1)
    overlap: int = Field(0, ge=0)  # inner steps between sending a fragment and applying it
    mixing: float | None = Field(None, ge=0, lt=1)  # share of an island's own weights that stays

    @model_validator(mode="after")
    def _check(self) -> DilocoSpec:
        if self.inner_steps % self.fragments:
            how = f"use inner_steps {-(-self.inner_steps // self.fragments) * self.fragments}"
            raise UserError(f"fragments {self.fragments} does not divide inner_steps {self.inner_steps}", "diloco", how)
        if self.overlap >= self.inner_steps:
            problem = f"overlap {self.overlap} is not less than inner_steps {self.inner_steps}"
            why = "a fragment would be sent again before it is applied"
            raise UserError(f"{problem}: {why}", "diloco", f"use overlap {self.inner_steps - 1} at most")
        return self

    @property
    def kept_share(self) -> float:
        """The share of an island's own weights in what it goes on from; null: 0, with an overlap 1/2."""
        return self.mixing if self.mixing is not None else 0.5 if self.overlap else 0.0

    @property
    def narrow(self) -> bool:
        """Whether less than fp32 travels: each island then keeps what rounding took, for the next time."""
        return self.outer_dtype != "fp32"

    @property
    def wire_bytes(self) -> float:
        """Bytes of a number that travels, its share of a block's scale counted."""
        return _WIDTH[self.outer_dtype]

    @property
    def outer_bytes(self) -> int:
        """Bytes a parameter that a rank keeps, in fp32: outer weights, momentum, what rounding took."""
        return 4 * (1 + (self.outer_momentum > 0) + self.narrow)

    @property
    def update_bytes(self) -> int:
        """Bytes a parameter that an outer step reads and writes, counted in train/diloco.py: masters in a row
        8, difference 12, mean 8, norm 12, update 12, into masters 8; with momentum 32 more."""
        return 60 + 32 * (self.outer_momentum > 0)

    @property
    def under_way(self) -> int:
        """Fragments that are on their way at once while inner steps go on."""
        return min(self.fragments, -(-self.overlap * self.fragments // self.inner_steps))

    def fragment_of(self, place: int) -> int:
        """The fragment of the tensors at a place: their layer (-1: the embedding) plus one, round robin; of a
        user's own module each tensor's number."""
        return place % self.fragments

    def sent(self, step: int) -> list[int]:
        """The fragments that are sent after a step."""
        gap = self.inner_steps // self.fragments
        return [(step // gap - 1) % self.fragments] if step >= 1 and step % gap == 0 else []

    def applied(self, step: int, last: int) -> list[int]:
        """The fragments that are applied after a step of a run whose last step is `last`."""
        return list(range(self.fragments)) if step == last else self.sent(step - self.overlap)


def check_diloco(diloco: DilocoSpec | None, layout: Layout, layers: int | None) -> None:
    """Raises UserError for a layout without islands, or at odds with them; `layers`: null of a user's own module."""
    if diloco is None:
        return
    if layout.dp_replicate == 1:
        how = "set layout.dp_replicate to the number of islands, or diloco: null"
        raise UserError("diloco makes an island of every replica, and dp_replicate is 1", "diloco", how)
    if offloads_optimizer(layout) or offloads_parameters(layout):
        problem = f"offload: {layout.offload} keeps weights in host memory, and diloco joins them on devices"
        raise UserError(problem, "layout.offload", "use offload: none or activations, or diloco: null")
    if layers is not None and diloco.fragments > layers + 2:
        problem = f"fragments {diloco.fragments} is more than the model's {layers} layers, embedding and head"
        raise UserError(problem, "diloco", f"use fragments {layers + 2} at most")
