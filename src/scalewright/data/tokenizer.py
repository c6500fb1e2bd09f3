"""A byte-level BPE tokenizer, trained on the text or taken from a `tokenizer.json`.

Training starts from the 256 bytes and joins the most frequent neighbouring pair again and again (Sennrich
et al. 2016; on bytes: GPT-2, Radford et al. 2019), so any text can be written and no word is unknown. One
special token, `<|endoftext|>`, ends a document; the same characters inside a text are never read as it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalewright.spec.errors import UserError, install
from scalewright.spec.text.untrusted import read_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END = "<|endoftext|>"
SMALLEST_VOCABULARY = 257  # 256 bytes and END
SAMPLE_BYTES = 64 << 20
"""Text that a tokenizer is trained on; of more, an even sample. Merges hardly change beyond it."""

_ENDS = (END, "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "<｜end▁of▁sentence｜>")


def library() -> Any:
    """The `tokenizers` package; raises UserError when it isn't installed."""
    try:
        import tokenizers
    except ImportError:
        raise UserError("the tokenizers package is missing", "prepare", install("train")) from None
    return tokenizers


def default_vocab_size(text_bytes: int) -> int:
    """A vocabulary that fits the text: a large one would hold words that are hardly ever seen."""
    return 4096 if text_bytes < 16 << 20 else 16384 if text_bytes < 1 << 30 else 32768


def train_tokenizer(texts: Iterator[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE of at most `vocab_size` tokens (fewer when no more pairs are left); END is 0."""
    pack = library()
    tokenizer: Tokenizer = pack.Tokenizer(pack.models.BPE())
    tokenizer.pre_tokenizer = pack.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = pack.decoders.ByteLevel()
    trainer = pack.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=sorted(pack.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def read_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a `tokenizer.json` (or of its folder), that never truncates; raises UserError."""
    file = tokenizer_file(path)
    try:
        tokenizer: Tokenizer = library().Tokenizer.from_file(str(file))
    except UserError:
        raise
    except Exception as error:  # the library raises bare Exception
        raise UserError(
            f"not a readable tokenizer: {str(error).splitlines()[0]}",
            str(file),
            "give a tokenizer.json of `tokenizers`",
        ) from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True  # special tokens written in a text are text
    return tokenizer


def tokenizer_file(path: str | Path) -> Path:
    """The tokenizer.json that a path means; raises UserError when there is none."""
    file = Path(path).expanduser()
    file = file / "tokenizer.json" if file.is_dir() else file
    if not file.is_file():
        raise UserError("no such tokenizer", str(file), "give a tokenizer.json, or --vocab-size to learn one")
    return file


def vocabulary_size(tokenizer: Tokenizer) -> int:
    """One more than the largest id (numbers may have holes)."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1


def end_of_document(tokenizer: Tokenizer, path: Path, name: str | None = None) -> int:
    """The id that ends a document: `name`'s, tokenizer_config.json's, or a usual one's; raises UserError."""
    if name is not None:
        token_id = tokenizer.token_to_id(name)
        if token_id is None:
            raise UserError(f"the tokenizer has no token '{name}'", str(path), "name one that it has")
        return int(token_id)
    candidates = [configured] if (configured := _configured_end(path)) else []
    for candidate in [*candidates, *_ENDS]:
        token_id = tokenizer.token_to_id(candidate)
        if token_id is not None:
            return int(token_id)
    raise UserError("the tokenizer has no token that ends a document", str(path), "name it with --eod TOKEN")


def _configured_end(path: Path) -> str | None:
    """`eos_token` of the tokenizer_config.json beside a tokenizer.json."""
    try:
        config = read_json(path.parent / "tokenizer_config.json")
    except (OSError, ValueError):
        return None
    end = config.get("eos_token") if isinstance(config, dict) else None
    end = end.get("content") if isinstance(end, dict) else end
    return end if isinstance(end, str) else None
