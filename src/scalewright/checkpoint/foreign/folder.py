"""A folder of another trainer: whose it is, and its tensors under our names, one at a time.

    .metadata                            DCP: torchtitan, Megatron-LM (torch_dist), Hugging Face's names
    checkpoint_metadata.json, model/     nanotron
    *model_states.pt, zero/*/fp32.pt     DeepSpeed, in Hugging Face's names
    latest, step-10/, iter_0000010/      the folder of the newest save below, or below checkpoint/

Which table of names applies is found by the embedding: the table, and a prefix such as `model.`, under which the folder
has it. Then everything is checked: each tensor of the model is there in its shape, and none is left over.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from scalewright.checkpoint.foreign.files import ForeignFiles
from scalewright.checkpoint.foreign.index import Shape
from scalewright.checkpoint.foreign.models import model_of
from scalewright.checkpoint.foreign.names import NAMINGS
from scalewright.model.huggingface import HuggingFaceFolder
from scalewright.model.names import Location, locations
from scalewright.spec.common.formatting import counted
from scalewright.spec.common.untrusted import inside, read_bytes
from scalewright.spec.errors import UserError

STACKED = re.compile(r"(.*?decoder\.layers\.)(\D.*)")  # Megatron: all layers in one tensor
STEPS = re.compile(r"(?:step-|iter_|global_step)?(\d+)")
POINTERS = ("latest", "latest_universal", "latest.txt", "latest_checkpointed_iteration.txt")


@dataclass(frozen=True)
class View:
    """A tensor of theirs, or a layer of a stack, perhaps without its last rows; a slice of safetensors."""

    files: ForeignFiles
    name: str
    shape: Shape
    layer: int | None = None

    def get_shape(self) -> list[int]:
        return list(self.shape)

    def __getitem__(self, box: Sequence[slice] | slice) -> Tensor:
        slices = (box,) if isinstance(box, slice) else tuple(box)
        bounds = [s.indices(n) for s, n in zip(slices, self.shape, strict=True)]
        offsets, sizes = [first for first, _, _ in bounds], [last - first for first, last, _ in bounds]
        if self.layer is None:
            part = self.files.read(self.name, offsets, sizes)
        else:
            part = self.files.read(self.name, [self.layer, *offsets], [1, *sizes])[0]
        return part[tuple(slice(None, None, step) for _, _, step in bounds)]


class Views:
    """A folder's tensors by the names of a table; what `safe_open` is of a file."""

    def __init__(self, views: Mapping[str, View]) -> None:
        self._views = views

    def keys(self) -> list[str]:
        return list(self._views)

    def get_slice(self, name: str) -> View:
        return self._views[name]


def kind_of(folder: Path) -> str | None:
    """Whose checkpoint this is; None: of none that is read."""
    if (folder / ".metadata").is_file():
        return "dcp"
    if (folder / "checkpoint_metadata.json").is_file() and (folder / "model").is_dir():
        return "nanotron"
    if any(folder.glob("*model_states.pt")) or any((folder / "zero").glob("*/fp32.pt")):
        return "deepspeed"
    return None


def find_foreign(source: Path) -> Path | None:
    """The checkpoint in a folder: itself, the one that its pointer names, or the newest below; None: none."""
    if kind_of(source):
        return source
    if not source.is_dir():
        return None
    for name in POINTERS:
        if (source / name).is_file():
            tag = read_bytes(inside(source, name), 4096).decode("utf-8", "replace").strip()
            for folder in (tag, f"iter_{tag.zfill(7)}"):
                if re.fullmatch(r"[\w.+-]+", folder) and ".." not in folder and kind_of(source / folder):
                    return source / folder
    steps = [(int(match[1]), p) for p in source.iterdir() if (match := STEPS.fullmatch(p.name))]
    newest = next((folder for _, folder in sorted(steps, reverse=True) if kind_of(folder)), None)
    below = source / "checkpoint"  # in torchtitan's dump folder
    return find_foreign(below) if newest is None and below.is_dir() else newest


