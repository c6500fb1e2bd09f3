"""`scalewright generate MODEL --prompt TEXT`: a model continues a prompt."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from scalewright.cli.options import (
    DTYPES,
    Device,
    Json,
    NoVerify,
    TrustCode,
    argument,
    check_device,
    choice,
    flag,
    option,
)
from scalewright.cli.output import only_answer, print, print_exact, print_json
from scalewright.spec.common.formatting import counted
from scalewright.spec.common.heartbeat import Heartbeat


def generate(
    model: Annotated[Path, argument("MODEL", "A run's folder, a checkpoint or a Hugging Face folder.")],
    prompt: Annotated[str | None, option("TEXT", "The text to continue; - reads it from stdin.", "--prompt")] = None,
    max_tokens: Annotated[
        int, flag("How many tokens to write at most.", "--max-tokens", "--max-new-tokens", min=1)
    ] = 128,
    temperature: Annotated[float, flag("0 takes the likeliest token each time.", min=0.0)] = 0.8,
    top_k: Annotated[int | None, flag("Choose among the k likeliest.", min=1)] = None,
    top_p: Annotated[float | None, flag("Choose among the likeliest that make up p.", min=0.0, max=1.0)] = None,
    seed: Annotated[int, flag("The same seed writes the same text.", min=0)] = 0,
    stop: Annotated[list[str] | None, flag("Stop before this text; may be given again.")] = None,
    device: Device = "cpu",
    dtype: Annotated[str, choice("dtype", DTYPES, "Of the weights.")] = "float32",
    trust_code: TrustCode = False,
    no_verify: NoVerify = False,
    json: Json = False,
) -> None:
    """Continue a prompt with what was trained."""
    shown: list[str] = []
    text = sys.stdin.read() if prompt == "-" else prompt or ""

    def show(piece: str) -> None:
        heart.now("")
        shown.append(piece)
        print_exact(piece)

    def begin() -> None:
        if prompt is None:
            print("no --prompt: the model writes the beginning of a text", file=sys.stderr)
        if not json:
            show(text)

    check_device(device)
    with only_answer(json), Heartbeat("loading the model") as heart, _line_ended(shown):
        from scalewright.serve.generate import generate_text

        answer = generate_text(
            str(model), text, max_new_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed,
            stop=tuple(stop or ()), device=device, dtype=dtype, stream=None if json else show, trust_code=trust_code,
            verify=not no_verify, on_loaded=begin,
        )  # fmt: skip
    if json:
        print_json({"prompt": text, **vars(answer)})
        return
    print(f"{counted(len(answer.tokens), 'tokens')}, {answer.tokens_per_s:.0f} tokens/s", file=sys.stderr)


@contextlib.contextmanager
def _line_ended(shown: list[str]) -> Iterator[None]:
    """Ends the line of the text on stdout, also when what follows it is an error on stderr."""
    try:
        yield
    finally:
        if shown:
            print()
