"""Text for tests: words that follow a fixed rule, so that no run differs from another."""

from __future__ import annotations

from pathlib import Path

from scalewright.data.tokenizer import train_tokenizer

_ENGLISH = "the a lobster blue sea claw moult shell night tide deep cold, warm. grey! (rock) it's 42 1999"
WORDS = [*_ENGLISH.split(), "naïve", "海老\n"]


def words(count: int, seed: int = 1) -> str:
    """`count` words; a linear congruential generator chooses (Numerical Recipes' constants)."""
    state, chosen = seed, []
    for _ in range(count):
        state = (state * 1664525 + 1013904223) % 2**32
        chosen.append(WORDS[(state >> 16) % len(WORDS)])
    return " ".join(chosen)


def write_tokenizer(path: Path, vocab_size: int = 400) -> Path:
    """A tokenizer of these words."""
    train_tokenizer(iter([words(4000)]), vocab_size).save(str(path))
    return path
