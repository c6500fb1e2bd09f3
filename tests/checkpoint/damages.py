"""What disks, copies and editors do to a checkpoint, at random: each of these must be found, and its place named.

kind                         what is found, by `verify`
bytes of a file of tensors   the file, and the bytes from where to where (one piece) it differs
sizes, missing, swapped      the file
a .json file or COMMIT       the file, by COMMIT
the same, signed anew        a number of a box: tensors that overlap, have a hole, or aren't in the file
an extra file                nothing: the checkpoint is as it was
"""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from checkpoint.ranks import assert_holds
from scalewright.checkpoint.read import CheckpointReader, newest_verified
from scalewright.checkpoint.verify import commit_text, verify
from scalewright.parallel.mesh import Mesh
from scalewright.spec.errors import UserError

SMALL_PIECE = 1000  # bytes, so that a small model's files have many

# Damages a file of a step's folder; returns what verify must say, as a regular expression, and the damaged byte
Damage = Callable[[Path, random.Random], tuple[str, int | None]]


def _data_file(folder: Path, draw: random.Random) -> Path:
    return draw.choice(sorted(folder.glob("*.safetensors")))


def flip(folder: Path, draw: random.Random) -> tuple[str, int | None]:
    """One bit."""
    file = _data_file(folder, draw)
    data = bytearray(file.read_bytes())
    place = draw.randrange(len(data))
    data[place] ^= 1 << draw.randrange(8)
    file.write_bytes(data)
    return re.escape(file.name), place


def garble(folder: Path, draw: random.Random) -> tuple[str, int | None]:
    """A run of other bytes: zeros, as after a crash of a disk, or anything."""
    file = _data_file(folder, draw)
    data = bytearray(file.read_bytes())
    start = draw.randrange(len(data) - 1)
    length = min(draw.choice([1, 16, 512, 4096]), len(data) - start)
    zeros, noise = bytes(length), draw.randbytes(length)
    before = bytes(data[start : start + length])
    data[start : start + length] = zeros if before != zeros and draw.random() < 0.5 else noise
    after = bytes(data[start : start + length])
    assert after != before
    file.write_bytes(data)
    return re.escape(file.name), start + next(i for i in range(length) if before[i] != after[i])


def blocks(folder: Path, draw: random.Random) -> tuple[str, int | None]:
    """Two blocks of a file in each other's place."""
    file = _data_file(folder, draw)
    data = bytearray(file.read_bytes())
    size = 64
    first, second = sorted(draw.sample(range(0, len(data) - size, size), 2))
    a, b = bytes(data[first : first + size]), bytes(data[second : second + size])
    assert a != b
    data[first : first + size], data[second : second + size] = b, a
    file.write_bytes(data)
    return re.escape(file.name), first + next(i for i in range(size) if a[i] != b[i])


