"""How texts begin and end, by a tokenizer's files: one rule for data, training, generation and exports.

    <bos> text <eos>     begins as the post-processor begins it, else with bos_token under add_bos_token;
                         ends with tokenizer_config.json's eos_token, else with a token of a usual name

What a run was trained with is in its checkpoints' state.json (`Ends`), and comes before the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalewright.spec.common.untrusted import inside, read_json
from scalewright.spec.errors import UserError

END_NAMES = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "<｜end▁of▁sentence｜>")
BEGIN_NAMES = ("<bos>", "<s>", "<|begin_of_text|>", "<|startoftext|>", "<｜begin▁of▁sentence｜>")
BOS_CHOICES = ("auto", "always", "never")
CONFIG = "tokenizer_config.json"
# Files that belong to a tokenizer.json.
COMPANIONS = (
    CONFIG, "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "tokenizer.model",
    "spiece.model", "sentencepiece.bpe.model", "chat_template.jinja", "chat_template.json",
)  # fmt: skip
ORIGIN = "huggingface"  # the folder of a run for the files of the Hugging Face folder that it began from


@dataclass(frozen=True)
class Ends:
    """How the documents of a run's data begin and end."""

    eod: tuple[int, ...] = ()  # ids; more than one where sources differ
    bos: tuple[int, ...] | None = None  # ids before a text; None: not recorded

    @classmethod
    def parse(cls, state: Mapping[str, Any]) -> Ends:
        """Those of a checkpoint's state.json."""
        data = state.get("data", {})
        return cls(tuple(data.get("eod", ())), None if data.get("bos") is None else tuple(data["bos"]))


def json_object(path: Path) -> dict[str, Any]:
    """The object in a file; empty for a missing file and for other JSON. Raises UserError for other files."""
    path = inside(path.parent, path.name)
    try:
        content = read_json(path) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read JSON: {error}", str(path), "fetch it again") from None
    return content if isinstance(content, dict) else {}


def token_name(config: Mapping[str, Any], key: str) -> str | None:
    """The token of a tokenizer_config.json's key: a string, or an object with its `content`."""
    token = config.get(key)
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def template(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that a tokenizer's post-processor puts before and after a text."""
    encoding = tokenizer.encode("a")
    ids, text = encoding.ids, [n for n, added in enumerate(encoding.special_tokens_mask) if not added]
    return (tuple(ids[: text[0]]), tuple(ids[text[-1] + 1 :])) if text else (tuple(ids), ())


def beginning(tokenizer: Any, config: Mapping[str, Any]) -> tuple[int, ...]:
    """The ids before a text, by the tokenizer and its tokenizer_config.json's content."""
    before, _ = template(tokenizer)
    named = tokenizer.token_to_id(token_name(config, "bos_token") or "")
    return before or ((int(named),) if config.get("add_bos_token") is True and named is not None else ())


def with_ends(given: Any, ends: tuple[int, ...]) -> Any:
    """A file's `eos_token_id` with the trained ones: a list has them too, one id makes way for them."""
    if isinstance(given, list):
        return [*(end for end in ends if end not in given), *given]
    return given if not ends else ends[0] if len(ends) == 1 else list(ends)


def started(ids: list[int], start: tuple[int, ...]) -> list[int]:
    """A text's ids with `start` before them, unless the text has it already."""
    return ids if tuple(ids[: len(start)]) == start else [*start, *ids]
