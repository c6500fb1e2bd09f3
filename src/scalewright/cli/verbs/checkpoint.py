"""`scalewright checkpoint ls|verify RUN_DIR`: what a run has saved, and whether every byte of it is sound."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from scalewright.cli.options import Json
from scalewright.cli.output import print, print_json, print_table, working
from scalewright.spec.errors import UserError

Run = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A run's folder, or one of its checkpoints.")]


def list_checkpoints(run: Run, json: Json = False) -> None:
    """List a run's checkpoints, newest first."""

    rows = [_row(folder) for folder in _folders(run)]
    if json:
        print_json(rows)
        return
    table = [
        [
            "?" if row["step"] is None else row["step"],
            row["saved"],
            f"{row['bytes'] / 2**20:,.1f}",
            _state(row),
            row["path"],
        ]
        for row in rows
    ]
    print_table(["step", "saved", "MiB", "state", "path"], table)


def verify_checkpoints(run: Run, json: Json = False) -> None:
    """Compare every byte with its checksum; exit code 1 for damage."""
    from scalewright.checkpoint.format import verify

    rows = []
    for folder in _folders(run):
        row = _row(folder)
        with working(f"reading the save of {_name(row)}"):
            problems = verify(folder) if row["state"] == "complete" else row.get("problems", [])
        rows.append({**row, "state": "damaged" if problems else row["state"], "problems": problems})
    damaged = any(row["problems"] or row["state"] == "damaged" for row in rows)
    if json:
        print_json({"ok": not damaged, "checkpoints": rows})
    else:
        for row in rows:
            print(f"{_name(row)}: " + ("; ".join(row["problems"]) or _state(row)))
    if damaged:
        raise typer.Exit(1)


def _name(row: dict[str, Any]) -> str:
    return Path(row["path"]).name if row["step"] is None else f"step {row['step']}"


def _state(row: dict[str, Any]) -> str:
    return str(row["state"]) + ("" if row.get("finite", True) else ", not finite")


def _folders(run: Path) -> list[Path]:
    """The step folders of a run, finished or not, newest first; raises UserError when there is none."""
    from scalewright.checkpoint.format import COMMIT, MANIFEST, STEP_FOLDER

    if not run.is_dir():
        raise UserError("no such folder", str(run), "give a run's folder, such as runs/run")
    renamed = (run / MANIFEST).exists() or (run / COMMIT).exists()
    if renamed or STEP_FOLDER.match(run.resolve().name):
        return [run]
    for root in (run / "checkpoints", run):
        folders = [p for p in root.iterdir() if STEP_FOLDER.match(p.name)] if root.is_dir() else []
        if folders:
            return sorted(folders, key=lambda p: int(p.name.split("-")[1]), reverse=True)
    raise UserError(
        "no checkpoint there", str(run), "give a run's folder, or set checkpoint.every in its run file"
    )


def _step(folder: Path) -> int | None:
    """The step of a checkpoint, by its name or its manifest; None when neither has it."""
    from scalewright.checkpoint.format import STEP_FOLDER, read_manifest

    if match := STEP_FOLDER.match(folder.resolve().name):
        return int(match[1])
    try:
        return read_manifest(folder).step
    except UserError:
        return None


def _row(folder: Path) -> dict[str, Any]:
    """The row of `ls` for one step folder; `state` is complete, incomplete (no COMMIT) or damaged.

    Damaged here means COMMIT, the manifest or the state; the large files are compared by `verify`.
    """
    import datetime

    from scalewright.checkpoint.finite import is_finite
    from scalewright.checkpoint.format import COMMIT, read_manifest, verify_heads

    files = [path for path in folder.rglob("*") if path.is_file()]
    row: dict[str, Any] = {
        "step": _step(folder),
        "path": str(folder),
        "bytes": sum(path.stat().st_size for path in files),
        "saved": datetime.datetime.fromtimestamp(folder.stat().st_mtime).isoformat(" ", "seconds"),
        "state": "complete" if (folder / COMMIT).exists() else "incomplete",
    }
    if row["state"] == "complete":
        if problems := verify_heads(folder):
            return {**row, "state": "damaged", "problems": problems}
        manifest = read_manifest(folder)
        row["finite"] = is_finite(folder)
        row |= {"samples": manifest.samples, "tensors": len(manifest.tensors), "layout": manifest.layout}
    return row
