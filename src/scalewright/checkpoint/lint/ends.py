"""What ends a text, and whether every file says the same: a wrong answer here is a server that never stops.

    tokenizer_config.json  eos_token ──► id by tokenizer.json ─┐
    config.json            eos_token_id ───────────────────────┼─► all in generation_config.json's eos_token_id
    chat template          what closes a turn (chat.py) ───────┘

transformers' generate stops at generation_config's ids alone; vLLM at those and the tokenizer's eos_token; `vllm
serve` takes its sampling defaults from there, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from scalewright.checkpoint.lint.folder import (
    CONFIG,
    GENERATION,
    SPECIAL_MAP,
    TOKENIZER,
    TOKENIZER_CONFIG,
    Export,
    problem,
    warn,
)
from scalewright.spec.chat import SPECIAL, templates
from scalewright.spec.common.untrusted import inside, read_json
from scalewright.spec.ends import token_name
from scalewright.spec.errors import Finding, UserError

# transformers 5 makes these families' tokenizers anew, of their words and merges alone, whatever tokenizer_class is
REBUILT = {
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
}
OTHER_TOKENIZERS = ("tokenizer.model", "spiece.model", "vocab.json", "vocab.txt", "tekken.json")
Range = tuple[Callable[[float], bool], str]
SAMPLING: dict[str, Range] = {
    "temperature": (lambda value: 0 <= value <= 100, "0 or more"), "top_p": (lambda value: 0 < value <= 1, "in (0, 1]"),
    "min_p": (lambda value: 0 <= value <= 1, "in [0, 1]"), "top_k": (lambda value: value >= -1, "0 or more"),
    "repetition_penalty": (lambda value: value > 0, "above 0"),
}  # fmt: skip


def ids(value: Any) -> tuple[int, ...]:
    """An `eos_token_id`: one, several or none."""
    return tuple(item for item in (value if isinstance(value, list) else [value]) if type(item) is int)


def ending(export: Export) -> tuple[int, ...]:
    """The ids at which engines stop."""
    given = ids(export.json.get(GENERATION, export.config).get("eos_token_id"))
    return tuple(dict.fromkeys((*given, *_of_tokenizer(export))))


def _of_tokenizer(export: Export) -> tuple[int, ...]:
    named = token_name(export.json.get(TOKENIZER_CONFIG, {}), "eos_token")
    return (export.words[named],) if named is not None and named in export.words else ()


def check(export: Export) -> Iterator[Finding]:
    """Findings about the tokenizer's files and generation_config.json."""
    if TOKENIZER not in export.files:
        if not export.files & set(OTHER_TOKENIZERS):
            what, how = "no tokenizer: engines serve ids alone (vLLM: --skip-tokenizer-init)", "add the one of training"
            yield warn(TOKENIZER, "missing", what, how)
    elif TOKENIZER_CONFIG not in export.files:
        what = "there is none: nothing says what begins and ends a text"
        yield warn(TOKENIZER_CONFIG, "config", what, "save the tokenizer again")
    yield from _rebuilt(export)
    yield from _vocabulary(export)
    yield from _special(export)
    yield from _generation(export)


def _rebuilt(export: Export) -> Iterator[Finding]:
    """A tokenizer that engines replace by its family's own, which cuts texts elsewhere."""
    pattern = REBUILT.get(str(export.config.get("model_type")))
    if pattern is None or not export.words:
        return
    whole = read_json(inside(export.folder, TOKENIZER))
    cut = whole.get("pre_tokenizer") or {}
    steps = cut.get("pretokenizers", [cut])
    patterns = [step.get("pattern", {}).get("Regex") for step in steps if step.get("type") == "Split"]
    kinds = {step.get("type") for step in steps}
    if patterns != [pattern] or kinds != {"Split", "ByteLevel"} or whole.get("model", {}).get("type") != "BPE":
        family = export.config["model_type"]
        what = (
            f"transformers 5 cuts texts by {family}'s own rule, whatever this file says: other tokens than in training"
        )
        yield problem(TOKENIZER, "rebuilt", what, "train with that family's tokenizer, or as llama or qwen3")


