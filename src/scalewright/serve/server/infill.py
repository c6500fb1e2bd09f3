"""Text for a gap, by the special tokens with which the model was trained: prefix, suffix, then the middle is written.

    StarCoder     <fim_prefix> p <fim_suffix> s <fim_middle>          <fim-prefix> ... of SantaCoder
    Qwen, Gemma   <|fim_prefix|> p <|fim_suffix|> s <|fim_middle|>
    Code Llama    ▁<PRE> p ▁<SUF> s ▁<MID>                            ends with ▁<EOT>
    DeepSeek      <｜fim▁begin｜> p <｜fim▁hole｜> s <｜fim▁end｜>
    your own      <|prefix|> p <|suffix|> s <|middle|>                docs/code-models.md

Sources: the models' cards and Bavarian et al. 2022, arXiv 2207.14255 (PSM); Code Llama, arXiv 2308.12950 §2.3. A
tokenizer that has the three tokens of a line is of that format.
"""

from __future__ import annotations

from scalewright.serve.load import Loaded
from scalewright.spec.errors import UserError

FORMATS = (  # prefix, suffix, middle, and what ends a middle beside the end of text
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>", ("<file_sep>", "<fim_pad>")),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>", ("<fim-pad>",)),
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", ("<|file_sep|>", "<|repo_name|>", "<|file_separator|>")),
    ("<|prefix|>", "<|suffix|>", "<|middle|>", ("<|file|>",)),
    ("▁<PRE>", "▁<SUF>", "▁<MID>", ("▁<EOT>",)),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", ("<｜EOT｜>", "<|EOT|>")),
)
MARK = "☺"  # no space is put before a text that follows it


def infill(loaded: Loaded, prefix: str, suffix: str) -> tuple[list[int], frozenset[int]]:
    """The prompt's tokens, and those that end the middle; raises UserError for a model without such tokens."""
    number = loaded.tokenizer.token_to_id
    for *names, ends in FORMATS:
        marks = [number(name) for name in names]
        if None not in marks:
            middle = _within(loaded, suffix) if names[0] == "▁<PRE>" else _ids(loaded, suffix)
            prompt = [*loaded.start, marks[0], *_ids(loaded, prefix), marks[1], *middle, marks[2]]
            return prompt, loaded.end_of_text | {end for name in ends if (end := number(name)) is not None}
    known = ", ".join(str(names[0]) for *names, _ in FORMATS)
    how = f"use a model that was trained to fill gaps; its tokenizer has one of {known}"
    raise UserError("the model has no tokens for fill-in-the-middle", "suffix", how)


def _ids(loaded: Loaded, text: str) -> list[int]:
    return list(loaded.tokenizer.encode(text, add_special_tokens=False).ids)


def _within(loaded: Loaded, text: str) -> list[int]:
    """A text's tokens without the space that SentencePiece puts first, as in Code Llama's own `encode_infilling`."""
    return _ids(loaded, MARK + text)[len(_ids(loaded, MARK)) :]
