"""`scalewright serve MODEL`: OpenAI's API and a page for what was trained."""

from __future__ import annotations

import contextlib
import json as json_module
import sys
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
from scalewright.cli.output import only_answer, print, print_exact, working
from scalewright.spec.errors import UserError, install

LOCAL = ("127.0.0.1", "localhost", "::1")


def serve(
    model: Annotated[Path, argument("MODEL", "A run's folder, a checkpoint or a Hugging Face folder.")],
    host: Annotated[str, flag("Who may ask: 127.0.0.1 is this machine alone.")] = "127.0.0.1",
    port: Annotated[int, flag("0: any free port.", min=0, max=65535)] = 8000,
    served_model_name: Annotated[
        str | None, option("NAME", "That requests give; the run's or the folder's.", "--served-model-name")
    ] = None,
    api_key: Annotated[
        str | None, option("KEY", "That requests must have; @FILE: the first line of a file.", "--api-key")
    ] = None,
    kv_memory: Annotated[
        float | None, option("GIB", "Memory for keys and values; 1 GiB or 65,536 tokens.", "--kv-memory", min=0.0)
    ] = None,
    tp: Annotated[int, flag("Processes that share the model by its heads.", min=1, max=64)] = 1,
    max_concurrency: Annotated[int, flag("Requests that run at once.", min=1, max=96)] = 32,
    max_queue: Annotated[int, flag("Requests that may wait; further ones get 429.", min=1)] = 256,
    timeout: Annotated[float, flag("Seconds that a request may take.", min=0.001)] = 600.0,
    draft: Annotated[str | None, option("WHO", "Who guesses ahead: ngram, mtp, or a smaller model.", "--draft")] = None,
    draft_tokens: Annotated[int, flag("Guesses a step; the answer is the same.", min=1, max=16)] = 4,
    device: Device = "cpu",
    dtype: Annotated[str, choice("dtype", DTYPES, "Of the weights.")] = "float32",
    trust_code: TrustCode = False,
    no_verify: NoVerify = False,
    json: Json = False,
) -> None:
    """Serve what was trained: OpenAI's API, and a page to chat with it.

    \b
    scalewright serve runs/mine
    scalewright serve runs/mine --port 8001 --kv-memory 4 --api-key @key.txt
    """
    try:
        from scalewright.serve.server.calls import Limits
        from scalewright.serve.server.start import serve as start
    except ImportError as error:
        raise UserError(f"{error.name} isn't installed", "serve", install("serve")) from None
    from scalewright.serve.open import open_engine

    check_device(device)
    key = _key(api_key)
    with only_answer(json), working("loading the model"):
        engine = open_engine(
            model, device=device, dtype=dtype, kv_memory_gib=kv_memory, max_concurrency=max_concurrency,
            draft=draft, draft_tokens=draft_tokens, tp=tp, trust_code=trust_code, verify=not no_verify,
        )  # fmt: skip
    stats = engine.stats()
    if stats.max_model_len < stats.kv_tokens and engine.spec.positions != "learned":
        longer = f"longer requests are computed too, up to the cache's {stats.kv_tokens:,}, and may be worse"
        print(f"warning: the model was made for {stats.max_model_len:,} tokens; {longer}", file=sys.stderr)
    if host not in LOCAL and key is None:
        print(f"warning: everybody who reaches {host} may ask: give --api-key", file=sys.stderr)

    def ready(url: str, name: str) -> None:
        if json:
            facts = {"url": url, "model": name, "kv_tokens": stats.kv_tokens, "max_concurrency": stats.max_concurrency}
            print_exact(json_module.dumps(facts) + "\n")
            return
        secret = " -H 'Authorization: Bearer KEY'" if key else ""
        print(
            f"{name}: a page to chat with it at {url}, OpenAI's API at {url}/v1 "
            f"({stats.kv_tokens:,} tokens of cache, {stats.max_concurrency} requests at once)\n"
            f'curl {url}/v1/completions{secret} -d \'{{"prompt": "The", "max_tokens": 20}}\'\n'
            "Ctrl-C ends it, when what was accepted is finished; twice: at once.",
            flush=True,
        )

    try:
        start(engine, model, host, port, key, Limits(max_queue, timeout), ready, served_model_name)
    finally:
        with contextlib.suppress(RuntimeError):  # a rank may be gone
            engine.close()


def _key(given: str | None) -> str | None:
    """The key itself; a command line is everybody's to read."""
    if given is None or not given.startswith("@"):
        key = given
    else:
        try:
            key = Path(given[1:]).read_text(encoding="utf-8").partition("\n")[0].strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read the key: {error}", "--api-key", "give a text file with one line") from None
    if key is not None and not (key.isascii() and key.strip()):
        raise UserError("the key is empty, or has letters beyond ASCII", "--api-key", "give letters, digits and dashes")
    return key
