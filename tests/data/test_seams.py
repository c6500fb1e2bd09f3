"""Tokens of a text in pieces are those of the whole, for every normalizer, pre-tokenizer and text."""

from __future__ import annotations

import json
import random
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from scalewright.data import documents, seams
from scalewright.data.documents import SEPARATOR, fragments, whole
from scalewright.data.inputs import describe
from scalewright.data.pieces import Part
from scalewright.data.seams import Seams
from scalewright.data.word_encoder import WordEncoder

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
FAMILY = "\U0001f468‍\U0001f469‍\U0001f467"
WORDS = ["lobster", "Sea", "tide.", "deep,", "it's", "we'LL", "1999", "naïve", "ﬁne", "İstanbul", "Σίσυφος", "of", "a"]


def _pieces(rng, size, parts):
    text = ""
    while len(text) < size:
        text += rng.choice(parts)
    return text[:size]


def texts(size=6000):
    rng = random.Random(7)
    han = [chr(0x4E00 + k) for k in range(60)]
    base64 = list("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
    return {
        "words": _pieces(rng, size, [word + " " for word in WORDS]),
        "lines": _pieces(rng, size, [word + "\n" for word in WORDS]),
        "han": _pieces(rng, size, han),
        "base64": _pieces(rng, size, base64),
        "spaces": _pieces(rng, size, [" ", "  ", "\n", "\n\n", " \n", "\r\n", "\t", "　", "\xa0", "\x85 ", *WORDS]),
        "emoji": _pieces(rng, size, [FAMILY, "\U0001f44d\U0001f3fd", "❤️", " ", "x"]),
        "marks": _pieces(rng, size, ["e\u0301", "o\u0302\u0323", "n\u0303", "a", "각", " "]),
        "separators": _pieces(rng, size, [SEPARATOR, "<|endof", "text|>", " ", "x", "海"]),
        "signs": _pieces(rng, size, [*"()[]{}<>=+-*/.,;:!?", "  "]),
    }


TEXTS = texts()
RUNS = "x" + " " * 1500 + "lobster" + "a" * 1501 + "\n" * 1502 + "e" + "\u0301" * 1500 + "海" * 1500 + "ab" * 900
SAMPLE = [text[:3000] for text in texts(3000).values()]


def _bpe(pre, normalizer=None, **keys):
    made = Tokenizer(models.BPE(**keys))
    made.pre_tokenizer = pre
    if normalizer is not None:
        made.normalizer = normalizer
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet()) if not keys else []
    special = ["<unk>", SEPARATOR]
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(SAMPLE, trainer)
    return made


def _llama2():
    """Prepend and Replace, no pre-tokenizer, bytes for what the vocabulary lacks."""
    made = _bpe(pre_tokenizers.Metaspace(prepend_scheme="always", split=True), unk_token="<unk>")
    config = json.loads(made.to_str())
    vocabulary = config["model"]["vocab"]
    for byte in range(256):
        vocabulary.setdefault(f"<0x{byte:02X}>", len(vocabulary))
    config["model"].update(byte_fallback=True, fuse_unk=True)
    config["pre_tokenizer"] = None
    config["normalizer"] = {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ],
    }
    return Tokenizer.from_str(json.dumps(config))


def _split(pattern):
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    byte = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([split, byte])


def _word_piece():
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.train_from_iterator(
        SAMPLE, trainers.WordPieceTrainer(vocab_size=600, special_tokens=["[UNK]"], show_progress=False)
    )
    return made


def _unigram(pre):
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer = pre
    made.normalizer = normalizers.NFKC()
    trainer = trainers.UnigramTrainer(vocab_size=500, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False)
    made.train_from_iterator(SAMPLE, trainer)
    config = json.loads(made.to_str())
    for token in config["model"]["vocab"]:
        token[1] = round(token[1] * 2**16) / 2**16  # sums are exact: two equally likely cuts tie everywhere
    return Tokenizer.from_str(json.dumps(config))


def _spaces():
    """GPT-NeoX's: runs of spaces are tokens of their own, found before anything else."""
    made = _bpe(pre_tokenizers.ByteLevel(add_prefix_space=False))
    made.add_tokens([AddedToken(" " * n, special=False, normalized=True) for n in range(2, 12)])
    return made


