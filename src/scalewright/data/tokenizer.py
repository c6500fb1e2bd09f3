"""A byte-level BPE tokenizer, trained on the text or taken from a `tokenizer.json`.

Training starts from the 256 bytes and joins the most frequent neighbouring pair again and again (Sennrich
et al. 2016; on bytes: GPT-2, Radford et al. 2019), so any text can be written and no word is unknown. One
special token, `<|endoftext|>`, ends a document; the same characters inside a text are never read as it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalewright.spec.ends import BEGIN_NAMES, CONFIG, END_NAMES, beginning, json_object, token_name
from scalewright.spec.errors import UserError, install

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END = "<|endoftext|>"
SMALLEST_VOCABULARY = 257  # 256 bytes and END
SAMPLE_BYTES = 64 << 20
"""Text that a tokenizer is trained on; of more, an even sample. Merges hardly change beyond it."""


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


def train_tokenizer(texts: Iterator[str], vocab_size: int, special: Sequence[str] = ()) -> Tokenizer:
    """A byte-level BPE of at most `vocab_size` tokens (fewer when no more pairs are left).

    END is 0, and `special` tokens follow it.
    """
    pack = library()
    tokenizer: Tokenizer = pack.Tokenizer(pack.models.BPE())
    tokenizer.pre_tokenizer = pack.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = pack.decoders.ByteLevel()
    trainer = pack.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(dict.fromkeys([END, *special])),
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
        how = "give a tokenizer.json of `tokenizers`"
        raise UserError(f"not a readable tokenizer: {str(error).splitlines()[0]}", str(file), how) from None
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


def special_token_list(tokens: Sequence[str] | str | Path) -> list[str]:
    """Special tokens of a list, in which a file stands for its lines; raises UserError for none."""
    names: list[str] = []
    for token in [tokens] if isinstance(tokens, (str, Path)) else tokens:
        path = Path(token).expanduser()
        try:
            lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else [str(token)]
        except (OSError, ValueError) as error:
            raise UserError(f"cannot read special tokens: {error}", str(path), "give one a line") from None
        names += filter(str.strip, lines)
    if not names:
        raise UserError("no special token is named", "--special-tokens", "give tokens, or a file with one a line")
    return list(dict.fromkeys(names))


def vocabulary_size(tokenizer: Tokenizer) -> int:
    """One more than the largest id (numbers may have holes)."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1


def end_of_document(tokenizer: Tokenizer, path: Path, name: str | None = None) -> int:
    """The id that ends a document: `name`'s, tokenizer_config.json's, or a usual one's; raises UserError."""
    names = [name] if name is not None else [token_name(_config(path), "eos_token") or "", *END_NAMES]
    token_id = next((number for known in names if (number := tokenizer.token_to_id(known)) is not None), None)
    if token_id is not None:
        return int(token_id)
    if name is not None:
        raise UserError(f"the tokenizer has no token '{name}'", str(path), "name one that it has")
    raise UserError("the tokenizer has no token that ends a document", str(path), "name it with --eod TOKEN")


def start_of_document(tokenizer: Tokenizer, path: Path, choice: str | None = None) -> tuple[int, ...]:
    """The ids that begin a document; raises UserError where it should `always` have some and none is known.

    `choice` auto (or null): as the tokenizer begins a text; never: none.
    """
    config = _config(path)
    before = () if choice == "never" else beginning(tokenizer, config)
    if before or choice != "always":
        return before
    names = [token_name(config, "bos_token") or "", *BEGIN_NAMES]
    ids = [token_id for name in names if (token_id := tokenizer.token_to_id(name)) is not None]
    if not ids:
        advice = "name it as bos_token in the tokenizer_config.json beside it, or add it: --special-tokens '<bos>'"
        raise UserError("the tokenizer has no token that begins a document", str(path), advice)
    return (int(ids[0]),)


def _config(path: Path) -> dict[str, object]:
    return json_object((path if path.is_dir() else path.parent) / CONFIG)
