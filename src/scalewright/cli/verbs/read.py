"""`scalewright read FILE`: another trainer's configuration as a run file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from scalewright.cli.options import Force, Json, argument, option
from scalewright.cli.output import print, print_exact, print_json
from scalewright.spec.errors import UserError


def read(
    file: Annotated[str | None, argument("FILE", "A script, YAML, JSON, TOML or Python configuration.")] = None,
    overrides: Annotated[
        list[str] | None, argument("KEY=VALUE...", "Keys to change, such as layout.devices=64.")
    ] = None,
    argv: Annotated[str | None, option('"..."', "A pasted command line, in place of a file.")] = None,
    out: Annotated[Path | None, option("RUN.yaml", "Write the run file there.")] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Read a configuration of Megatron-LM, torchtitan, DeepSpeed, Accelerate, nanotron, NeMo or others.

    \b
    scalewright read pretrain_llama.sh > run.yaml
    scalewright read --argv "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 32 ..." --json
    """
    from scalewright.emit.question import as_run, as_text
    from scalewright.emit.read import read_argv, read_file
    from scalewright.spec.common.files import write_signed
    from scalewright.spec.question import unread_lines

    changes = list(overrides or ())
    if argv is not None and file is not None:
        changes, file = [file, *changes], None
    if argv is None and file is None:
        raise UserError("nothing to read", "scalewright read", 'give a FILE, or --argv "..."')
    where = file or "--argv"
    reading = read_argv(argv) if argv is not None else read_file(where)
    if json and out is None:
        print_json(reading)
        return
    run = as_run(reading, where, changes)
    text = as_text(reading, run)
    if out is not None:
        write_signed(out, text, force)
    if json:
        print_json({**reading.dump(), "run_file": str(out)})
    elif out is None:
        print_exact(text)
    for line in unread_lines(reading.unread):
        print(line, file=sys.stderr)
    for note in reading.assumed:
        print(f"assumed   {note}", file=sys.stderr)
