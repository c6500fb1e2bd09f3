"""An export without a defect: a small llama in shards, with a tokenizer and a chat template; and how to change one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from chat_folders import CHATS, make_tokenizer
from scalewright.model.companions import Training
from scalewright.model.huggingface import write_huggingface
from scalewright.model.load import FreshWeights
from scalewright.spec.ends import Ends
from scalewright.spec.model import ModelSpec

INDEX = "model.safetensors.index.json"
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
Change = Callable[[Path], None]


def export(folder: Path, chat: bool = True, shard: int = 20_000, **keys: Any) -> Path:
    """A folder as `convert` writes it; texts and turns end with <|im_end|>."""
    tokenizer = make_tokenizer(folder / "tokenizer", CHATS["qwen"])
    (folder / "tokenizer" / "chat_template.jinja").unlink()
    if chat:
        (folder / "tokenizer" / "chat_template.jinja").write_text(CHATML)
    small = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    spec = ModelSpec.parse({**small, "vocab_size": tokenizer.get_vocab_size() + 6, "context": 128, **keys})
    training = Training(folder / "tokenizer", ends=Ends((tokenizer.token_to_id("<|im_end|>"),)))
    write_huggingface(folder / "out", spec, FreshWeights(spec).read, "bfloat16", shard, training=training)
    return folder / "out"


def edited(name: str, *without: str, **keys: Any) -> Change:
    """Sets keys of a JSON file, or takes them out."""

    def change(folder: Path) -> None:
        content = {**json.loads((folder / name).read_text()), **keys}
        (folder / name).write_text(json.dumps({key: value for key, value in content.items() if key not in without}))

    return change


def written(name: str, text: str | bytes) -> Change:
    """Writes a file."""
    return lambda folder: (folder / name).write_bytes(text.encode() if isinstance(text, str) else text) and None


def removed(name: str) -> Change:
    """Removes a file."""
    return lambda folder: (folder / name).unlink()


def tensors(change: Callable[[dict[str, Tensor]], Any], file: int = 0, metadata: Any = None) -> Change:
    """Changes the tensors of the n-th file in place."""

    def rewrite(folder: Path) -> None:
        path = sorted(folder.glob("*.safetensors"))[file]
        held = load_file(path)
        change(held)
        save_file(held, path, {"format": "pt"} if metadata is None else metadata)

    return rewrite


def spoiled(held: dict[str, Tensor], value: float) -> None:
    """A number of the file's first tensor isn't one."""
    next(iter(held.values())).view(-1)[3] = value


def indexed(change: Callable[[dict[str, Any]], Any]) -> Change:
    """Changes the index in place."""

    def rewrite(folder: Path) -> None:
        content = json.loads((folder / INDEX).read_text())
        change(content)
        (folder / INDEX).write_text(json.dumps(content))

    return rewrite


def moved(folder: Path) -> None:
    """A tensor lies in the last shard, and the index says the first."""
    first, *_, last = sorted(folder.glob("*.safetensors"))
    here, there = load_file(first), load_file(last)
    key = next(iter(here))
    there[key] = here.pop(key)
    save_file(here, first, {"format": "pt"})
    save_file(there, last, {"format": "pt"})


def copied(folder: Path) -> None:
    """A tensor lies in two shards."""
    first, *_, last = sorted(folder.glob("*.safetensors"))
    there = {**load_file(last), **dict([next(iter(load_file(first).items()))])}
    save_file(there, last, {"format": "pt"})


def headed(equal: bool) -> Change:
    """A head beside the embedding to which it is tied."""

    def change(folder: Path) -> None:
        (path,) = folder.glob("*.safetensors")
        held = load_file(path)
        head = held["model.embed_tokens.weight"].clone()
        held["lm_head.weight"] = head if equal else head + torch.ones_like(head)
        save_file(held, path, {"format": "pt"})

    return change
