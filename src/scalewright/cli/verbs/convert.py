"""`scalewright convert SOURCE OUT`: a Hugging Face folder from a checkpoint of ours, and the way back.

A checkpoint of torchtitan, Megatron-LM, DeepSpeed or nanotron becomes one of ours.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from scalewright.cli.options import DTYPES, Json, NoVerify, argument, choice, flag, option
from scalewright.cli.output import only_answer, print, print_json, working
from scalewright.spec.common.formatting import count


def convert(
    source: Annotated[
        Path, argument("SOURCE", "A checkpoint, a run's folder, a Hugging Face folder, or another trainer's.")
    ],
    out: Annotated[Path, argument("OUT", "The folder to write.")],
    dtype: Annotated[str | None, choice("dtype", DTYPES, "Of the Hugging Face folder; default float32.")] = None,
    model: Annotated[
        str | None, option("MODEL", "Of another trainer's checkpoint that doesn't have it (torchtitan).")
    ] = None,
    no_verify: NoVerify = False,
    check: Annotated[
        bool | None,
        flag(
            "Compare logits with transformers'; default: up to 1e9 parameters, where it is installed.",
            "--check/--no-check",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Checkpoint to Hugging Face folder, or back; checkpoints of other trainers.

    What was written is read back and compared, logits of a Hugging Face folder with those of transformers.
    """
    with only_answer(json), working("converting, and reading back what was written"):
        from scalewright.checkpoint.convert import convert as convert_folder

        made = convert_folder(source, out, dtype, verify=not no_verify, model=model, check=check)
    if json:
        print_json(made.dump())
        return
    kind = "Hugging Face folder" if made.kind == "huggingface" else "checkpoint"
    parameters = f"{count(made.parameters)} parameters in {made.dtype}"
    print(f"{made.out}: {kind} of {made.model}, {parameters}")
    print(f"{made.tensors_checked} tensors read back, all equal")
    if made.compared:
        print(made.compared)
