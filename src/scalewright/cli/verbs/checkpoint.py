"""`scalewright checkpoint ls|verify|prune|diff`: what a run has saved, whether every byte of it is sound,
which saves may go, and how two differ.

A run that trains meanwhile removes old saves: one that goes while it is read is `gone`, not damaged.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scalewright.cli.options import Json, argument, flag, option
from scalewright.cli.output import print, print_json, working
from scalewright.cli.terminal import print_table
from scalewright.spec.common.formatting import decimal, printable
from scalewright.spec.common.urls import is_url
from scalewright.spec.errors import RunError, UserError

if TYPE_CHECKING:
    from scalewright.checkpoint.store.look import There

SHOWN = 6  # settings of a part that `diff` prints; --json has all
Run = Annotated[Path, argument("RUN_DIR", "A run's folder, or one of its checkpoints; for some verbs also a URL.")]


def list_checkpoints(run: Run, json: Json = False) -> None:
    """List a run's checkpoints, newest first."""
    if is_url(run):
        from scalewright.checkpoint.store.look import look_into

        rows = _rows_there(look_into(run))
    else:
        rows = [row for folder in _folders(run) if (row := _row(folder))["state"] != "gone"]
    if json:
        print_json(rows)
        return
    table = []
    for row in rows:
        step = "?" if row["step"] is None else row["step"]
        table.append([step, row["saved"], f"{row['bytes'] / 2**20:,.1f}", _state(row), row["path"]])
    print_table(["step", "saved", "MiB", "state", "path"], table)


def verify_checkpoints(run: Run, json: Json = False) -> None:
    """Compare every byte with its checksum; exit code 1 for damage."""
    rows = []
    with working("loading PyTorch") as at:
        from scalewright.checkpoint.store.look import look_into
        from scalewright.checkpoint.verify import verify

        if is_url(run):
            rows = _rows_there(look_into(run, at, every_byte=True))
        for folder in [] if is_url(run) else _folders(run):
            at(f"reading the save {folder.name}")
            rows.append(_row(folder, verify))
    damaged = any(row["problems"] or row["state"] == "damaged" for row in rows)
    if json:
        print_json({"ok": not damaged, "checkpoints": rows})
    else:
        for row in rows:
            print(f"{_name(row)}: " + ("; ".join(row["problems"]) or _state(row)))
    if damaged:
        raise typer.Exit(1)


def _rows_there(there: Sequence[There]) -> list[dict[str, Any]]:
    """The rows for checkpoints in a store: from copies of their small files."""
    rows = []
    for seen in there:
        row = _row(seen.folder, None if seen.problems is None else partial(_known, seen.problems))
        rows.append({**row, "path": seen.url, "bytes": seen.bytes, "saved": seen.saved})
    return rows


def _known(problems: list[str], folder: Path) -> list[str]:
    return problems


def prune_checkpoints(
    run: Run,
    keep: Annotated[int | None, flag("How many of the newest stay; by default checkpoint.keep.", min=1)] = None,
    keep_every: Annotated[int | None, option("N", "Also multiples of N; by default keep_every.", min=0)] = None,
    keep_best: Annotated[int | None, option("K", "Also the K with the lowest held-out loss.", min=0)] = None,
    dry_run: Annotated[bool, flag("Show what would go, and remove nothing.")] = False,
    json: Json = False,
) -> None:
    """Remove old checkpoints of a run that isn't training.

    The newest finite ones stay, and so does the newest that is whole. What a killed removal left goes, too.

    \b
    scalewright checkpoint prune runs/run --keep 1 --dry-run
    """
    from scalewright.checkpoint.format import committed, remove
    from scalewright.checkpoint.verify import Retention, superfluous, verify
    from scalewright.train.state.claim import hold_folder

    root = _folders(run)[0].parent
    if root.resolve() == run.resolve().parent:
        raise UserError("it is one checkpoint", str(run), f"give its run's folder, {root.parent}")
    home = root.absolute().parent if root.absolute().name == "checkpoints" else root
    with hold_folder(home) if not dry_run and (home / "events.jsonl").exists() else nullcontext():
        whole = committed(root)
        with working("reading the newest save"):
            sound = next((folder for folder in whole if not verify(folder)), None)
        if sound is None:
            raise UserError("no checkpoint here is whole: none is removed", str(root), "restore one first")
        asked = (keep, keep_every, keep_best)
        counts = (of_run if value is None else value for value, of_run in zip(asked, _kept_by(home), strict=True))
        old = set(superfluous(whole, Retention(*counts)))
        unfinished = set(_folders(run)) - set(whole)
        rows = [_row(folder) for folder in _folders(run)]
        gone = [row for row in rows if Path(row["path"]) in old - {sound} | unfinished]
        for row in [] if dry_run else gone:
            try:
                remove(Path(row["path"]))
            except OSError as error:
                raise RunError(f"cannot remove {row['path']}: {error.strerror}") from None
    if json:
        kept = [row for row in rows if row not in gone]
        print_json({"dry_run": dry_run, "removed": gone, "kept": kept, "bytes": sum(row["bytes"] for row in gone)})
        return
    for row in rows:
        verb = ("would go" if dry_run else "removed") if row in gone else "stays"
        print(f"{_name(row)}: {verb} ({row['bytes'] / 2**20:,.1f} MiB, {_state(row)})")


