"""Small Hugging Face folders like those of three families' chat models, with all files that those have."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

SMALL = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 128,
}  # fmt: skip
TEXTS = [f"alpha beta gamma {n % 7} delta {n % 5}" for n in range(200)]


@dataclass(frozen=True)
class Chat:
    """A family's way to begin and end texts; tokens by name."""

    kind: str
    special: list[str]
    eos: str
    listed: list[str] | str  # of config.json and generation_config.json
    bos: str | None = None
    adds_bos: bool = False
    pad: str | None = None
    others: dict[str, Any] = field(default_factory=dict)


CHATS = {
    "llama3": Chat(
        "Llama",
        ["<|begin_of_text|>", "<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"],
        "<|eot_id|>",
        ["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"],
        "<|begin_of_text|>",
        adds_bos=True,
    ),
    "qwen": Chat(
        "Qwen2",
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        "<|im_end|>",
        "<|im_end|>",
        pad="<|endoftext|>",
        others={"add_bos_token": False},
    ),
    "gemma": Chat(
        "Gemma2",
        ["<pad>", "<eos>", "<bos>", "<end_of_turn>"],
        "<eos>",
        ["<eos>", "<end_of_turn>"],
        "<bos>",
        adds_bos=True,
        pad="<pad>",
        others={"add_bos_token": True},
    ),
}


def make_tokenizer(folder: Path, chat: Chat) -> Tokenizer:
    """tokenizer.json and the files beside it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=290, special_tokens=chat.special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    if chat.adds_bos and chat.bos:
        start = tokenizer.token_to_id(chat.bos)
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{chat.bos} $A", pair=f"{chat.bos} $A {chat.bos} $B:1", special_tokens=[(chat.bos, start)]
        )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {"bos_token": chat.bos, "eos_token": chat.eos, "pad_token": chat.pad}
    config = {**named, **chat.others, "model_max_length": 4096, "tokenizer_class": "PreTrainedTokenizerFast"}
    write(folder / "tokenizer_config.json", config)
    write(folder / "special_tokens_map.json", {key: value for key, value in named.items() if value})
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}<end>{% endfor %}\n")
    return tokenizer


def make_folder(folder: Path, name: str, vocab_size: int | None = None) -> Path:
    """A tiny model of the family, with its tokenizer, sampling defaults, licence and card."""
    chat = CHATS[name]
    tokenizer = make_tokenizer(folder, chat)
    listed = [tokenizer.token_to_id(t) for t in chat.listed] if isinstance(chat.listed, list) else None
    ids = {
        "bos_token_id": tokenizer.token_to_id(chat.bos) if chat.bos else None,
        "eos_token_id": listed or tokenizer.token_to_id(chat.eos),
        "pad_token_id": tokenizer.token_to_id(chat.pad) if chat.pad else None,
    }
    torch.manual_seed(0)
    words = vocab_size or tokenizer.get_vocab_size()
    own = {"sliding_window": 16, "query_pre_attn_scalar": 16} if name == "gemma" else {}
    config = getattr(transformers, f"{chat.kind}Config")(**SMALL, vocab_size=words, **ids, **own)
    getattr(transformers, f"{chat.kind}ForCausalLM")(config).save_pretrained(folder)
    sampling = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.05}
    write(folder / "generation_config.json", {**ids, **sampling, "transformers_version": "4.40.0"})
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n# The base\n\nWhat it was.\n")
    (folder / "LICENSE").write_text("Apache\n")
    return folder


def write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2))
