"""A Hugging Face folder, read one tensor (or one box of a tensor) at a time, and written one shard at a time.

    config.json                    model.safetensors              one file, or
    generation_config.json         model-00001-of-00003.safetensors ... + model.safetensors.index.json
    tokenizer.json ...

Reading maps the file and copies only the requested rows, so a rank of any layout reads just its box. Writing
holds one shard; the files appear under their names only when complete, config.json last. Pickled weights
(`*.bin`) are refused: loading them can run code.

In MXFP4 gpt-oss publishes its experts: four bits a number, and an exponent for each 32 of them (OCP Microscaling
Formats (MX) v1.0, 2023, §5.3.3 and §5.4.1). They are read, and written as plain numbers: each is one of bfloat16.

    blocks  uint8 [..., in / 32, 16]     two numbers a byte, the low half first
    scales  uint8 [..., in / 32]         the exponent, + 127

    number = e2m1(four bits) * 2 ** (scale - 127)      e2m1: 0, 0.5, 1, 1.5, 2, 3, 4, 6, or one of -0 to -6
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file as save_privately
from torch import Tensor

from scalewright.model.companions import Training, write_companions
from scalewright.model.companions import end_of_text as end_of_text
from scalewright.model.names import Location, locations
from scalewright.spec.common.untrusted import inside, read_json
from scalewright.spec.errors import RunError, UserError, unknown
from scalewright.spec.huggingface import to_huggingface
from scalewright.spec.model import ModelSpec

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_SHARD_BYTES = 5_000_000_000


class HuggingFaceFolder:
    """The tensors of a folder, by our canonical names; opens every file once, and checks names and shapes.

    Raises UserError for a missing, truncated or pickled file, a missing tensor, a shape that isn't right;
    when it reads, for a prediction module with another embedding or head than the model's. `files` and
    `table`: other files that have the methods of `safe_open`, with the places of our tensors in them.
    """

    def __init__(
        self,
        folder: str | Path,
        spec: ModelSpec,
        files: Mapping[str, Any] | None = None,
        table: Mapping[str, Location] | None = None,
    ) -> None:
        self.folder, self.spec = Path(folder), spec
        self._files: Mapping[str, Any] = files or {
            name: _open(inside(self.folder, name)) for name in weight_files(self.folder)
        }
        self._home = {key: name for name, file in self._files.items() for key in file.keys()}  # noqa: SIM118
        self._locations = table or locations(spec)
        self._packed: set[str] = set()  # keys of which the folder has MXFP4's blocks and scales
        self._keys = {
            part.name: self._find(name, part) for name, location in self._locations.items() for part in location.parts
        }

    def names(self) -> list[str]:
        """The canonical names that can be read (a tied head's too)."""
        return list(self._locations)

    def read(self, name: str) -> Tensor:
        """One tensor of ours, whole, in the file's dtype, on the CPU."""
        shape = self._locations[name].our_shape
        return self.read_slice(name, [0] * len(shape), shape)

    def read_slice(self, name: str, offsets: Sequence[int], sizes: Sequence[int]) -> Tensor:
        """The box of a tensor of ours that begins at `offsets` and is `sizes` long; nothing else is read."""
        location = self._locations[name]
        if location.experts:
            chosen = range(offsets[0], offsets[0] + max(1, sizes[0]))  # one gives the dtype of none
            boxes = [self._read_box(location.of_expert(e), offsets[1:], sizes[1:]) for e in chosen]
            return torch.stack(boxes)[: sizes[0]]
        box = self._read_box(location, offsets, sizes)
        for copy in location.copies:
            if copy in self._home and not torch.equal(self._read_box(location, offsets, sizes, copy), box):
                problem = f"'{copy}' differs from '{location.name}', and prediction modules share the model's here"
                how = "set mtp_layers to 0 in the model (num_nextn_predict_layers in config.json)"
                raise UserError(problem, str(self.folder), how)
        return box

    def _read_box(
        self, location: Location, offsets: Sequence[int], sizes: Sequence[int], copy: str | None = None
    ) -> Tensor:
        key, dim = copy or self._keys[location.name], location.rows_dim
        if key in self._packed:
            return self._read_packed(location, offsets, sizes)
        file_slice = self._files[self._home[key]].get_slice(key)
        if 0 in sizes:
            return torch.empty(tuple(sizes), dtype=file_slice[tuple(slice(0, 1) for _ in sizes)].dtype)
        box = [slice(o, o + s) for o, s in zip(offsets, sizes, strict=True)]
        parts = []
        for run in location.rows.runs(box[dim].start, box[dim].stop):
            box[dim] = slice(run.theirs.start, run.theirs.stop)
            part = file_slice[(*box[:-2], box[-1], box[-2]) if location.transposed else tuple(box)]
            part = part.transpose(-2, -1) if location.transposed else part
            parts.append(part[(*[slice(None)] * dim, slice(None, None, run.theirs.step))])
        return parts[0].contiguous() if len(parts) == 1 else torch.cat(parts, dim)

    def _read_packed(self, location: Location, offsets: Sequence[int], sizes: Sequence[int]) -> Tensor:
        """A box of a stack in MXFP4, whose matrices lie as ours do: unpacked expert by expert."""
        out = torch.empty(tuple(sizes), dtype=torch.bfloat16)
        if 0 in sizes:
            return out
        names = [f"{self._keys[location.name]}_{kind}" for kind in ("blocks", "scales")]
        slices = [self._files[self._home[name]].get_slice(name) for name in names]
        expert, row, column = offsets
        (run,) = location.rows.runs(row, row + sizes[1])
        rows, groups = run.theirs, slice(column // GROUP, -(-(column + sizes[2]) // GROUP))
        for index in range(sizes[0]):
            at = (slice(expert + index, expert + index + 1), slice(rows.start, rows.stop), groups)
            blocks, scales = (part[at][0, :: rows.step] for part in slices)
            whole = unpacked(blocks, scales)
            first = column - groups.start * GROUP
            out[index] = whole[:, first : first + sizes[2]]
        return out

    def _find(self, name: str, location: Location) -> str:
        """The name that this folder has for the tensor, its shape checked."""
        names = (location.name, *location.other_names)
        key = next((k for k in names if k in self._home), None)
        if key is not None:
            self._check(key, location.shape)
            return key
        packed = next((k for k in names if {f"{k}_blocks", f"{k}_scales"} <= self._home.keys()), None)
        if packed is None or not location.stacked or len(location.shape) != 3:
            how = f"the model's config says it has one (our {name}); check that all files are there"
            if name.startswith("mtp."):
                how = "transformers saves no prediction modules: set train.mtp_weight to 0, or mtp_layers"
            raise UserError(f"tensor '{location.name}' is missing", str(self.folder), how)
        experts, width, rows = location.shape
        self._check(f"{packed}_blocks", (experts, rows, width // GROUP, BYTES))
        self._check(f"{packed}_scales", (experts, rows, width // GROUP))
        self._packed.add(packed)
        return packed

    def _check(self, key: str, expected: tuple[int, ...]) -> None:
        shape = tuple(self._files[self._home[key]].get_slice(key).get_shape())
        if shape != expected:
            problem = f"tensor '{key}' has shape {shape}, and config.json makes it {expected}"
            how = "use the config.json that belongs to these weights"
            raise UserError(problem, str(self.folder / self._home[key]), how)


def has_predictions(folder: Path, spec: ModelSpec) -> bool:
    """Whether a folder has the prediction modules of its config.json, which transformers doesn't save."""
    named = locations(spec)["mtp.0.join.weight"]
    files = (_open(inside(folder, name)) for name in weight_files(folder))
    stored = {key for file in files for key in file.keys()}  # noqa: SIM118
    return not stored.isdisjoint((named.name, *named.other_names))


def weight_files(folder: Path) -> list[str]:
    """The safetensors files of a folder, by name; raises UserError when there are none."""
    index = folder / INDEX
    if index.is_file():
        try:
            names = sorted({str(name) for name in read_json(inside(folder, INDEX))["weight_map"].values()})
        except UserError:
            raise
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise UserError("the index of the weights is damaged", str(index), f"fetch it again ({error})") from None
        if missing := [name for name in names if not inside(folder, name).is_file()]:
            raise UserError(f"weight file '{missing[0]}' is missing", str(folder), "the index names it: fetch it again")
        return names
    if (folder / SINGLE).is_file():
        return [SINGLE]
    if pickled := [path for ending in ("bin", "pt", "pth") for path in sorted(folder.glob(f"*.{ending}"))]:
        how = "convert it to safetensors first"
        raise UserError(f"'{pickled[0].name}' is a pickle, which can run code when it is loaded", str(folder), how)
    raise UserError(f"no weights: neither {SINGLE} nor {INDEX}", str(folder), "check the path")


def _open(path: Path) -> Any:
    """A safetensors file, mapped; raises UserError naming a damaged one."""
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError, ValueError) as error:
        problem = f"damaged or truncated safetensors file: {error}"
        raise UserError(problem, str(path), "fetch or save it again") from None


def write_huggingface(
    folder: str | Path,
    spec: ModelSpec,
    get_tensor: Callable[[str], Tensor],
    dtype: str = "float32",
    max_shard_bytes: int = MAX_SHARD_BYTES,
    tokenizer_dir: str | Path | None = None,
    training: Training | None = None,
) -> list[Path]:
    """Writes a folder that `transformers` loads; returns the weight files' paths.

    `get_tensor(canonical name)` returns one whole tensor on any device; it is called once for each of
    theirs, in their order. At most one shard is held at a time. `training`: the other files (companions.py);
    without it, tokenizer files are copied from `tokenizer_dir`.
    Raises UserError for a family without names, RunError when the disk fails or a tensor has a wrong shape.
    """
    folder = Path(folder)
    kind = torch_dtype(dtype)
    shards = _plan_shards(spec, kind.itemsize, max_shard_bytes)
    stacks = _Stacks(get_tensor)
    to_huggingface(spec)  # raises UserError before anything is written
    many = len(shards)
    names = [SINGLE] if many == 1 else [f"model-{i:05d}-of-{many:05d}.safetensors" for i in range(1, many + 1)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for stale in (folder / SINGLE, folder / INDEX, folder / "config.json"):
            stale.unlink(missing_ok=True)
        for name, shard in zip(names, shards, strict=True):
            partial = folder / f"{name}.partial"  # so that a file with the right name is whole
            save_file({key: _join(parts, stacks, kind) for key, parts in shard.items()}, partial, {"format": "pt"})
            os.replace(partial, folder / name)
        if many > 1:
            total = sum(_bytes(parts, kind.itemsize) for shard in shards for parts in shard.values())
            weight_map = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
            index = {"metadata": {"total_size": total}, "weight_map": weight_map}
            (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        tokenizer = Path(tokenizer_dir) if tokenizer_dir else None
        write_companions(folder, spec, dtype, training or Training(tokenizer))
    except (OSError, SafetensorError) as error:
        raise RunError(f"cannot write the Hugging Face folder {folder}: {error}") from error
    return [folder / name for name in names]


Parts = list[tuple[str, Location]]


def _plan_shards(spec: ModelSpec, itemsize: int, limit: int) -> list[dict[str, Parts]]:
    """Their tensors in the order of the model, with the parts of ours in each, in shards of `limit` bytes."""
    tensors: dict[str, Parts] = {}
    for name, location in locations(spec).items():
        for part in location.parts:
            parts = tensors.setdefault(part.name, [])
            if all(known != part for _, known in parts):  # a tied head is the embedding once more
                parts.append((name, part))
            for copy in part.copies:
                tensors[copy] = [(name, part)]
    shards: list[dict[str, Parts]] = [{}]
    held = 0
    for key, parts in tensors.items():
        size = _bytes(parts, itemsize)
        if shards[-1] and held + size > limit:
            shards.append({})
            held = 0
        shards[-1][key] = parts
        held += size
    return shards


def _bytes(parts: Parts, itemsize: int) -> int:
    return prod(parts[0][1].shape) * itemsize


class _Stacks:
    """Ours by name and place; a stack of experts stays until all of its parts were taken."""

    def __init__(self, get_tensor: Callable[[str], Tensor]) -> None:
        self.get_tensor = get_tensor
        self._kept: tuple[str, Tensor] | None = None

    def get(self, name: str, location: Location) -> Tensor:
        """What of ours lies there."""
        if location.expert is None:
            return self.get_tensor(name).detach()
        if self._kept is None or self._kept[0] != name:
            self._kept = None
            self._kept = name, self.get_tensor(name).detach()
        whole = self._kept[1]
        if location.expert == len(whole) - 1:
            self._kept = None
        return whole[location.expert]


def _join(parts: Parts, stacks: _Stacks, dtype: torch.dtype) -> Tensor:
    first = parts[0][1]
    out = torch.empty(first.shape, dtype=dtype)
    theirs = (out.transpose(-2, -1) if first.transposed else out).movedim(first.rows_dim, 0)
    for name, location in parts:
        tensor = stacks.get(name, location)
        if tuple(tensor.shape) != location.our_shape:
            raise RunError(f"tensor '{name}' is {tuple(tensor.shape)} here, and {location.our_shape} in the model")
        tensor = tensor.movedim(location.rows_dim, 0)
        for run in location.rows.runs(0, len(tensor)):
            theirs[run.theirs].copy_(tensor[run.ours])
    return out


def torch_dtype(name: str) -> torch.dtype:
    """float32, bfloat16 or float16 by name; raises UserError."""
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    full = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}.get(name, name)
    if full not in dtypes:
        raise unknown("dtype", name, dtypes)
    return dtypes[full]


GROUP, BYTES = 32, 16  # numbers that share a scale, and their bytes
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def unpacked(blocks: Tensor, scales: Tensor) -> Tensor:
    """blocks uint8 [..., G, 16], scales uint8 [..., G] -> bfloat16 [..., 32 G]."""
    table = torch.tensor([*E2M1, *(-number for number in E2M1)])
    halves = torch.stack([blocks & 15, blocks >> 4], dim=-1).flatten(-2)  # [..., G, 32]
    return torch.ldexp(table[halves.int()], scales[..., None].int() - 127).flatten(-2).to(torch.bfloat16)


def save_file(tensors: Mapping[str, Tensor], path: str | Path, metadata: dict[str, str] | None = None) -> None:
    """Writes tensors (contiguous, on the CPU) as a safetensors file whose mode follows the umask.

    Alone, safetensors writes a file that only its owner may read, beside a config.json that a team can.
    """
    with open(path, "wb"):
        pass
    mode = os.stat(path).st_mode & 0o777
    save_privately(dict(tensors), path, metadata=metadata)
    os.chmod(path, mode)