def _kept_by(home: Path) -> tuple[int, int, int]:
    from scalewright.spec.base import read_yaml
    from scalewright.spec.run import CheckpointSpec

    data = read_yaml(home / "run.yaml") if (home / "run.yaml").exists() else {}
    spec = CheckpointSpec.parse(data.get("checkpoint", {}) if isinstance(data, dict) else {})
    return spec.keep, spec.keep_every, spec.keep_best


def diff_checkpoints(first: Run, second: Run, json: Json = False) -> None:
    """Compare two checkpoints: layout, step, data, optimizer and every tensor; exit code 1 when they differ.

    Tensors are compared whole and bit by bit, whatever layouts wrote them.

    \b
    scalewright checkpoint diff runs/a runs/b/checkpoints/step-00000400
    """
    with working("comparing the tensors"):
        from scalewright.checkpoint.compare import settings, tensors
        from scalewright.checkpoint.read import find_checkpoint
        from scalewright.checkpoint.store.bring import bring

        folders = [find_checkpoint(bring(path, states=True)) for path in (first, second)]
        parts, rows = settings(*folders), list(tensors(*folders))
    different = [row for row in rows if not row["equal"]]
    equal = not parts and not different
    if json:
        paths = {"first": str(folders[0]), "second": str(folders[1])}
        print_json({**paths, "equal": equal, "tensors_equal": not different, "settings": parts, "tensors": different})
    else:
        for part, values in parts.items():
            changes = (f"{key} {str(old)[:60]} -> {str(new)[:60]}" for key, (old, new) in values.items())
            shown = [change.removeprefix(f"{part} ") for change in changes]
            more = [f"{len(shown) - SHOWN} more (--json)"] if len(shown) > SHOWN else []
            print(printable(f"{part}: " + ", ".join(shown[:SHOWN] + more)))
        print(f"{len(rows) - len(different):,} of {len(rows):,} tensors are equal, bit for bit")
        table = [
            [printable(row["name"]), _kind(row), *(decimal(row.get(key)) for key in ("largest", "relative"))]
            for row in different
        ]
        if table:
            print_table(["tensor", "differs", "largest difference", "relative"], table)
    if not equal:
        raise typer.Exit(1)


def _kind(row: Mapping[str, Any]) -> str:
    if "only" in row:
        return f"only in the {row['only']}"
    if "numbers" in row:
        return f"{row['numbers']:,} of {row['of']:,} numbers"
    return "; ".join(f"{key} {row[key][0]} and {row[key][1]}" for key in ("shape", "dtype") if key in row)


def _name(row: Mapping[str, Any]) -> str:
    return Path(row["path"]).name if row["step"] is None else f"step {row['step']}"


def _state(row: dict[str, object]) -> str:
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
            return sorted(folders, key=_number, reverse=True)
    raise UserError("no checkpoint there", str(run), "give a run's folder, or set checkpoint.every in its run file")


def _number(folder: Path) -> int:
    return int(folder.name.split("-")[1])


def _step(folder: Path) -> int | None:
    """The step of a checkpoint, by its name or its manifest; None when neither has it."""
    from scalewright.checkpoint.format import STEP_FOLDER, read_manifest

    if match := STEP_FOLDER.match(folder.resolve().name):
        return int(match[1])
    try:
        return read_manifest(folder).step
    except UserError:
        return None


def _row(folder: Path, check: Callable[[Path], list[str]] | None = None) -> dict[str, Any]:
    """The row for one step folder; `state` is complete, incomplete (no COMMIT), damaged, or gone: removed
    while it was read. `check` finds problems; without it (`ls`) COMMIT, manifest and state are compared.
    """
    from scalewright.checkpoint.format import committed_at

    before = committed_at(folder)
    try:
        row = _look(folder, check)
        if row["state"] == "complete" or (folder.exists() and committed_at(folder) == before):
            return row
    except (OSError, UserError) as error:
        going = before is None and isinstance(error, FileNotFoundError)
        if not going and committed_at(folder) == before:
            raise
    row = {"step": _step(folder), "path": str(folder), "bytes": 0, "saved": None}
    return {**row, "state": "gone", "problems": []}


def _look(folder: Path, check: Callable[[Path], list[str]] | None) -> dict[str, object]:
    from scalewright.checkpoint.format import COMMIT, read_manifest
    from scalewright.checkpoint.verify import is_finite, verify_heads

    files = [path for path in folder.rglob("*") if path.is_file()]
    row: dict[str, object] = {
        "step": _step(folder),
        "path": str(folder),
        "bytes": sum(path.stat().st_size for path in files),
        "saved": datetime.datetime.fromtimestamp(folder.stat().st_mtime).isoformat(" ", "seconds"),
        "state": "complete" if (folder / COMMIT).exists() else "incomplete",
    }
    row |= {"problems": []} if check else {}
    if row["state"] == "complete":
        if problems := verify_heads(folder) or (check(folder) if check else []):
            return {**row, "state": "damaged", "problems": problems}
        manifest = read_manifest(folder)
        row["finite"] = is_finite(folder)
        row |= {"samples": manifest.samples, "tensors": len(manifest.tensors), "layout": manifest.layout}
    return row