def _byte_level(**keys):
    return pre_tokenizers.ByteLevel(**keys)


TOKENIZERS = {
    "llama 2": _llama2,
    "metaspace first": lambda: _bpe(pre_tokenizers.Metaspace(prepend_scheme="first"), unk_token="<unk>"),
    "metaspace always": lambda: _bpe(pre_tokenizers.Metaspace(prepend_scheme="always"), unk_token="<unk>"),
    "metaspace never": lambda: _bpe(pre_tokenizers.Metaspace(prepend_scheme="never"), unk_token="<unk>"),
    "own": lambda: _bpe(_byte_level(add_prefix_space=False)),
    "prefix space": lambda: _bpe(_byte_level(add_prefix_space=True)),
    "strip": lambda: _bpe(_byte_level(add_prefix_space=False), normalizers.Strip()),
    "nfc": lambda: _bpe(_byte_level(add_prefix_space=False), normalizers.NFC()),
    "nfkc, lower case": lambda: _bpe(
        _byte_level(add_prefix_space=False), normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    ),
    "nfd, no accents": lambda: _bpe(
        _byte_level(add_prefix_space=True), normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])
    ),
    "digits": lambda: _bpe(pre_tokenizers.Sequence([pre_tokenizers.Digits(True), _byte_level(add_prefix_space=False)])),
    "word piece": _word_piece,
    "unigram": lambda: _unigram(pre_tokenizers.Metaspace()),
    "unigram without words": lambda: _unigram(pre_tokenizers.Split("\n", "merged_with_previous")),
    "llama 3": lambda: _bpe(_split(LLAMA3)),
    "o200k": lambda: _bpe(_split(O200K)),
    "qwen": lambda: _bpe(_split(QWEN), normalizers.NFC()),
    "spaces as tokens": _spaces,
}


@pytest.fixture(scope="module", params=list(TOKENIZERS))
def tokenizer(request):
    made = TOKENIZERS[request.param]()
    made.encode_special_tokens = True
    return made


@pytest.fixture
def small(monkeypatch):
    """Fragments of some 700 characters that share 200."""
    monkeypatch.setattr(documents, "FRAGMENT", 700)
    for module in (documents, seams):
        monkeypatch.setattr(module, "OVERLAP", 200)


def encoded(tokenizer, given, notes=None):
    return np.concatenate(Seams(WordEncoder(tokenizer), Counter() if notes is None else notes)(given)).tolist()


def difference(mine, right):
    pairs = enumerate(zip(mine, right, strict=False))
    first = next((i for i, (a, b) in pairs if a != b), min(len(mine), len(right)))
    return "" if mine == right else f"token {first}: {mine[first - 2 : first + 5]}, not {right[first - 2 : first + 5]}"


@pytest.mark.parametrize("name", [*TEXTS, "runs"])
def test_pieces_have_the_tokens_of_the_whole(tokenizer, small, name):
    text = TEXTS.get(name, RUNS)
    notes = Counter()
    assert not difference(
        encoded(tokenizer, list(whole(text)), notes), tokenizer.encode(text, add_special_tokens=False).ids
    )
    assert not notes


@pytest.mark.parametrize("name", list(TEXTS))
def test_ranges_of_a_file_have_the_tokens_of_the_whole(tokenizer, small, tmp_path, name):
    """Ranges are read by different processes, which tell each other nothing."""
    text = TEXTS[name].replace("\r", "")
    path = tmp_path / "a.txt"
    path.write_text(text, newline="")
    file = describe(path, "a.txt")
    bounds = [0, file.size // 3 + 1, 2 * file.size // 3, file.size]
    mine = []
    for a, b in pairwise(bounds):
        part = Part(file, a, b, b - a, a == 0, b == file.size)
        mine += encoded(tokenizer, list(fragments(part, "text", Counter())))
    parts = text.split(SEPARATOR)
    right = [i for part in parts for i in tokenizer.encode(part, add_special_tokens=False).ids]
    assert not difference(mine, right)
