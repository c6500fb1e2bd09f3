"""A row of 2,048 tokens with several documents: attention by tiles beside a mask of all pairs.

    python comparisons/packed_rows.py                 two minutes, on one core
    python comparisons/packed_rows.py --seq-len 256 --rounds 1

The same model, numbers and row both ways, in turns: bytes that a forward keeps for its backward, seconds of
both, and how far gradients are from each other. The mask [B, T, T] is what the model took before it had
tiles: `added_mask` of whole rows, PyTorch's attention with it, and capped scores in memory. fp32, eager. Exit
code 1 where the two differ by more than rounding.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness.facts import facts
from harness.result import Result, facts_text, table
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from scalewright.model.context import Context, Rule, View
from scalewright.model.decoder import Decoder
from scalewright.model.init import initialize
from scalewright.model.visible import added_mask, is_visible
from scalewright.spec.model import ModelSpec

MODEL: dict[str, Any] = {
    "vocab_size": 512, "hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 4,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "a window of 256 in every second layer": {"sliding_window": 256, "window_pattern": [True, False]},
    "capped scores": {"attention_softcap": 50.0},
    "ALiBi": {"positions": "alibi"},
}
MEAN = 300  # tokens of a document
NEAR = 1e-5  # fp32 sums in another order


def main() -> int:
    """Every model on rows of documents and on one document, both ways."""
    options = arguments()
    result = Result("packed-rows", f"Packed rows of {options.seq_len:,} tokens", facts(), options.out)
    result.say("Hardware and versions:", "", facts_text(result.data["facts"]))
    answers, lines = {}, []
    for name, keys in MODELS.items():
        for packed in (True, False):
            if name == "llama" and not packed:
                continue  # plainly causal: neither takes it
            model = ModelSpec.parse({"name": "small", "context": options.seq_len, **MODEL, **keys})
            title = f"{name}, {'documents' if packed else 'one document'}"
            answers[title] = answer = compare(model, options.seq_len, options.rounds, packed=packed)
            lines.append(line(title, answer))
            print(lines[-1], file=sys.stderr, flush=True)
    result.put("answers", answers)
    heads = ["", "kept by masks, MB", "by tiles", "of it", "masks, s", "tiles", "of it", "furthest gradient"]
    result.say(table(heads, lines))
    result.close()
    print(f"wrote {result.markdown}")
    return int(not all(answer["away"] < NEAR for answer in answers.values()))


def compare(spec: ModelSpec, length: int, rounds: int, *, packed: bool) -> dict[str, Any]:
    """Bytes, seconds and numbers of one model on one row, by masks and by tiles."""
    decoder = Decoder(spec)
    initialize(decoder, spec, 0)
    tokens = torch.randint(0, spec.vocab_size, (1, length), generator=torch.Generator().manual_seed(1))
    documents = documents_of(length) if packed else None
    by_tiles = decoder.context
    ways = {"masks": lambda *a: masked(spec, by_tiles(*a), length), "tiles": by_tiles}
    answer: dict[str, Any] = {}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    numbers: dict[str, Tensor] = {}
    for turn in range(rounds + 1):
        for name in list(ways)[:: 1 if turn % 2 else -1]:
            decoder.context = ways[name]  # type: ignore[method-assign,assignment]
            decoder.zero_grad()
            started = time.perf_counter()
            if turn:
                step(decoder, tokens, documents)
                seconds[name].append(time.perf_counter() - started)
            else:  # the first warms up, and is measured
                answer[name] = {"kept": kept_bytes(decoder, tokens, documents)}
                numbers[name] = torch.cat([p.grad.flatten() for p in decoder.parameters() if p.grad is not None])
    for name, values in seconds.items():
        answer[name]["seconds"] = values
    difference = (numbers["tiles"] - numbers["masks"]).abs().max() / numbers["masks"].abs().max()
    answer["documents"] = None if documents is None else np.bincount(documents[0].numpy()).tolist()
    return {**answer, "away": float(difference)}


def documents_of(length: int) -> Tensor:
    """int32 [1, T]: documents of MEAN tokens on average, by a fixed seed."""
    random = np.random.default_rng(0)
    lengths = random.geometric(1 / MEAN, length)
    return torch.from_numpy(np.repeat(np.arange(length), lengths)[None, :length].astype(np.int32))


def masked(spec: ModelSpec, context: Context, length: int) -> Context:
    """The same context with masks of all pairs in the place of rules."""
    index = torch.arange(length)

    def of(view: View) -> View:
        rule: Rule | None = view.rule
        if rule is None:
            return view
        if spec.attention_softcap is not None:
            return View(mask=is_visible(index, index, rule.first))
        return View(mask=added_mask(index, index, rule.first, rule.slopes, torch.float32, float("-inf")))

    full = of(context.full)
    sliding = full if context.sliding is context.full else of(context.sliding)
    return Context(context.positions, context.documents, context.rope, context.local_rope, full, sliding, context.cache)


def step(decoder: Decoder, tokens: Tensor, documents: Tensor | None) -> None:
    """A forward and its backward."""
    logits = decoder(tokens, None, documents)
    torch.nn.functional.cross_entropy(logits[0, :-1], tokens[0, 1:]).backward()


def kept_bytes(decoder: Decoder, tokens: Tensor, documents: Tensor | None) -> int:
    """Bytes that autograd keeps of a forward up to the head, parameters left out; and a whole step."""
    parameters = {p.untyped_storage().data_ptr() for p in decoder.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        features = decoder.features(tokens, None, documents)
    total = sum(storage.nbytes() for storage in kept.values())
    kept.clear()
    del features
    step(decoder, tokens, documents)
    return total


def line(title: str, answer: dict[str, Any]) -> list[str]:
    """A row of the table."""
    kept = [answer[way]["kept"] / 1e6 for way in ("masks", "tiles")]
    seconds = [statistics.median(answer[way]["seconds"]) for way in ("masks", "tiles")]
    return [
        title, f"{kept[0]:.1f}", f"{kept[1]:.1f}", f"{kept[1] / kept[0]:.2f}",
        f"{seconds[0]:.3f}", f"{seconds[1]:.3f}", f"{seconds[1] / seconds[0]:.2f}", f"{answer['away']:.1e}",
    ]  # fmt: skip


def arguments() -> argparse.Namespace:
    """The command line."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=None, help="folder; default: comparisons/results")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
