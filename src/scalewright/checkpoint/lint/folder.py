"""An export's files, each read once: JSON as objects, of weights the headers alone.

    model.safetensors   8 bytes: length of the header | header, JSON | numbers
                        {"lm_head.weight": {"dtype": "BF16", "shape": [96, 32], "data_offsets": [0, 6144]}, ...}

A file that can't be read is a finding, and what would have been read from it isn't looked at. The format is that of
safetensors 0.8 (Apache 2.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from scalewright.model.companions import token_ids
from scalewright.spec.chat import FILE
from scalewright.spec.common.untrusted import inside, open_regular, parse_json, read_json
from scalewright.spec.errors import Finding, UserError, reason, shortened
from scalewright.spec.families import FAMILIES
from scalewright.spec.huggingface import WRAPPERS, read_huggingface
from scalewright.spec.model import ModelSpec

CONFIG, GENERATION, INDEX = "config.json", "generation_config.json", "model.safetensors.index.json"
TOKENIZER, TOKENIZER_CONFIG, SPECIAL_MAP = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"
SMALL_JSON = (CONFIG, GENERATION, TOKENIZER_CONFIG, SPECIAL_MAP, INDEX)
HEADER_BYTES = 100_000_000  # safetensors' own limit
BITS = {
    "F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16,
    "I8": 8, "U8": 8, "BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4,
}  # fmt: skip
NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}  # as a config.json has them


SUBJECTS = {
    CONFIG: "config", GENERATION: "generation", TOKENIZER: "tokenizer", TOKENIZER_CONFIG: "tokenizer",
    SPECIAL_MAP: "tokenizer", FILE: "chat",
}  # fmt: skip


def problem(where: str, rule: str, what: str, how: str) -> Finding:
    """An engine fails, or computes or stops otherwise than was trained."""
    return Finding(SUBJECTS.get(where, "weights"), rule, "problem", shortened(what), how, where=where)


def warn(where: str, rule: str, what: str, how: str) -> Finding:
    """One may."""
    return replace(problem(where, rule, what, how), severity="warn")


class Stored(NamedTuple):
    """A tensor in a file."""

    name: str
    file: str
    dtype: str
    shape: tuple[int, ...]
    start: int  # byte of the file
    stop: int


@dataclass
class Export:
    """A folder, as far as it could be read."""

    folder: Path
    files: frozenset[str]  # names at its top
    json: dict[str, dict[str, Any]] = field(default_factory=dict)  # those that there are and that can be read
    damaged: list[Finding] = field(default_factory=list)
    stored: list[Stored] = field(default_factory=list)  # in the weight files' order; with an index those of its files
    formats: dict[str, object] = field(default_factory=dict)  # weight file -> `format` of its metadata
    words: Mapping[str, int] = field(default_factory=dict)  # a tokenizer.json's tokens, their ids
    spec: ModelSpec | None = None  # of families that are known here

    @property
    def config(self) -> Mapping[str, Any]:
        """config.json, or the part of the language model."""
        whole = self.json.get(CONFIG, {})
        text = whole.get("text_config")
        return text if isinstance(text, dict) and self.wrapped else whole

    @property
    def index(self) -> dict[str, str] | None:
        """The index's tensors with their files; None without a sound one."""
        given = self.json.get(INDEX, {}).get("weight_map")
        sound = isinstance(given, dict) and all(isinstance(name, str) for name in given.values())
        return given if sound else None

    @property
    def lacking(self) -> bool:
        """Whether a file of weights is missing, or can't be read."""
        named = set(self.index.values()) if self.index is not None else set(self.formats)
        damaged = any(finding.where.endswith(".safetensors") for finding in self.damaged)
        return damaged or not named <= self.formats.keys()

    @property
    def wrapped(self) -> bool:
        """Whether the language model is part of another."""
        whole = self.json.get(CONFIG, {})
        return isinstance(whole.get("text_config"), dict) and "num_hidden_layers" not in whole

    @property
    def quantised(self) -> bool:
        """Whether weights are in a format with scales, whose names and shapes are its own."""
        return any(part.get("quantization_config") for part in (self.json.get(CONFIG, {}), self.config))


def read(folder: Path) -> Export:
    """Reads a folder's files; what can't be read is in `damaged`."""
    export = Export(folder, frozenset(path.name for path in folder.iterdir()))
    for name in SMALL_JSON:
        if name in export.files:
            _read_json(export, name)
    if TOKENIZER in export.files:
        try:
            words = token_ids(inside(folder, TOKENIZER))
            if not all(type(number) is int for number in words.values()):
                raise ValueError("a token's id is no number")
            export.words = words
        except UNREAD as error:
            _note(export, TOKENIZER, f"it isn't a tokenizer: {reason(error)}", "save the tokenizer again")
    for name in sorted(export.files):
        if name.endswith(".safetensors") and not name.startswith(OTHER_WEIGHTS):
            try:
                _read_header(export, name)
            except UNREAD as error:
                _note(export, name, f"damaged or truncated: {reason(error)}", "save or fetch it again")
    kind = export.config.get("model_type")
    if isinstance(kind, str) and (kind in FAMILIES or kind in WRAPPERS):
        try:
            export.spec = read_huggingface(export.config, CONFIG)
        except UserError as error:
            what = f"it can't be read as {kind}: {error.what}"
            export.damaged.append(warn(CONFIG, "unread", what, error.how))
    return export


UNREAD = (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError)  # of files of another kind
OTHER_WEIGHTS = ("consolidated", "adapter_model", "optimizer")  # of other loaders: Mistral's own, PEFT, trainers


def _read_json(export: Export, name: str) -> None:
    try:
        content = read_json(inside(export.folder, name))
    except (OSError, ValueError) as error:
        _note(export, name, f"it isn't JSON: {reason(error)}", "save or fetch it again")
        return
    if isinstance(content, dict):
        export.json[name] = content
    else:
        _note(export, name, "it isn't a JSON object", "save or fetch it again")


def _note(export: Export, name: str, what: str, how: str) -> None:
    export.damaged.append(problem(name, "damaged", what, how))


def _read_header(export: Export, name: str) -> None:
    """Adds a file's tensors; raises ValueError for one that isn't whole."""
    path = inside(export.folder, name)
    size = path.stat().st_size
    with open_regular(path) as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(HEADER_BYTES, size - 8):
            raise ValueError(f"a header of {length:,} bytes in a file of {size:,}")
        header = parse_json(file.read(length), once=True)
    metadata = header.pop("__metadata__", None) or {}
    end = first = 8 + length
    held = []
    for key, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        shape, (start, stop) = tuple(int(dim) for dim in entry["shape"]), entry["data_offsets"]
        if first + start != end or (stop - start) * 8 != prod(shape) * BITS.get(entry["dtype"], -1):
            raise ValueError(f"tensor '{key}' doesn't lie where its shape and type put it")
        end = first + stop
        held.append(Stored(key, name, entry["dtype"], shape, first + start, end))
    if end != size:
        raise ValueError(f"{size:,} bytes, and its header says {end:,}")
    export.formats[name] = metadata.get("format")
    export.stored += held if export.index is None or name in export.index.values() else ()
