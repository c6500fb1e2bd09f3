"""The tokenizer of a `prepare`: copied in, or trained on an even sample of the training text, once.

The sample takes each piece's beginning, the same share of each, so it is bounded for any input and the same in every
run. Validation text is never in it. A tokenizer that an earlier run committed is taken when its checksum is right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalewright.data.encode import in_splits
from scalewright.data.pieces import Piece
from scalewright.data.plan import Options
from scalewright.data.shards import checksum, commit, commit_json
from scalewright.data.tokenizer import (
    SAMPLE_BYTES,
    default_vocab_size,
    end_of_document,
    library,
    read_tokenizer,
    start_of_document,
    train_tokenizer,
    vocabulary_size,
)
from scalewright.data.workers import Progress
from scalewright.spec.common.untrusted import inside, read_json
from scalewright.spec.ends import COMPANIONS
from scalewright.spec.errors import UserError


@dataclass(frozen=True)
class Words:
    """The tokenizer in OUT, with its properties that the shards have."""

    path: Path
    sha256: str
    vocab_size: int
    eod: int
    bos: tuple[int, ...]  # before a document
    ends: str  # a document in words: <bos> text <eos>
    trained: bool
    special: dict[str, int]  # ids of the tokens of --special-tokens


def ready_tokenizer(out: Path, pieces: Sequence[Piece], options: Options, shown: Progress) -> Words:
    """OUT/tokenizer.json, checked; trained or copied if it is missing. Raises UserError."""
    path, note = out / "tokenizer.json", out / "pieces" / "tokenizer.json"
    if not _as_noted(path, note):
        if options.tokenizer is None:
            size = options.vocab_size or default_vocab_size(sum(piece.size for piece in pieces))
            learnt = train_tokenizer(sample_texts(pieces, options, shown), size, options.special_tokens or ())
            text = learnt.to_str(pretty=True).encode()
        else:
            text = _given(Path(options.tokenizer), out, options.special_tokens)
        commit_json(note, commit(path, [text]))
    tokenizer = read_tokenizer(path)
    beside = Path(options.tokenizer) if options.tokenizer else path
    eod = end_of_document(tokenizer, beside, options.eod)
    bos = start_of_document(tokenizer, beside, options.bos)
    special = {name: tokenizer.get_vocab()[name] for name in options.special_tokens or ()}
    size = vocabulary_size(tokenizer)
    words = " ".join([*map(str, map(tokenizer.id_to_token, bos)), "text", str(tokenizer.id_to_token(eod))])
    return Words(path, checksum(path), size, eod, bos, words, options.tokenizer is None, special)


def _given(source: Path, out: Path, special: list[str] | None) -> bytes:
    """The content of a tokenizer.json with `special` tokens added; copies what belongs to it. UserError."""
    read_tokenizer(source)  # a damaged one is refused before anything is written
    for name in COMPANIONS:
        if inside(source.parent, name).is_file():
            commit(out / name, [(source.parent / name).read_bytes()])
    if special is None:
        return source.read_bytes()
    tokenizer = library().Tokenizer.from_file(str(source))  # with its own truncation
    tokenizer.add_special_tokens(special)
    return bytes(tokenizer.to_str(pretty=True), "utf-8")


def _as_noted(path: Path, note: Path) -> bool:
    try:
        return bool(read_json(note)["sha256"] == checksum(path))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def sample_texts(pieces: Sequence[Piece], options: Options, shown: Progress) -> Iterator[str]:
    """Text to train a tokenizer on: at most SAMPLE_BYTES, the same share of every piece."""
    total = sum(piece.size for piece in pieces)
    share = min(1.0, SAMPLE_BYTES / max(total, 1))
    shown.start("learn", int(total * share))
    taken = 0
    for piece in pieces:
        left = max(int(piece.size * share), 1)
        for text in _training_text(piece, options):
            yield text[:left] if share < 1 else text
            taken += len(text)
            shown.advance(min(len(text), left))
            left -= len(text)
            if left <= 0 and share < 1:
                break
    if not taken:
        raise UserError("no training text in the input", "prepare", "give more text, or a smaller --valid-fraction")


def _training_text(piece: Piece, options: Options) -> Iterator[str]:
    for part in piece.parts:
        if part.split == "valid":
            continue
        for split, fragment in in_splits(part, options, Counter()):
            if split == "train" and fragment.text.strip():
                yield fragment.text
