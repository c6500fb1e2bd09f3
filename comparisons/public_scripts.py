"""Launch scripts that people published, followed here and by bash: `python comparisons/public_scripts.py FOLDER`.

FOLDER has the scripts, with files beside them that they name. Bash runs a copy of each, as another user where
this one may change it, with nothing on its PATH but programs that write down their words and small ones that
print (sed, date). Read a script before you put it there: only what it writes by itself is kept within a folder.

    script ──► bash, programs that write down their words ──┐
           └─► emit/bash, the commands that it followed ────┴─► equal, named as unknown, or wrong; then what is read

Exit code 1 when a script is wrong: other words than bash's, and nothing named. The scripts are other people's.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.facts import facts
from harness.result import Result, facts_text, table

from scalewright.emit.bash.header import environ_of, header
from scalewright.emit.bash.script import read_script
from scalewright.emit.bash.unknown import known
from scalewright.emit.read import read_file
from scalewright.spec.errors import UserError

SUFFIXES = (".sh", ".slurm", ".sbatch", ".pbs", ".lsf", ".bash", "")
STARTED = (
    "torchrun", "deepspeed", "accelerate", "python", "python3", "megatron", "swift", "llamafactory-cli", "axolotl",
    "composer", "colossalai", "litgpt", "tune", "nemo",
)  # fmt: skip
OUTER = (
    "srun", "mpirun", "mpiexec", "jsrun", "singularity", "apptainer", "docker", "podman", "ssh", "pdsh", "numactl",
    "nsys", "timeout", "nohup", "stdbuf", "uv", "poetry", "conda", "taskset", "aprun", "qrsh", "sudo", "ibrun", "time",
    "sbatch", "qsub", "bsub",
)  # fmt: skip
SMALL = (
    "sed", "date", "basename", "dirname", "cat", "head", "tail", "tr", "cut", "grep", "wc", "seq", "expr", "bc", "sort",
    "awk", "env", "mkdir", "tee", "xargs", "paste", "uniq", "bash", "sh", "rev", "printf", "echo", "true", "false",
)  # fmt: skip
STUB = f"""#!/usr/bin/python3 -S
import json, os, sys
words, name = sys.argv[1:], os.path.basename(sys.argv[0])
if name in {OUTER!r}:
    shells = [w for w in words if w.endswith((".sh", ".slurm", ".sbatch")) and os.path.exists(w)]
    if name in ("sbatch", "qsub", "bsub") and os.environ["SCRIPT"] in map(os.path.basename, shells):
        sys.exit()  # it submits itself
    wrapped = [w[7:] for w in words if w.startswith("--wrap=")]
    place = next((i for i, w in enumerate(words) if os.path.basename(w) in {(*STARTED, "bash", "sh")!r}), None)
    place = next((i for i, w in enumerate(words[:place]) if w in shells), place)
    if wrapped:
        os.execvp("bash", ["bash", "-c", wrapped[0]])
    if place is not None:
        rest = [*["bash"][: words[place] in shells], *words[place:]]
        if os.path.basename(rest[0]) in ("bash", "sh"):
            rest[0] = os.path.basename(rest[0])
        os.execvp(os.path.basename(rest[0]), rest)
elif words[:1] not in (["-c"], ["-"]) and words:
    with open(os.environ["STARTED"], "a") as file:
        file.write(json.dumps([name, *words]) + "\\n")
"""
IN_A_FOLDER = re.compile(rf"(?<![\w=:'\"])[~/$][\w./${{}}-]*/bin/({'|'.join(STARTED)})\b")  # which isn't here
REASONS = {
    "isn't beside it|no file": "a file that it names isn't there",
    "doesn't tell|aren't in the script": "a value isn't in it",
    "no trainer's words": "another program", "starts anything|no command line": "starts nothing", "": "another reason",
}  # fmt: skip
MISSING = "() { return 0; }"  # a command that isn't there, which the reader takes as successful, too
NOBODY = 65534


def main() -> int:
    """Tries every script of the folder, and writes the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, help="where the result goes")
    parser.add_argument("--show", action="store_true", help="the words, and what is read")
    options = parser.parse_args()
    result = Result("public-scripts", "Launch scripts that people published", facts(), options.out)
    rows = []
    with tempfile.TemporaryDirectory() as place:
        programs = _programs(Path(place) / "bin")
        os.chmod(place, 0o755)
        for path in sorted(options.folder.rglob("*")):
            if path.is_file() and path.suffix in SUFFIXES:
                row = tried(path, options.folder, Path(place), programs)
                if options.show:
                    print(json.dumps({"file": path.name, **row}, indent=1, default=str), flush=True)
                kept = {key: row.get(key) for key in ("words", "read", "devices", "refused")}  # their text isn't ours
                rows.append({"file": str(path.relative_to(options.folder)), "starts": len(row["started"]), **kept})
                result.put("scripts", rows)
    counts = Counter(row["words"] for row in rows)
    heads = ["script", "bash starts", "words", "read as", "devices"]
    cells = [[f"`{row['file']}`", row["starts"], row["words"], row["read"], row["devices"] or ""] for row in rows]
    result.say(facts_text(result.data["facts"]), "", table(heads, cells))
    kinds = Counter(_kind(row["refused"]) for row in rows)
    result.put("counts", {"words": counts, "reading": kinds})
    result.say("Words: " + ", ".join(f"{word} {count}" for word, count in counts.items()) + ".")
    result.say("Reading: " + ", ".join(f"{kind} {count}" for kind, count in kinds.most_common()) + ".")
    result.say(*(f"- `{row['file']}`: {row['refused']}" for row in rows if row["refused"]))
    result.close()
    return int("wrong" in counts)


