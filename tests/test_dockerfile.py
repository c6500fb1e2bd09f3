"""The Dockerfile without Docker: its parts agree with the package, and its steps run with stand-ins.

COPY   into a temporary folder     RUN   by sh, /opt in that folder; apt-get and pip write down their call
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")

STAND_INS = {
    "apt-get": 'echo "apt-get $*" >> "$CALLS"',
    # `python3 -m venv DIR`: a folder with this interpreter's commands, whose pip only notes what it is asked
    "python3": """[ "$1 $2" = "-m venv" ] || exit 3
mkdir -p "$3/bin"
printf '#!/bin/sh\\necho "$*" >> "%s"\\n' "$CALLS" > "$3/bin/python"
printf '#!/bin/sh\\nexec "%s" -m scalewright "$@"\\n' "$PYTHON" > "$3/bin/scalewright"
chmod +x "$3/bin/python" "$3/bin/scalewright"
""",
}


def steps() -> list[tuple[str, str]]:
    """(instruction, the rest), with continued lines joined."""
    lines = "\n".join(line for line in TEXT.splitlines() if line and not line.startswith("#"))
    return [(word, rest) for word, _, rest in (s.partition(" ") for s in lines.replace("\\\n", "").splitlines())]


def arguments() -> dict[str, str]:
    return dict(rest.split("=", 1) for word, rest in steps() if word == "ARG")


def copied() -> list[tuple[list[str], str]]:
    return [(rest.split()[:-1], rest.split()[-1]) for word, rest in steps() if word == "COPY"]


def test_it_uses_instructions_that_docker_has() -> None:
    assert {word for word, _ in steps()} <= {"ARG", "FROM", "RUN", "COPY", "ENV", "WORKDIR", "CMD", "ENTRYPOINT"}
    assert [word for word, _ in steps()][:2] == ["ARG", "FROM"]


def test_what_is_copied_exists_and_isnt_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    sources = [source for few, _ in copied() for source in few]
    assert {line[1:] for line in ignored if line.startswith("!")} == set(sources)
    assert all((ROOT / source).exists() for source in sources)


def test_the_build_has_every_file_that_pyproject_names() -> None:
    sources = {source for few, _ in copied() for source in few}
    named = re.findall(r'^readme = "(.*)"|"(LICENSE|NOTICE)"', PYPROJECT, re.MULTILINE)
    assert {first or second for first, second in named} <= sources


def test_its_extras_and_its_command_exist() -> None:
    extras = set(re.findall(r"^(\w+) = \[", PYPROJECT.partition("optional-dependencies]")[2], re.MULTILINE))
    assert set(arguments()["EXTRAS"].split(",")) <= extras
    command = json.loads(next(rest for word, rest in steps() if word in {"CMD", "ENTRYPOINT"}))
    assert f'{command[0]} = "scalewright' in PYPROJECT


@pytest.mark.skipif(shutil.which("sh") is None, reason="sh isn't here")
@pytest.mark.parametrize("base_has_python", [True, False])
def test_its_steps_run(tmp_path: Path, base_has_python: bool) -> None:
    calls, tools, opt = tmp_path / "calls", tmp_path / "tools", tmp_path / "opt"
    tools.mkdir()
    for name, text in STAND_INS.items():
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o755)
    for name in ("rm", "mkdir", "chmod", "sh"):
        (tools / name).symlink_to(str(shutil.which(name)))
    environment = {**arguments(), "PATH": str(tools), "CALLS": str(calls), "PYTHON": sys.executable}
    environment["PYTHONPATH"] = str(ROOT / "src")
    later = tools / "python3"
    if not base_has_python:
        later = later.rename(tmp_path / "python3")
    for word, rest in steps():
        rest = rest.replace("/opt", str(opt)).replace("/var/lib", str(tmp_path))
        if word == "COPY":
            *sources, target = rest.split()
            Path(target).mkdir(parents=True, exist_ok=True)
            for source in sources:
                path = ROOT / source
                shutil.copy(path, target) if path.is_file() else Path(target, "there").touch()
        elif word == "ENV":
            name, value = rest.split("=", 1)
            environment[name] = value.replace("$PATH", environment["PATH"])
        elif word == "RUN":
            done = subprocess.run(["sh", "-ec", rest], env=environment, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, f"{rest}\n{done.stderr}"
            if later.parent == tmp_path:  # what apt-get has installed
                later = later.rename(tools / "python3")
    noted = calls.read_text().splitlines()
    assert any("python3-venv" in line for line in noted) is not base_has_python
    words = shlex.split(noted[-1])
    assert words[:3] == ["-m", "pip", "install"]
    assert words[-1] == f".[{arguments()['EXTRAS']}]"
    assert (opt / "scalewright" / words[words.index("-c") + 1]).is_file()
    assert os.access(opt / "venv" / "bin" / "scalewright", os.X_OK)