def _vocabulary(export: Export) -> Iterator[Finding]:
    """Ids beyond the embedding: an engine reads outside it, or stops."""
    size = export.config.get("vocab_size")
    beyond = [name for name, number in export.words.items() if type(size) is int and number >= size]
    if not beyond:
        return
    try:
        text = "".join(templates(export.folder).values())
    except UserError:
        text = ""
    named = [token_name(export.json.get(TOKENIZER_CONFIG, {}), key) for key in SPECIAL]
    # Gemma 3's text models have a token for images behind their embedding, which no text has
    unused = len(beyond) == 1 and beyond[0] not in named and beyond[0] not in text
    what = f"ids up to {max(export.words.values())}, and vocab_size is {size}: {', '.join(beyond[:3])}"
    yield (warn if unused else problem)(TOKENIZER, "vocab_size", what, "resize the embedding, or drop the tokens")


def _special(export: Export) -> Iterator[Finding]:
    config, mapped, words = export.json.get(TOKENIZER_CONFIG, {}), export.json.get(SPECIAL_MAP, {}), export.words
    for key in SPECIAL:
        name, other = token_name(config, key), token_name(mapped, key)
        for file, token in ((TOKENIZER_CONFIG, name), (SPECIAL_MAP, other)):
            if token is not None and words and token not in words:
                yield problem(file, key, f"{key} {token} isn't in tokenizer.json", "name a token that is")
        if name is not None and other is not None and name != other and (not words or {name, other} <= words.keys()):
            what = f"{key} is {other}, and {name} in {TOKENIZER_CONFIG}"
            kind = problem if key == "eos_token" else warn
            yield kind(SPECIAL_MAP, key, what, "keep the one of training, or remove the file")
    added = config.get("added_tokens_decoder")
    for number, token in added.items() if isinstance(added, dict) and words else ():
        name = token.get("content") if isinstance(token, dict) else None
        if isinstance(name, str) and str(words.get(name)) != number:
            what = f"added token {name} has id {number}, and {words.get(name)} in {TOKENIZER}"
            yield problem(TOKENIZER_CONFIG, "added_tokens", what, "save the tokenizer again")
    bos, given = words.get(token_name(config, "bos_token") or ""), ids(export.config.get("bos_token_id"))
    if bos is not None and given and bos not in given:
        what = f"bos_token_id is {given[0]}, and the tokenizer's bos_token has id {bos}"
        yield warn(CONFIG, "bos_token_id", what, f"set it to {bos}")


def _generation(export: Export) -> Iterator[Finding]:
    of_config = ids(export.config.get("eos_token_id"))
    eos = token_name(export.json.get(TOKENIZER_CONFIG, {}), "eos_token")
    of_tokenizer = _of_tokenizer(export)
    if GENERATION not in export.files:
        if TOKENIZER in export.files:
            what, how = "there is none: engines guess what ends a text", "write one with every eos_token_id"
            yield warn(GENERATION, "missing", what, how)
        if of_tokenizer and of_config and of_tokenizer[0] not in of_config:
            what = f"eos_token_id is {list(of_config)}, and the tokenizer's {eos} has id {of_tokenizer[0]}"
            yield problem(CONFIG, "eos_token_id", what, f"add {of_tokenizer[0]}")
        return
    generation = export.json.get(GENERATION, {})
    given = ids(generation.get("eos_token_id"))
    every = sorted({*given, *of_config, *of_tokenizer})
    how = f"set eos_token_id to {every}"
    if not given and (every or export.words):
        how = how if every else "set eos_token_id to the token that ended texts in training"
        yield problem(GENERATION, "eos_token_id", "no eos_token_id: transformers never stops", how)
    elif given and (lacking := set(of_tokenizer) - set(given)):
        what = f"eos_token_id is {list(given)} without the tokenizer's {eos}, id {min(lacking)}"
        yield problem(GENERATION, "eos_token_id", what, how)
    elif given and (lacking := set(of_config) - set(given)):
        what = f"eos_token_id is {list(given)} without config.json's {sorted(lacking)}"
        yield warn(GENERATION, "eos_token_id", what, how)
    size = export.config.get("vocab_size")
    if outside := [number for number in given if type(size) is int and not 0 <= number < size]:
        what = f"eos_token_id {outside[0]} is no id below vocab_size {size}"
        yield problem(GENERATION, "eos_token_id", what, "set it to a token's id")
    for key, (right, words) in SAMPLING.items():
        value = generation.get(key)
        if value is not None and not (isinstance(value, (int, float)) and right(value)):
            yield problem(GENERATION, key, f"{key} is {value!r}, which servers take as their default", f"give {words}")
