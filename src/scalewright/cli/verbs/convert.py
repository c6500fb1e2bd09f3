"""`scalewright convert SOURCE OUT`: a Hugging Face folder from a checkpoint of ours, and the way back.

A checkpoint of torchtitan, Megatron-LM, DeepSpeed or nanotron becomes one of ours. `convert FOLDER --check` looks at a
Hugging Face folder, anybody's, and writes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from scalewright.cli.options import DTYPES, Json, NoVerify, argument, choice, flag, option
from scalewright.cli.output import only_answer, print, print_json, working
from scalewright.spec.common.formatting import count, counted
from scalewright.spec.errors import Finding, UserError, worst

MARKS = {"problem": "error", "warn": "warning", "note": "note"}


def convert(
    source: Annotated[
        Path, argument("SOURCE", "A checkpoint, a run's folder, a Hugging Face folder, or another trainer's.")
    ],
    out: Annotated[Path | None, argument("OUT", "The folder to write; with --check none is needed.")] = None,
    dtype: Annotated[str | None, choice("dtype", DTYPES, "Of the Hugging Face folder; default float32.")] = None,
    model: Annotated[
        str | None, option("MODEL", "Of another trainer's checkpoint that doesn't have it (torchtitan).")
    ] = None,
    no_verify: NoVerify = False,
    check: Annotated[
        bool | None,
        flag(
            "Compare logits with transformers'; default: up to 1e9 parameters, where it is installed. "
            "Without OUT: look at the files of a Hugging Face folder, and write nothing.",
            "--check/--no-check",
        ),
    ] = None,
    code: Annotated[bool, flag("With --check and no OUT: the folder's own code (auto_map, .py) is meant.")] = False,
    json: Json = False,
) -> None:
    """Checkpoint to Hugging Face folder, or back; checkpoints of other trainers.

    What was written is read back and compared, logits of a Hugging Face folder with those of transformers, and its
    files are checked for what engines trip over: exit code 1 for an error.

    \b
    scalewright convert runs/run my-model
    scalewright convert my-model --check
    """
    if out is None:
        _check(source, check, code, json)
        return
    with only_answer(json), working("converting, and reading back what was written"):
        from scalewright.checkpoint.convert import convert as convert_folder

        made = convert_folder(source, out, dtype, verify=not no_verify, model=model, check=check)
    if json:
        print_json(made.dump())
    else:
        kind = "Hugging Face folder" if made.kind == "huggingface" else "checkpoint"
        parameters = f"{count(made.parameters)} parameters in {made.dtype}"
        print(f"{made.out}: {kind} of {made.model}, {parameters}")
        print(f"{made.tensors_checked} tensors read back, all equal")
        if made.compared:
            print(made.compared)
        _list(made.findings)
    _stop(made.findings)


def _check(folder: Path, check: bool | None, code: bool, json: bool) -> None:
    """Looks at a folder that is there."""
    if not check:
        how = "name it, or give --check to look at a Hugging Face folder"
        raise UserError("no folder to write", "scalewright convert SOURCE OUT", how)
    with only_answer(json), working("reading the folder"):
        from scalewright.checkpoint.lint import lint

        findings = lint(folder, code)
    if json:
        print_json({"ok": worst(findings) != "problem", "findings": [finding.row for finding in findings]})
    else:
        _list(findings)
        errors, warnings = (sum(finding.severity == kind for finding in findings) for kind in ("problem", "warn"))
        print(f"{folder}: {counted(errors, 'errors')}, {counted(warnings, 'warnings')}")
    _stop(findings)


def _list(findings: Sequence[Finding]) -> None:
    for finding in findings:
        print(f"{MARKS[finding.severity]}: {finding.line}")


def _stop(findings: Sequence[Finding]) -> None:
    if worst(findings) == "problem":
        raise typer.Exit(1)
