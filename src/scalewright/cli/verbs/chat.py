"""`scalewright chat MODEL`: a chat with what was trained, in the terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from scalewright.cli.options import DTYPES, Device, NoVerify, TrustCode, argument, check_device, choice, flag
from scalewright.cli.output import print, print_exact, working
from scalewright.spec.errors import UserError


def chat(
    model: Annotated[Path, argument("MODEL", "A run's folder, a checkpoint or a Hugging Face folder.")],
    system: Annotated[str, flag("What the chat begins with.")] = "",
    max_tokens: Annotated[int, flag("How many tokens an answer may have.", min=1)] = 512,
    temperature: Annotated[float, flag("0 takes the likeliest token each time.", min=0.0)] = 0.8,
    top_p: Annotated[float, flag("Choose among the likeliest that make up p.", min=0.0, max=1.0)] = 1.0,
    seed: Annotated[int, flag("The same seed writes the same text.", min=0)] = 0,
    device: Device = "cpu",
    dtype: Annotated[str, choice("dtype", DTYPES, "Of the weights.")] = "float32",
    trust_code: TrustCode = False,
    no_verify: NoVerify = False,
) -> None:
    """Chat with what was trained; a model without a chat template continues your text."""
    from scalewright.serve.chat import Chat
    from scalewright.serve.open import open_engine
    from scalewright.serve.sampling import Sampling
    from scalewright.serve.server.template import ChatTemplate

    check_device(device)
    sampling = Sampling(temperature, 0, top_p, seed)
    with working("loading the model"):
        engine = open_engine(model, device=device, dtype=dtype, max_concurrency=1, trust_code=trust_code,
                             verify=not no_verify)  # fmt: skip
        template = ChatTemplate(model)
    kind = "chat" if template.there else "this model has no chat template: it continues your text"
    print(f"{kind}; /reset forgets it, /quit ends, Ctrl-C stops an answer", file=sys.stderr)
    conversation = Chat(engine, template, sampling, max_tokens, system)
    for turn in _turns():
        if turn == "/quit":
            break
        if turn == "/reset":
            conversation.reset()
            continue
        try:
            _show(conversation.answer(turn))
        except UserError as error:
            print(f"{error} (/reset forgets the turns so far)", file=sys.stderr)


def _show(pieces: Iterator[str]) -> None:
    """Writes an answer as it comes; Ctrl-C ends it."""
    try:
        for piece in pieces:
            print_exact(piece)
    except KeyboardInterrupt:
        with contextlib.suppress(AttributeError):
            pieces.close()  # type: ignore[attr-defined]
    print()


def _turns() -> Iterator[str]:
    """Lines of stdin that aren't empty, until its end or Ctrl-C."""
    terminal = sys.stdin.isatty()
    if terminal:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (lines can be edited, and come back)
    while True:
        try:
            line = input("> ") if terminal else next(sys.stdin).rstrip("\n")
        except (EOFError, KeyboardInterrupt, StopIteration):
            return
        if line.strip():
            yield line
