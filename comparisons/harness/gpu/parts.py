"""The parts of the GPU check in their order, by what a second of them is worth; data alone, without torch.

A limit is what a part takes on an H100 by estimate, doubled, and at most what one visit of nine minutes can
give; `least` is the time below which it isn't worth starting. A part that is cut goes on in the next visit.
"""

from __future__ import annotations

from dataclasses import dataclass

VISIT_MINUTES = 8.7  # ten less the start of a machine and the way back of the results


@dataclass(frozen=True)
class Part:
    """A name, `module:function` below harness.gpu, its seconds, and what it answers."""

    name: str
    run: str
    limit: float
    least: float
    timed: bool = True  # the ceilings are measured around it
    why: str = ""  # the limit
    answers: str = ""
    needs: tuple[str, ...] = ()  # modules without which there is nothing to do


# fmt: off
PARTS = (
    Part("tests-first", "suite:first", 150, 40, timed=False, needs=("pytest",),
         why="some 60 tests of 1 to 5 s in four processes; a compiled one takes 20 s",
         answers="do attention, its gradients, resumes, compiled blocks and offload work on a GPU?"),
    Part("steps-1b", "steps:steps_1b", 240, 60,
         why="five builds of 20 to 60 s, compiled, and five races of 10 s",
         answers="how fast is our step at Llama-3.2-1B's shape, beside plain loops, transformers and Liger?"),
    Part("attention", "attention:attention", 60, 15,
         why="24 cases of 1 s, and a compile",
         answers="which backend does torch pick, and how fast is each?"),
    Part("gemm", "gemm:gemm", 60, 10,
         why="50 shapes of 0.3 s",
         answers="matmul rates at four models' shapes, forward and both gradients"),
    Part("memory", "memory:memory", 30, 10,
         why="ten passes of 0.4 s, and 2 GiB of pinned memory",
         answers="read, write, copy, optimizer passes, links to the host, launches of the host"),
    Part("profile", "cluster:profile", 60, 20,
         why="12 benchmarks of 0.3 s, and a search by the planner",
         answers="a cluster profile of this machine that `plan --cluster` takes"),
    Part("steps-0.5b", "steps:steps_half_b", 180, 60,
         why="four builds and races, as of 1B",
         answers="the same at Qwen2.5-0.5B's shape"),
    Part("activations", "activations:activations", 60, 15,
         why="seven variants of 3 s, initialised on the device",
         answers="what do recomputation and offload cost and save, and are gradients the same?"),
    Part("losses", "losses:losses", 90, 15,
         why="ten ways of 2 s, two of them compiled for 20 s",
         answers="head and loss at a vocabulary of 128,256: ours, compiled, in chunks, torch's own, Liger"),
    Part("optimizers", "optimizers:optimizers", 40, 10,
         why="six updates of 3 s",
         answers="what each optimizer's update takes, beside its bytes"),
    Part("fp8", "eight_bit:fp8", 30, 10,
         why="nine products of 1 s",
         answers="fp8 matmuls, one scale a tensor, a row, a block"),
    Part("peaks", "peaks:peaks", 150, 30, timed=False,
         why="six runs of 12 s, each beside a dry run on the CPU",
         answers="is a run's peak memory the dry run's, and the plan's?"),
    Part("traces", "traces:traces", 150, 40, timed=False,
         why="four runs of 15 s with a profiler, each diagnosed on the CPU",
         answers="does `diagnose` find faults planted in our own traces from a GPU?"),
    Part("steps-3b", "steps:steps_3b", 240, 80,
         why="three builds of 40 s, one at a time",
         answers="the same at Llama-3.2-3B's shape"),
    Part("steps-8b", "steps:steps_8b", 240, 80,
         why="three builds of 50 s, one at a time",
         answers="the same at Llama-3.1-8B's shape"),
    Part("mask-trap", "attention:mask_trap", 20, 5, timed=False,
         why="five backends of 1 s",
         answers="are gradients finite where masked attention was reported to give NaN?"),
    Part("tests-rest", "suite:rest", 500, 30, timed=False, needs=("pytest",),
         why="some 230 tests of 1 s, and what compiles 20 s, in four processes",
         answers="do all tests with a GPU parameter pass?"),
)
# fmt: on
NAMES = tuple(part.name for part in PARTS)


def find(name: str) -> Part:
    """The part of that name."""
    return next(part for part in PARTS if part.name == name)
