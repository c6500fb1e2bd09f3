"""Makes a folder that checks a GPU on a machine without a network: `make gpu-kit OUT=DIR PYTHON_TAG=cp312`.

    DIR/run.py        the GPU check (gpu_check.py): python3 run.py [--out …] [--minutes N] [--resume]
        src/ tests/ comparisons/      ours, as committed, with what isn't
        wheels/       what a bare image of PyTorch may lack, for one Python and platform
        kit.json      the commit, the Python, each wheel's module and the versions that will do

A wheel is unpacked by `run.py` where its module is missing or too old; torch, with its CUDA, must be there.
64 MiB at most: other machines may be reached through a narrow door.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 64 << 20
# Newest first: pip takes a wheel whose tag is one of these.
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (28, 27, 24, 17, 12, 5)]
PLATFORMS += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"]
# Beyond the base install: what training and its tests import, without what these would draw in (torch, a
# hub's client). Each is left out where no wheel of it fits the Python.
ALONE = ["safetensors", "tokenizers", "joblib", "liger-kernel", "pytest", "pluggy", "iniconfig"]
# numpy: 17 MiB, and torch is of no use without it. shfmt-py: a program without a module, for reading launch scripts.
LEFT_OUT = ["numpy", "shfmt-py"]


def main() -> int:
    """Writes the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "gpu-kit")
    parser.add_argument("--python-tag", default="cp312", help="of the Python there: cp311, cp312, cp313")
    options = parser.parse_args()
    tag = re.fullmatch(r"cp3(\d+)", options.python_tag)
    if tag is None or int(tag[1]) < 10:
        parser.error(f"{options.python_tag} isn't the tag of a Python from 3.10 on, such as cp312")
    if options.out.exists() and not (options.out / "kit.json").exists() and any(options.out.iterdir()):
        parser.error(f"{options.out} holds other files: give an empty folder, or a kit to make again")
    shutil.rmtree(options.out, ignore_errors=True)
    copy_sources(options.out)
    wheels = download(options.out / "wheels", options.python_tag)
    kit = {"python": options.python_tag, "source": source(), "wheels": wheels}
    (options.out / "kit.json").write_text(json.dumps(kit, indent=1) + "\n", encoding="utf-8")
    size = sum(path.stat().st_size for path in options.out.rglob("*") if path.is_file())
    print(f"{options.out}: {size / 2**20:.1f} MiB, {len(wheels)} wheels for {options.python_tag}")
    print("copy it to the machine, then: python3 run.py --out results")
    if size > LIMIT:
        print(f"error: {size / 2**20:.0f} MiB are more than {LIMIT >> 20}", file=sys.stderr)
        return 1
    return 0


def copy_sources(out: Path) -> None:
    """Files that git would commit, of the folders that the check needs."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z",
         "src", "tests", "comparisons", "pyproject.toml", "LICENSE", "NOTICE"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if name.startswith("comparisons/results/") or not (ROOT / name).is_file():
            continue
        target = out / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, target)
    shutil.copyfile(ROOT / "comparisons" / "gpu_check.py", out / "run.py")


def download(folder: Path, tag: str) -> list[dict[str, Any]]:
    """Wheels of the base install with what it needs, and of ALONE; what `run.py` must know of each."""
    wanted = importlib.metadata.requires("scalewright") or []
    folder.mkdir(parents=True)
    pip(folder, tag, [], [line for line in wanted if ";" not in line and name_of(line) not in LEFT_OUT])
    for name in ALONE:
        pip(folder, tag, ["--no-deps"], [name], optional=True)
    files = sorted(folder.glob("*.whl"))
    needs = wanted + [line for path in files for line in requirements(path)]
    return [{**look_into(path), "needed": constraints(path, needs)} for path in files]


def requirements(path: Path) -> list[str]:
    """What a wheel needs whatever its extras: `name>=1.0`, `name==2.0`."""
    with zipfile.ZipFile(path) as wheel:
        entry = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        lines = wheel.read(entry).decode().splitlines()
    stated = (line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: "))
    return [line for line in stated if "extra ==" not in line]


def constraints(path: Path, needs: list[str]) -> list[str]:
    """`>=1.0` and `==2.0` of all who need this wheel: an older one that is there won't do."""
    name = name_of(path.name.split("-")[0])
    found = [re.findall(r"(?:>=|==)\s*[\d.]+", line.split(";")[0]) for line in needs if name_of(line) == name]
    return sorted({match.replace(" ", "") for line in found for match in line})


def pip(folder: Path, tag: str, more: list[str], names: list[str], optional: bool = False) -> None:
    """Downloads for that Python, whatever Python runs this."""
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--dest",
        str(folder), "--only-binary=:all:", "--implementation", "cp", "--python-version", f"3.{tag[3:]}",
        "--abi", tag, "--abi", "abi3", "--abi", "none", *(f"--platform={name}" for name in PLATFORMS),
        *more, *names,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode and not optional:
        sys.exit(f"error: pip found no wheels for {tag}: {done.stderr.strip().splitlines()[-1]}")
    if done.returncode:
        print(f"left out: {' '.join(names)}: no wheel for {tag}")


def look_into(path: Path) -> dict[str, Any]:
    """Its name, version, the module that shows whether it is there, and whether any Python can have it."""
    name, version = path.name.split("-")[:2]
    with zipfile.ZipFile(path) as wheel:
        tops = {entry.split("/")[0].split(".")[0] for entry in wheel.namelist()}
        tops = {top for top in tops if top and not top.endswith(("dist-info", "data")) and top.isidentifier()}
        record = next((n for n in wheel.namelist() if n.endswith("top_level.txt")), None)
        stated = wheel.read(record).decode().split() if record else []
    public = [top for top in [*stated, *sorted(tops)] if top in tops and not top.startswith("_")]
    likely = [top for top in public if top.lower() == name.lower()] or public or sorted(tops)
    pure = path.name.endswith("-none-any.whl")
    return {"name": name_of(name), "version": version, "module": likely[0], "file": path.name, "pure": pure}


def name_of(line: str) -> str:
    """A requirement's name, as package indexes write it."""
    return re.split(r"[\[<>=!~; ]", line, maxsplit=1)[0].replace("_", "-").lower()


def source() -> dict[str, Any]:
    """The commit, and whether there are changes."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    changed = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True).stdout
    return {"commit": commit, "dirty": bool(changed.strip())}


if __name__ == "__main__":
    sys.exit(main())