class ForeignFolder:
    """A checkpoint of another trainer as a source of our tensors; raises UserError."""

    def __init__(self, folder: Path, model: str | None = None) -> None:
        self.folder, self.files = folder, ForeignFiles(folder, str(kind_of(folder)))
        self.spec = model_of(folder, self.files.facts, model)
        views = _views(self.files)
        self.trainer, prefix = self._table(views)
        table = locations(self.spec) if self.trainer == "huggingface" else NAMINGS[self.trainer].locations(self.spec)
        self._known = {name.removeprefix(prefix): view for name, view in views.items() if name.startswith(prefix)}
        self._check(table)
        self._reader = HuggingFaceFolder(folder, self.spec, {"": Views(self._known)}, table)
        self._pairs = self._has_pairs()

    def read(self, name: str) -> Tensor:
        """One tensor of ours, whole, in the type in which it lies there."""
        tensor = self._reader.read(name)
        if self._pairs and re.search(r"\.attention\.[qk]\.", name):
            heads = tensor.shape[0] // self.spec.dim_per_head
            pairs = tensor.view(heads, self.spec.dim_per_head // 2, 2, *tensor.shape[1:])
            return pairs.transpose(1, 2).reshape(tensor.shape)
        return tensor

    def _has_pairs(self) -> bool:
        """Whether RoPE turns a head's rows (0, 1), (2, 3), where ours are (0, n/2), (1, n/2 + 1)."""
        if self.trainer == "nanotron":
            return bool(self.files.facts.get("rope_interleaved", True))
        if self.trainer == "megatron":
            return bool(self.files.facts.get("rotary_interleaved", False))
        return self.trainer in NAMINGS and self.spec.family in NAMINGS[self.trainer].pairs

    def _table(self, views: Mapping[str, View]) -> tuple[str, str]:
        """The table of names that the folder is written in, and the prefix before them."""
        embeddings = {"huggingface": locations(self.spec)["embed.weight"].name}
        embeddings |= {trainer: naming.names("embed.weight")[0] for trainer, naming in NAMINGS.items()}
        for trainer, embedding in embeddings.items():
            for name in sorted(views, key=len):
                if name == embedding or name.endswith("." + embedding):
                    return trainer, name.removesuffix(embedding)
        some = ", ".join(sorted(views)[:3])
        how = "torchtitan's, Megatron-LM's, nanotron's and Hugging Face's names are read"
        raise UserError(f"no table has the names of its tensors ({some}, ...)"[:300], str(self.folder), how)

    def _check(self, table: Mapping[str, Location]) -> None:
        """Every tensor of the model is there, in its shape, and no other is."""
        spec, taken, missing = self.spec, set(), []
        for ours, location in table.items():
            for part in location.parts:
                name = next((n for n in (part.name, *part.other_names) if n in self._known), None)
                if name is None:
                    missing.append(part.name)
                else:
                    taken.add(name)
                    self._fit(name, part, ours)
        if missing:
            raise self._problem(f"{counted(len(missing), f'tensors of {spec.name} are')} missing: {_first(missing)}")
        tied = self._tied_heads() if spec.tie_word_embeddings else set()
        if left := sorted(self._known.keys() - taken - tied):
            raise self._problem(f"{counted(len(left), 'tensors are')} no part of {spec.name}: {_first(left)}")

    def _fit(self, name: str, part: Location, ours: str) -> None:
        """Compares a shape; a padded vocabulary loses its padding."""
        view = self._known[name]
        padded = self.trainer in NAMINGS and NAMINGS[self.trainer].padded and ours in ("embed.weight", "head.weight")
        if padded and view.shape[1:] == part.shape[1:] and view.shape[0] > part.shape[0]:
            self._known[name] = replace(view, shape=part.shape)
        elif view.shape != part.shape:
            shapes = f"{list(view.shape)} there, and {list(part.shape)} in {self.spec.name}"
            raise self._problem(f"tensor '{name}' is {shapes}")

    def _tied_heads(self) -> set[str]:
        """The copies of a tied embedding that some trainers save; they must be equal to it."""
        if self.trainer in NAMINGS:
            heads, embeds = (NAMINGS[self.trainer].names(name) for name in ("head.weight", "embed.weight"))
        else:
            heads, embeds = (["lm_head.weight", "embed_out.weight"], [locations(self.spec)["embed.weight"].name])
        copies = {name for name in heads if name in self._known}
        for name in copies:
            head, embed = self._known[name], self._known[embeds[0]]
            rows = slice(0, embed.shape[0]), slice(0, embed.shape[1])
            if head.shape[1:] != embed.shape[1:] or not torch.equal(head[rows], embed[rows]):
                raise self._problem(f"'{name}' isn't the embedding, to which {self.spec.name} ties it")
        return copies

    def _problem(self, what: str) -> UserError:
        return UserError(what, str(self.folder), "give the model that was trained there with --model")


def _views(files: ForeignFiles) -> dict[str, View]:
    """Their tensors; one that stacks all layers becomes one for each."""
    views = {}
    for name, tensor in files.tensors.items():
        stacked = STACKED.fullmatch(name)
        if stacked and tensor.shape:
            for layer in range(tensor.shape[0]):
                views[f"{stacked[1]}{layer}.{stacked[2]}"] = View(files, name, tensor.shape[1:], layer)
        else:
            views[name] = View(files, name, tensor.shape)
    return views


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
