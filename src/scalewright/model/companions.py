"""The files beside the weights of an exported Hugging Face folder: config, tokenizer, generation, model card.

the run's tokenizer files ─┐
the folder it began from ──┴─copied as they are─► OUT ─► changed only where training changed something:
                                                         eos, bos, vocabulary, positions, dtype, README.md
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalewright.spec.common.untrusted import inside, read_json
from scalewright.spec.ends import COMPANIONS, CONFIG, END_NAMES, Ends, json_object, template, token_name, with_ends
from scalewright.spec.huggingface import read_huggingface, to_huggingface
from scalewright.spec.model import ModelSpec
from scalewright.spec.same import differences

GENERATION, CARD = "generation_config.json", "README.md"
_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".gguf", ".pkl", ".npz")


@dataclass(frozen=True)
class Training:
    """What an export holds beside the weights."""

    tokenizer: Path | None = None  # the folder of the run's tokenizer files
    origin: Path | None = None  # the Hugging Face folder from which training began
    ends: Ends = field(default_factory=Ends)
    seq_len: int | None = None
    fresh: bool = False  # it began from random weights
    card: str | None = None  # text about the training, for the model card


def copy_origin(source: Path, out: Path) -> None:
    """Copies the files of a Hugging Face folder that hold no weights."""
    for name in _files(source):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(inside(source, name), out / name)


def _files(folder: Path) -> Iterator[str]:
    for path in sorted([*folder.glob("*"), *folder.glob("additional_chat_templates/*.jinja")]):
        weights = path.suffix in _WEIGHTS or path.name.endswith(".index.json")
        if path.is_file() and not weights and not path.name.startswith("."):
            yield path.relative_to(folder).as_posix()


def write_companions(folder: Path, spec: ModelSpec, dtype: str, training: Training) -> None:
    """Writes all but the weights, config.json last; raises UserError, OSError."""
    spec = spec.replace(context=_positions(spec, training))
    base = json_object(training.origin / "config.json") if training.origin else {}
    _copy(folder, training)
    config = _config(spec, base)
    ends, listed = training.ends.eod, base.get("eos_token_id")
    if not ends and listed is None and (usual := end_of_text(folder / "tokenizer.json")[1]) is not None:
        ends = (usual,)
    named = _set_tokenizer(folder, spec, ends, training.ends.bos)
    ids = {key: base.get(key) for key in _IDS if key in base} if base else named
    ids["eos_token_id"] = with_ends(listed, ends)
    generation = json_object(folder / GENERATION)
    if generation and ends:
        _update(folder / GENERATION, {"eos_token_id": with_ends(generation.get("eos_token_id"), ends)})
    elif not generation and (ends or not base):
        _write(folder / GENERATION, {"_from_model_config": True, "eos_token_id": ids["eos_token_id"]})
    if training.card is not None:
        _write_card(folder / CARD, training.card)
    _write(folder / "config.json", {**config, "dtype" if "dtype" in base else "torch_dtype": dtype, **ids})


def _positions(spec: ModelSpec, training: Training) -> int:
    """The positions that were trained; a table or a scaling that depends on the context stays as it is."""
    length, scaling = training.seq_len, spec.rope.scaling
    if length is None or spec.positions == "learned" or (scaling and scaling.kind in ("dynamic", "longrope")):
        return spec.context
    return length if training.fresh and scaling is None else max(length, spec.context)


def _copy(folder: Path, training: Training) -> None:
    """The run's tokenizer files, and what else the origin has: its tokenizer's only if it is the same one; no code, as
    transformers has all families that are written."""
    of_run, origin = training.tokenizer, training.origin
    if of_run is not None:
        for name in ("tokenizer.json", *COMPANIONS, GENERATION):
            if inside(of_run, name).is_file() and not (folder / name).exists():
                shutil.copyfile(of_run / name, folder / name)
    if origin is None:
        return
    words, theirs = folder / "tokenizer.json", inside(origin, "tokenizer.json")
    another = words.is_file() and theirs.is_file() and words.read_bytes() != theirs.read_bytes()
    for name in _files(origin):
        left = name == "config.json" or name.endswith(".py") or (another and name in COMPANIONS)
        if not left and not (folder / name).exists():
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(inside(origin, name), folder / name)


def _config(spec: ModelSpec, base: Mapping[str, Any]) -> dict[str, object]:
    """The config.json that training began from, with the changes of training; without one, a new one."""
    ours = to_huggingface(spec)
    if base.get("model_type") != ours["model_type"]:  # none, or that of a model for images, too
        return ours
    before = to_huggingface(read_huggingface(base))
    kept = {key: value for key, value in base.items() if key not in ("quantization_config", "auto_map")}
    changes = {key: value for key, value in ours.items() if before.get(key) != value}
    lost = differences(spec, read_huggingface({**kept, **changes}, name=spec.name))
    return {**kept, **(ours if lost else changes)}


def _set_tokenizer(
    folder: Path, spec: ModelSpec, ends: tuple[int, ...], bos: tuple[int, ...] | None
) -> dict[str, int | None]:
    """Makes the tokenizer's files begin and end texts as in training; returns the ids that they name."""
    path, config = folder / "tokenizer.json", json_object(folder / CONFIG)
    if not path.is_file():
        return {}
    words = _tokens(path)
    end = next((name for name, number in words.items() if number in ends[:1]), None)
    if not config:
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": spec.context}
        _write(folder / CONFIG, config | ({"eos_token": end} if end else {}))
    for name in (CONFIG, "special_tokens_map.json"):
        given = json_object(folder / name)
        if end and given and token_name(given, "eos_token") != end:
            old = given.get("eos_token")
            _update(folder / name, {"eos_token": {**old, "content": end} if isinstance(old, dict) else end})
    if bos is not None and _set_beginning(path, bos) and "add_bos_token" in config:
        _update(folder / CONFIG, {"add_bos_token": bool(bos)})
    return {f"{kind}_token_id": words.get(token_name(config, f"{kind}_token") or "") for kind in ("bos", "pad")}


