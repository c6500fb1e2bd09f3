"""`launch dvc`: a run as stages of DVC, which runs what changed and keeps data and checkpoints beside git.

    prepare   texts ──► tokens        as their folder says that it was made; goes on where it was stopped (persist)
    train     run.yaml, tokens, own code ──► the run's folder, metrics, plots
    evaluate  the run's folder ──► metrics

DVC deletes a stage's outputs before it runs, and so would delete the checkpoints of a run that was stopped. Kept from
that (`persist`) they would outlive a change of the run, which must begin anew. So a run trains beside its folder, under
a name made of all that it reads, and is renamed when it is finished:

    runs/tiny.unfinished-1f0c9b6a24d7  ── stopped: exit code 75, `dvc repro` goes on ── finished ──►  runs/tiny

All of run.yaml is a parameter: DVC wouldn't see a key that is new in it, were keys listed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from scalewright.launch.job import LaunchJob, Written
from scalewright.launch.targets.container import to_yaml, unused
from scalewright.launch.targets.local import UNUSED as LOCAL
from scalewright.launch.targets.script import file_name, head, prepare, text_of
from scalewright.spec.common.shell import line, operand, quote
from scalewright.spec.common.untrusted import read_json
from scalewright.spec.common.urls import is_url
from scalewright.spec.errors import UserError
from scalewright.spec.run import DataSpec, PythonRef, RunSpec, load_run

PIPELINE = "dvc.yaml"  # the one name that DVC reads, so a folder holds one pipeline
UNUSED = {**LOCAL, "workdir": "DVC runs a stage where dvc.yaml says"}
CHARTS = ("loss", "grad_norm", "lr", "tokens_per_s")  # columns of the rows of training
Stage = dict[str, object]


def write(job: LaunchJob) -> Written:
    """The pipeline of a job and its script. Raises UserError for several machines, and for what DVC can't keep."""
    if job.nodes > 1:
        how = "set launch.nodes=1, or submit the script of `launch slurm` from a stage of yours: cmd: sbatch --wait"
        raise UserError(f"a stage of DVC runs on one machine, not on {job.nodes}", "launch dvc", how)
    run, home, script = load_run(job.run_file, job.overrides), Path(job.home), f"{file_name(job)}.dvc.sh"
    if run.checkpoint.store:
        how = "leave it out: `dvc push` sends the run's folder to a remote"
        raise UserError("its place belongs to one run, and a changed parameter is another", "checkpoint.store", how)
    job = replace(job, run_file=_local(job.run_file), out_dir=_inside(job.folder, "out_dir"))
    start = ["bash", operand((home / script).as_posix())]
    before = (home / PIPELINE).read_text(encoding="utf-8") if (home / PIPELINE).is_file() else ""
    _check_other(home / PIPELINE, before, script)
    tokens = {path: words for path in dict.fromkeys(_data(run)) if (words := _made_by(path, before))}
    stages = {
        "prepare" if len(tokens) == 1 else f"prepare-{number}": _prepare(start, path, words)
        for number, (path, words) in enumerate(tokens.items(), 1)
    }
    stages |= {"train": _train(job, run, start)}
    if isinstance(run.data, DataSpec) and run.data.valid:
        stages |= {"evaluate": _evaluate(job, run, start)}
    if (place := os.path.relpath(".", home)) != ".":
        stages = {name: {"wdir": PurePosixPath(place).as_posix(), **stage} for name, stage in stages.items()}
    text = to_yaml([{"stages": stages, "plots": _plots(job, run, place)}], [_title(job), "Start: dvc repro"])
    started = ("dvc", "repro", PIPELINE)
    notes = [] if (home / "dvc.lock").exists() else ["`dvc repro` before `git add .`: it tells git what is DVC's"]
    if notes and Path(job.folder).exists():
        notes.append(f"{job.folder} is there: `dvc repro` deletes it before it trains")
    unmade = [path for path in _data(run) if path not in tokens and Path(path, "pieces").is_dir()]
    why = "its texts aren't known here, or DVC has it from elsewhere"
    notes += [f"{path} has no stage: {why}" for path in dict.fromkeys(unmade)]
    files = {PIPELINE: text, script: _script(job, run)}
    return Written(files, started, unused(job.site, UNUSED), tuple(notes), ("dvc", "stage", "list", PIPELINE))


def _title(job: LaunchJob) -> str:
    return f"{job.name}: a pipeline. Written by `scalewright launch dvc`."


def _prepare(start: list[str], path: str, words: list[str]) -> Stage:
    texts = [word for word in words if Path(word).exists()]
    command = _command([*start, "prepare", *words, "--out", path])
    return {"cmd": command, **({"deps": texts} if texts else {}), "outs": [{path: {"persist": True}}]}


def _train(job: LaunchJob, run: RunSpec, start: list[str]) -> Stage:
    return {
        "cmd": _command([*start, "train", job.run_file, *job.overrides]),
        "deps": list(dict.fromkeys([*_data(run), *_read_by(run)])),
        "params": [{job.run_file: None}],
        "outs": [job.folder],
        "metrics": [{f"{job.folder}.json": {"cache": False}}],
    }


def _evaluate(job: LaunchJob, run: RunSpec, start: list[str]) -> Stage:
    device = ["--device", run.device] if run.device in ("cuda", "mps") else []
    trusted = ["--trust-code"] if isinstance(run.model, PythonRef) else []
    return {
        "cmd": _command([*start, "evaluate", job.folder, *device, *trusted]),
        "deps": [job.folder, *dict.fromkeys(_data(run, "valid"))],
        "metrics": [{f"{job.folder}.evaluation.json": {"cache": False}}],
    }