def tried(path: Path, folder: Path, place: Path, programs: Path) -> dict[str, Any]:
    """One script: what bash starts, whether the reader follows the same, and the run that it reads."""
    copy = Path(tempfile.mkdtemp(dir=place))
    shutil.copytree(folder, copy / "work")
    theirs = started(copy / "work" / path.relative_to(folder), copy, programs)
    row: dict[str, Any] = {"started": theirs}
    try:
        script = read_script(path.read_text(encoding="utf-8", errors="replace"), path.name, path.parent)
    except UserError as error:
        script = None
        row |= {"words": "refused", "ours": str(error)}
    if script is not None:
        ours = [words for command in script.commands if (words := _from_program(command.words))]
        same = sorted(ours) == sorted(theirs)
        named = bool(script.result.notes) or any(not known(*words) for words in ours)
        named |= any(command.when for command in script.commands)
        row |= {"words": "equal" if same else "named" if named else "wrong"}
        if not same:
            row |= {"ours": [script.shown(words) for words in ours], "notes": script.result.notes}
    try:
        reading = read_file(path)
    except UserError as error:
        text = str(error).partition(": it reads Megatron")[0].replace(str(path), path.name).replace(str(folder), "")
        return row | {"read": "refused", "devices": None, "refused": text}
    layout = reading.run.get("layout") or {}
    return row | {
        "read": f"{reading.trainer}{', ' + str(reading.other) if reading.other else ''}",
        "devices": layout.get("devices"), "run": reading.run, "assumed": reading.assumed,
        "unread": [f"{item.key}: {item.value}: {item.why}" for item in reading.unread],
    }  # fmt: skip


def _kind(refused: str | None) -> str:
    """Why nothing was read."""
    if refused is None:
        return "read"
    return next((kind for pattern, kind in REASONS.items() if re.search(pattern, refused)), "other")


def _from_program(words: Sequence[str]) -> list[str]:
    """A command's words from the program on, whose folder doesn't matter."""
    names = [re.sub(r".*/", "", word) for word in words]
    place = next((index for index, name in enumerate(names) if name in STARTED), None)
    if place is None or (names[place].startswith("python") and words[place + 1 : place + 2] in (["-c"], ["-"], [])):
        return []
    return [names[place], *words[place + 1 :]]


def started(path: Path, copy: Path, programs: Path) -> list[list[str]]:
    """What bash starts by this script, in its own folder, with nothing set from outside."""
    log = copy / "started"
    log.touch()
    may = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    path.write_text(IN_A_FOLDER.sub(r"\1", path.read_text(encoding="utf-8", errors="replace")), encoding="utf-8")
    for each in (copy, *copy.rglob("*")):
        each.chmod(0o755)
        if may:
            os.chown(each, NOBODY, NOBODY)
    environ = {"PATH": str(programs), "STARTED": str(log), "HOME": str(copy / "home"), "SCRIPT": path.name}
    environ |= environ_of(header(path.read_text(errors="replace")))  # what a scheduler would set
    environ["BASH_FUNC_command_not_found_handle%%"] = MISSING
    bash = shutil.which("bash") or "bash"
    limits = f"ulimit -t 10 -f 10000 -u 400; exec {bash} {path.name}"
    nothing = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    with subprocess.Popen(
        [bash, "-c", limits], cwd=path.parent, env=environ, start_new_session=True, **nothing, **may
    ) as job:
        try:
            job.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
    return [json.loads(line) for line in log.read_text().splitlines()]


def _programs(folder: Path) -> Path:
    """A folder with the programs that a script may start."""
    folder.mkdir()
    for name in (*STARTED, *OUTER):
        (folder / name).write_text(STUB)
        (folder / name).chmod(0o755)
    for name in SMALL:
        if (real := shutil.which(name)) is not None:
            (folder / name).symlink_to(real)
    return folder


if __name__ == "__main__":
    sys.exit(main())