def _set_beginning(path: Path, bos: tuple[int, ...]) -> bool:
    """Makes a tokenizer.json put these ids before a text; returns whether that was a change."""
    from tokenizers import Tokenizer, processors

    tokenizer = Tokenizer.from_file(str(path))
    before, after = template(tokenizer)
    if before == bos:
        return False
    names = {token: tokenizer.id_to_token(token) for token in (*bos, *after)}
    single = [*(names[token] for token in bos), "$A", *(names[token] for token in after)]
    second = [f"{'$B' if piece == '$A' else piece}:1" for piece in single]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair=[*single, *second], special_tokens=[(name, token) for token, name in names.items()]
    )
    tokenizer.save(str(path))
    return True


def end_of_text(tokenizer: Path) -> tuple[str, int] | tuple[None, None]:
    """The token that ends a text by a tokenizer.json and the config beside it, or by its name, and its id."""
    words, configured = _tokens(tokenizer), token_name(json_object(tokenizer.parent / CONFIG), "eos_token")
    name = next((name for name in (configured, *END_NAMES) if name in words), None)
    return (name, words[name]) if name is not None else (None, None)


def token_ids(tokenizer: Path) -> dict[str, int]:
    """The ids of a tokenizer.json's tokens; those added last, which come before others of an id. Raises what reading,
    JSON and a file of another kind raise."""
    content = read_json(tokenizer)
    vocabulary = content.get("model", {}).get("vocab")
    if isinstance(vocabulary, list):  # Unigram's pieces with their scores, in order
        vocabulary = {str(piece): number for number, (piece, _) in enumerate(vocabulary)}
    words = {str(token["content"]): int(token["id"]) for token in content.get("added_tokens") or ()}
    return words | (vocabulary if isinstance(vocabulary, dict) else {}) | words


def _tokens(tokenizer: Path) -> dict[str, int]:
    """As `token_ids`; none where that can't be read."""
    try:
        return token_ids(tokenizer)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return {}


def _write_card(path: Path, card: str) -> None:
    """The card before that of the model that training began from, whose YAML header stays first."""
    header, body = "", (text := path.read_text(encoding="utf-8") if path.is_file() else "")
    if text.startswith("---\n") and (end := text.find("\n---\n", 3)) > 0:
        header, body = text[: end + 5] + "\n", text[end + 5 :]
    began = f"\n# The model that it began from\n\n{body.strip()}\n" if body.strip() else ""
    path.write_text(header + card + began, encoding="utf-8")


def _update(path: Path, keys: Mapping[str, Any]) -> None:
    """Sets keys of a JSON file, whose bytes stay where nothing changes."""
    content = json_object(path)
    if any(key not in content or content[key] != value for key, value in keys.items()):
        _write(path, {**content, **keys})


def _write(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