def _plots(job: LaunchJob, run: RunSpec, place: str) -> list[dict[str, object]]:
    """Charts over the steps, of files in the run's folder as dvc.yaml sees it; the loss beside that of validations."""
    folder = PurePosixPath(place, job.folder, "plots")
    files = {column: {f"{folder}/train.csv": column} for column in CHARTS}
    if run.train.valid_every and isinstance(run.data, DataSpec) and run.data.valid:
        files["loss"][f"{folder}/valid.csv"] = "loss"
    return [{column: {"x": "step", "y": y, "x_label": "step"}} for column, y in files.items()]


def _script(job: LaunchJob, run: RunSpec) -> str:
    """What all stages run: the site's environment, and a command of ours with what DVC needs around it."""
    metadata = dict.fromkeys(f"{quote(path)}/{{,*/}}metadata.json" for path in _data(run))
    read = " ".join([*map(quote, (job.run_file, *_read_by(run))), *metadata])
    usage = "dvc.yaml runs it, with the words of a command: bash FILE train run.yaml"
    python = f"{quote(job.site.python)} -m"
    return text_of([
        *head(job, "dvc", [usage]), "", *prepare(replace(job, site=job.site.replace(workdir=None))), "",
        f"out={quote(job.folder)}",
        "case $1 in",
        f'prepare) {python} scalewright "$@" --renew ;;',
        f'evaluate) {python} scalewright "$@" --json > "$out.evaluation.json" ;;',
        "train)",
        '  if [ -e "$out" ]; then echo "error: $out is there, and only dvc repro removes it" >&2; exit 2; fi',
        f'  read_by_it=$({{ printf "%s\\n" "$@"; cat {read} 2> /dev/null || true; }} | git hash-object --stdin)',
        '  work=$out.unfinished-${read_by_it:0:12}',
        '  mkdir -p "$work"',
        '  echo "*" > "$work/.gitignore"',
        f'  {python} scalewright "$@" out_dir="$work"',
        f'  {python} scalewright.track.dvc "$work" > "$out.json"',
        '  rm "$work/.gitignore"',
        '  mv "$work" "$out"',
        '  echo "finished, and renamed to $out" ;;',
        '*) echo "error: no stage is named $1" >&2; exit 2 ;;',
        "esac",
    ])  # fmt: skip


def _data(run: RunSpec, *splits: str) -> Iterator[str]:
    """The run's sources of tokens that are files here; of one named without its suffix, each file."""
    if isinstance(run.data, DataSpec):
        for split in splits or ("train", "valid"):
            for path in (source.path for source in getattr(run.data, split) if not is_url(source.path)):
                files = [] if Path(path).exists() else [f"{path}{end}" for end in (".bin", ".idx")]
                there = [file for file in files if Path(file).exists()]
                yield from map(_local, there or [path])


def _read_by(run: RunSpec) -> Iterator[str]:
    """Files and folders that the run reads beside its data: weights, a model's file, modules of the user's own."""
    for value in (run.init, run.resume, run.model, run.data, run.loss, run.optimizer):
        if isinstance(value, PythonRef):
            module = value.python.partition(":")[0].replace(".", "/")
            yield from (file for file in (f"{module}.py", f"{module}/__init__.py") if Path(file).is_file())
        elif isinstance(value, str) and not is_url(value) and Path(value).exists():
            yield _local(value)


def _made_by(path: str, before: str) -> list[str]:
    """The words of the `prepare` that made a folder of tokens in this repository; none where its texts aren't known or
    aren't here, and where DVC has it from elsewhere than the pipeline `before`: from another one, or by `dvc add`. A
    folder has one origin there, and DVC lists it in the .gitignore beside."""
    plan: Any = {}
    with suppress(OSError, ValueError):
        plan = read_json(Path(path, "pieces", "plan.json"))
    words: list[str] = plan.get("command", []) if isinstance(plan, dict) else []
    ignored, of_dvc = Path(path).parent / ".gitignore", False
    with suppress(OSError):
        of_dvc = f"/{Path(path).name}" in ignored.read_text(encoding="utf-8").split("\n")
    if not words or PurePosixPath(path).is_absolute() or (of_dvc and f"- {path}:\n" not in before):
        return []
    inputs = words[: next((place for place, word in enumerate(words) if word.startswith("--")), len(words))]
    bundled = {name.partition("/")[0] for name, (_, stamp) in plan["files"].items() if not stamp.isdigit()}
    known = all(Path(word).exists() or word in bundled for word in inputs)
    return words if known else []


def _command(words: list[str]) -> str:
    """Words as a command of a stage, in one line, in which `${` begins nothing of DVC's."""
    text = line(words)
    if "\n" in text:
        raise UserError("a command of DVC's is one line", "launch dvc", "write the value into the run file")
    return text.replace("${", "\\${")


def _local(path: str) -> str:
    """A path as DVC writes it: relative where it lies below the working directory."""
    with suppress(ValueError):
        return Path(os.path.abspath(Path(path).expanduser())).relative_to(Path.cwd()).as_posix()
    return path


def _inside(path: str, key: str) -> str:
    """The same; raises UserError for one that lies elsewhere."""
    if PurePosixPath(local := _local(path)).is_absolute() or local.startswith(".."):
        raise UserError(f"{path} isn't in this repository, so DVC can't keep it", key, "set one below this folder")
    return local


def _check_other(path: Path, text: str, script: str) -> None:
    """Raises UserError for the pipeline of another run."""
    if ".dvc.sh train" in text and f"{script} train" not in text:
        raise UserError("another run's pipeline is there", str(path), "give this run a folder of its own: --out DIR")