def cut(folder: Path, draw: random.Random) -> tuple[str, int | None]:
    """The end is missing, down to an empty file."""
    file = _data_file(folder, draw)
    data = file.read_bytes()
    file.write_bytes(data[: draw.choice([0, 7, len(data) // 2, len(data) - 1])])
    return rf"{re.escape(file.name)} has \d+ bytes instead of", None


def longer(folder: Path, draw: random.Random) -> tuple[str, int | None]:
    """Something follows."""
    file = _data_file(folder, draw)
    file.write_bytes(file.read_bytes() + draw.randbytes(draw.choice([1, 4096])))
    return rf"{re.escape(file.name)} has \d+ bytes instead of", None


def missing(folder: Path, draw: random.Random) -> tuple[str, int | None]:
    """A file is gone, or only its name is left, as a folder or a link to nowhere."""
    file = _data_file(folder, draw)
    file.unlink()
    kind = draw.randrange(3)
    if kind == 1:
        file.mkdir()
    elif kind == 2:
        file.symlink_to("nowhere")
    return re.escape(file.name), None


def swapped(folder: Path, draw: random.Random) -> tuple[str, int | None]:
    """Two files of tensors under each other's names."""
    kind = draw.choice(["model", "optimizer"])
    first, second = draw.sample(sorted(folder.glob(f"{kind}-*")), 2)
    a, b = first.read_bytes(), second.read_bytes()
    first.write_bytes(b)
    second.write_bytes(a)
    return f"{re.escape(first.name)}|{re.escape(second.name)}", None


def stale(folder: Path, draw: random.Random) -> tuple[str, int | None]:
    """A file of an older step, with other numbers, in its place: of tensors, or one of the small ones."""
    older = folder.with_name("step-00000008")
    file = draw.choice([*sorted(folder.glob("*.safetensors")), *map(folder.joinpath, ("manifest.json", "state.json"))])
    shutil.copyfile(older / file.name, file)
    return re.escape(file.name), None


def heads_of_another(folder: Path, draw: random.Random) -> tuple[str, int | None]:
    """All small files of an older step, which fit each other."""
    for name in ("manifest.json", "state.json", "COMMIT"):
        shutil.copyfile(folder.with_name("step-00000008") / name, folder / name)
    return "step-00000012 holds step 8", None


def small_file(folder: Path, draw: random.Random) -> tuple[str, int | None]:
    """A bit, an end or all of a .json file."""
    file = folder / draw.choice(["manifest.json", "state.json"])
    data = bytearray(file.read_bytes())
    kind = draw.randrange(3)
    if kind == 0:
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    elif kind == 1:
        del data[draw.randrange(len(data)) :]
    else:
        file.unlink()
        return rf"{file.name} is missing", None
    file.write_bytes(data)
    return file.name, None


def edited(folder: Path, draw: random.Random) -> tuple[str, int | None]:
    """A number in a .json file, as an editor leaves it."""
    file = folder / draw.choice(["manifest.json", "state.json"])
    text = file.read_text()
    number = draw.choice(list(re.finditer(r"(?<![\w.])[0-9]+(?![\w.])", text)))
    file.write_text(f"{text[: number.start()]}{int(number[0]) + draw.choice([1, 5])}{text[number.end() :]}")
    return file.name, None


def commit(folder: Path, draw: random.Random) -> tuple[str, int | None]:
    """COMMIT cut, empty, or with another checksum."""
    file = folder / "COMMIT"
    text = file.read_text()
    kind = draw.randrange(3)
    if kind == 0:
        file.write_text(text[: draw.randrange(len(text) - 1)])
        return "COMMIT is damaged", None
    if kind == 1:
        file.write_text("")
        return "COMMIT is damaged", None
    value = draw.choice(list(re.finditer(r"crc32:([0-9a-f])", text)))
    other = draw.choice([digit for digit in "0123456789abcdef" if digit != value[1]])
    file.write_text(f"{text[: value.start(1)]}{other}{text[value.end(1) :]}")
    return r"(manifest|state)\.json is damaged", None


def signed(folder: Path, draw: random.Random) -> tuple[str, int | None]:
    """One number of one box, and COMMIT made anew: no checksum differs."""
    manifest = json.loads((folder / "manifest.json").read_text())
    file = draw.choice([entry for entry in manifest["files"].values() if "boxes" in entry])
    boxes = draw.choice(file["boxes"])
    rows = [boxes["shape"], boxes["offset"], boxes["size"]]
    rows += [run for name in boxes["names"] if isinstance(name, list) for run in name[1:]]
    row = draw.choice(rows)
    place = draw.randrange(len(row))
    other = [n for n in (0, row[place] - 1, row[place] + 1, row[place] * 2) if n >= 0 and n != row[place]]
    before = _stands_for(boxes)
    row[place] = draw.choice(other)
    if _stands_for(boxes) == before:  # the step of a single number
        row[place] += 1 << 62
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "COMMIT").write_text(commit_text(folder, manifest["step"]))
    return "tensor|manifest", None


def _stands_for(boxes: dict[str, Any]) -> object:
    runs = [name[1:] if isinstance(name, list) else [] for name in boxes["names"]]
    numbers = [[first + i * step for first, count, step in some for i in range(count)] for some in runs]
    return numbers, boxes["shape"], boxes["offset"], boxes["size"]


def extra(folder: Path, draw: random.Random) -> tuple[str, int | None]:
    """A file that the manifest doesn't know."""
    (folder / draw.choice([".DS_Store", "notes.txt", "model-00009-000.safetensors"])).write_bytes(b"extra")
    return "", None


DAMAGES: tuple[Damage, ...] = (
    flip, flip, flip, garble, garble, blocks, cut, longer, missing, swapped, stale, heads_of_another, small_file,
    edited, commit, signed, signed, extra,
)  # fmt: skip


def try_damage(root: Path, seed: int, alone: Mesh) -> tuple[str, str]:
    """One damage to step 12 of a folder that also has step 8. Returns its kind and what was found; raises
    AssertionError where it wasn't, where its place wasn't named, or where another step than the newest sound one is
    taken. The folder is as before when it returns."""
    draw = random.Random(seed)
    damage = DAMAGES[seed % len(DAMAGES)]
    folder, copy = root / "step-00000012", root / "whole"
    if not copy.exists():
        shutil.copytree(folder, copy)
    words, place = damage(folder, draw)
    problems = verify(folder)
    taken, _ = newest_verified(root, alone)
    assert taken is not None
    about = f"{damage.__name__} (seed {seed}): {problems}"
    if not words:
        assert (problems, taken.name) == ([], folder.name), about
        assert_holds(taken, 12)
    else:
        assert problems, about
        assert any(re.search(words, problem) for problem in problems), about
        assert taken.name == "step-00000008", about
        assert_holds(taken, 8)
        assert _refused(folder), about
    if place is not None:
        assert any(_names(problem, place) for problem in problems), f"{about}, byte {place}"
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    return damage.__name__, problems[0] if problems else ""


def _names(problem: str, place: int) -> bool:
    found = re.search(r"in bytes ([0-9,]+) to ([0-9,]+)", problem)
    return found is not None and int(found[1].replace(",", "")) <= place < int(found[2].replace(",", ""))


def _refused(folder: Path) -> bool:
    """Whether a reader of all tensors meets the damage, too."""
    try:
        reader = CheckpointReader(folder)
        for name in reader.manifest.tensors:
            reader.read(name)
    except UserError:
        return True
    return reader.manifest.step != 12  # heads of another step, whose files these aren't
