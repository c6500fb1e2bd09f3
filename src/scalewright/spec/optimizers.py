"""The optimizers in one table: the states that each keeps, and the bytes that its update moves.

    record        in a run file              states                 bytes a parameter that an update moves
    adamw         name: adamw                exp_avg, exp_avg_sq    28 = gradient 4, weight 8, states 16
    adamw_bf16    name: adamw_bf16           the same in 2 bytes    304, on a GPU 324: kernel by kernel
    adamw_8bit    name: adamw_8bit           the same in 1 byte     192, on a GPU 202: kernel by kernel
    muon          name: muon                 momentum_buffer        56, and what its products take
    lion          name: lion                 exp_avg                52, on a GPU 72: kernel by kernel
    momentum      name: sgd, momentum > 0    momentum_buffer        20 = gradient 4, weight 8, state 8
    sgd           name: sgd                  none                   12 = gradient 4, weight 8

Muon updates the matrices of blocks; embedding, head, norms and biases have AdamW's states then. Of states in
a byte, 256 neighbours share an fp32 scale, and tensors below 4096 numbers keep fp32. Run files (spec/run.py),
the trainer (train/optimizer.py), memory (spec/memory.py) and the planner (plan/cost/units.py) use it. Every
number but those is fp32: 4 bytes, read or written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Literal, get_args

from scalewright.spec.errors import UserError

if TYPE_CHECKING:  # a help text needs the names alone
    from scalewright.spec.tensors import TensorSpec

# in a run file and in `--optimizer`
OptimizerName = Literal["adamw", "sgd", "lion", "muon", "adamw_bf16", "adamw_8bit"]
NEWTON_SCHULZ = 5  # steps of Muon's iteration
CHUNK = 1 << 21  # numbers whose packed states are in fp32 at a time: bounds what an update takes
NAMES: tuple[str, ...] = get_args(OptimizerName)
FP32 = 4


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """The states and bytes of one optimizer, as `train` runs it; `source`: of all its numbers."""

    name: str
    written: OptimizerName  # `optimizer.name` in a run file
    states: tuple[str, ...]  # tensors of the weight's shape, as `torch.optim.Optimizer.state` names them
    outer_states: tuple[str, ...] | None = None  # of weights that are no matrices of blocks; null: the same
    width: float = FP32  # bytes of a state's number
    block: int = 0  # numbers of a state that share an fp32 scale; 0: there are none
    least: int = 0  # a tensor of fewer numbers has fp32 states
    step_bytes: int = 0  # of each tensor's step counter
    update: int  # bytes per parameter that an update reads and writes
    flag: int = 0  # additional ones where a flag on the device may skip the update (train/step.py)
    scratch: int = 0  # bytes per parameter (with outer_states: of a matrix) that an update makes and frees
    at_once: int = 0  # parameters for which that is made at a time; 0: all of a rank's
    source: str

    @property
    def shown(self) -> str:
        """As an answer names it: a run file's word, or a user's own by its import path."""
        return self.name if ":" in self.name else self.written

    @property
    def packed(self) -> bool:
        """Whether states take less than fp32's 4 bytes."""
        return self.width < FP32

    @property
    def each(self) -> float:
        """Bytes of the states of a parameter, in a large tensor (a matrix of a block)."""
        return len(self.states) * (self.width + (FP32 / self.block if self.block else 0))

    def state_bytes(self, tensor: TensorSpec, elements: int) -> int:
        """Bytes of all states of a tensor, of which a rank holds so many numbers."""
        if self.outer_states is not None and not is_matrix(tensor):
            return FP32 * len(self.outer_states) * elements + self.step_bytes
        counter = self.step_bytes if self.outer_states is None else 0
        if prod(tensor.shape) < self.least:
            return FP32 * len(self.states) * elements + counter
        scales = -(-elements // self.block) if self.block else 0
        return int(len(self.states) * (self.width * elements + FP32 * scales)) + counter


_RECORDS = (
    Optimizer(
        name="adamw", written="adamw", states=("exp_avg", "exp_avg_sq"), step_bytes=4, update=28,
        source="Loshchilov & Hutter 2019, algorithm 2; torch.optim.AdamW(fused=True): one kernel reads the "
        "gradient, reads and writes the weight and both moments; an fp32 a tensor counts its steps",
    ),
    Optimizer(
        name="adamw_bf16", written="adamw_bf16", states=("exp_avg", "exp_avg_sq"), width=2, step_bytes=4,
        update=304, flag=20, scratch=20, at_once=CHUNK,
        source="Loshchilov & Hutter 2019; stochastic rounding: Gupta et al. 2015, arXiv 1502.02551, eq. 1; "
        "counted in train/packed_adamw.py and rounding.py: unpacking 12, the update 96, noise 120, rounding "
        "76; the flag selects states (12) and the update (8)",
    ),
    Optimizer(
        name="adamw_8bit", written="adamw_8bit", states=("exp_avg", "exp_avg_sq"), width=1, block=256, least=4096,
        step_bytes=4, update=192, flag=10, scratch=18, at_once=CHUNK,
        source="Dettmers et al. 2022, arXiv 2110.02861, §2: dynamic tree levels, a scale a block; blocks of "
        "256 as torchao's; counted in train/packed_adamw.py and rounding.py: unpacking 42, the update 96, "
        "packing 54; the flag selects codes (2) and the update (8)",
    ),
    Optimizer(
        name="lion", written="lion", states=("exp_avg",), update=52, flag=20, scratch=4,
        source="Chen et al. 2023, algorithm 2; counted in train/optimizer.py: decay 8, update 12, sign 8, "
        "weight 12, momentum 12; the flag replaces gradients (12) and scales updates (8), which are tensors",
    ),
    Optimizer(
        name="muon", written="muon", states=("momentum_buffer",), outer_states=("exp_avg", "exp_avg_sq"),
        step_bytes=4, update=56, flag=12, scratch=6,
        source="Liu et al. 2025, arXiv 2502.16982; counted in train/muon.py: momentum 12, Nesterov 12, "
        "decay 8, the scaled update 12, weight 12; the flag replaces gradients (12); products apart",
    ),
    Optimizer(
        name="momentum", written="sgd", states=("momentum_buffer",), update=20,
        source="torch.optim.SGD(momentum, fused=True): one kernel reads the gradient, reads and writes the "
        "weight and its buffer",
    ),
    Optimizer(
        name="sgd", written="sgd", states=(), update=12,
        source="torch.optim.SGD(fused=True): one kernel reads the gradient, reads and writes the weight",
    ),
)  # fmt: skip
OPTIMIZERS = {record.name: record for record in _RECORDS}
ADAMW = OPTIMIZERS["adamw"]  # a run's default, and the optimizer of the runs that constants are fitted on


def find_optimizer(name: str, where: str = "optimizer") -> Optimizer:
    """The record of a run file's name (`sgd`: without momentum); raises UserError with the names."""
    if name not in NAMES:
        raise UserError(f"unknown optimizer '{name}'", where, "use one of " + ", ".join(NAMES))
    return OPTIMIZERS[name]


def product_flops(shape: Sequence[int]) -> float:
    """FLOPs of Muon's products for a matrix [rows, columns] or a stack of them (Jordan et al. 2024).

    Each step has two products r x r x c and one r x r x r, r the smaller of rows and columns.
    """
    rows, columns = sorted(shape[-2:])
    return float(NEWTON_SCHULZ * prod(shape[:-2]) * (4 * rows * rows * columns + 2 * rows**3))


def is_matrix(tensor: TensorSpec) -> bool:
    """Whether Muon updates it: a matrix of a block, or a stack of experts' matrices."""
    if tensor.layer < 0 or tensor.role in ("embedding", "head"):
        return False
    return len(tensor.shape) == (3 if tensor.role.startswith("expert") else 2)
