"""PowerSGD's error and Q through a checkpoint: each rank's own, of the layout that wrote them.

    same ranks, same parts     every rank reads what it wrote: the run goes on bit for bit
    another layout             no error, and the first Q; the run's events tell of it

A rank's error belongs to the samples that it saw and to the parts that it holds. Beginning without one loses
less than a step's gradient, once.
"""

from __future__ import annotations

from scalewright.checkpoint.read import CheckpointReader
from scalewright.parallel.mesh import Mesh
from scalewright.parallel.power_sgd import PowerSGD
from scalewright.spec.compress import rank_of
from scalewright.spec.run import RunSpec

# Keys of a layout that decide which parts and samples a rank has
_DECIDE = (
    "devices", "tp", "sp", "pp", "virtual_stages", "schedule", "stage_layers", "cp", "ep", "etp",
    "dp_replicate", "zero_stage",
)  # fmt: skip
COMPRESS = "compress"  # in state.json: the rank of the factors


def compression_entry(run: RunSpec) -> dict[str, object]:
    """What state.json holds of it."""
    rank = rank_of(run.train.compress)
    return {COMPRESS: {"rank": rank}} if rank else {}


def restore_compression(
    compression: PowerSGD, reader: CheckpointReader, run: RunSpec, mesh: Mesh, steps: int
) -> list[str]:
    """Brings error and Q back, or begins without; `steps` that the run has behind it. Notes for the user."""
    compression.begin_anew(steps)
    saved = reader.state.get(COMPRESS)
    if saved is None:
        return ["the checkpoint has no error of powersgd: it begins at zero"] if steps else []
    if saved != {"rank": rank_of(run.train.compress)}:
        return [f"powersgd's rank was {saved['rank']} in the checkpoint: its error begins at zero"]
    now = run.layout.dump()
    changed = [key for key in _DECIDE if reader.manifest.layout.get(key) != now[key]]
    if changed:
        keys = ", ".join(f"layout.{key}" for key in changed)
        return [f"powersgd's error is of another layout ({keys} changed): it begins at zero"]
    for name, tensor in compression.state().items():
        stored = reader.read_of_rank(f"{COMPRESS}/{name}", mesh.rank)
        if stored is not None:
            tensor.copy_(stored)
    return []
