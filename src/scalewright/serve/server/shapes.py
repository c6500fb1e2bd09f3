"""OpenAI's choices: whole, and as chunks of a stream. One object per choice keeps what both need of the text so far.

    Update ──CompletionShape──► {"index", "text", "logprobs": {"tokens", "token_logprobs", "text_offset", ...}}
           ──ChatShape────────► {"index", "delta": {"content"}, "logprobs": {"content": [{"token", "bytes", ...}]}}

A token's text is that of its bytes; of part of a character it is `bytes:\\xe2\\x82`, as OpenAI writes it.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence
from typing import Any

from scalewright.serve.load import Loaded
from scalewright.serve.request import Logprob, Update

REASONS = {"length": "length", "end_of_text": "stop", "stop": "stop", "cancelled": "length"}


class TokenTexts:
    """The bytes of each token of a vocabulary."""

    def __init__(self, loaded: Loaded) -> None:
        tokenizer = loaded.tokenizer
        document = json.loads(tokenizer.to_str())
        self._by_bytes = '"ByteLevel"' in json.dumps([document.get("decoder"), document.get("pre_tokenizer")])
        added = document.get("added_tokens", ())
        self._added = {token["id"]: token["content"] for token in added}
        self.special = {token["id"] for token in added if token.get("special")}
        self._name = tokenizer.id_to_token
        self._byte = {letter: byte for byte, letter in byte_letters().items()}

    def of(self, token: int) -> bytes:
        """What the token writes."""
        if (added := self._added.get(token)) is not None:
            return str(added).encode()
        name = self._name(token) or ""
        if self._by_bytes:
            return bytes(self._byte[letter] for letter in name if letter in self._byte)
        if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
            return bytes.fromhex(name[3:5])
        return name.replace("▁", " ").encode()

    def text(self, token: int) -> str:
        """The same to be shown."""
        written = self.of(token)
        try:
            return written.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in written)


def byte_letters() -> dict[int, str]:
    """The letter that stands for each byte in byte-level vocabularies (GPT-2's `bytes_to_unicode`)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {byte: chr(byte) for byte in shown} | {byte: chr(256 + n) for n, byte in enumerate(hidden)}


class CompletionShape:
    """One choice of /v1/completions."""

    kind, chunk_kind = "text_completion", "text_completion"

    def __init__(self, texts: TokenTexts, index: int, top: int | None, echo: tuple[str, Sequence[int]] | None) -> None:
        self._texts, self._index, self._top = texts, index, top
        self._echo = echo  # the prompt, until it is written
        self._offset = 0  # whole characters of the tokens so far
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")  # keeps the bytes of one that isn't whole

    def opening(self) -> list[dict[str, Any]]:
        """Chunks before the first token."""
        return []

    def chunks(self, update: Update, drop: bool = False) -> list[dict[str, Any]]:
        """What an update writes; `drop`: its tokens were never asked for, an echo was."""
        text, logprobs, tokens = "" if drop else update.text, [] if drop else list(update.logprobs), []
        prompt, given = list[Logprob | None](), ""
        if self._echo is not None and (update.tokens or update.finished):
            given, ids = self._echo
            text, prompt, self._echo = given + text, list(update.prompt_logprobs or []), None
            tokens = list(ids)
        reason = ("length" if drop else REASONS[update.finished]) if update.finished else None
        if not (text or logprobs or prompt or reason):
            return []
        shown = None if self._top is None else self._logprobs(given, tokens, prompt, logprobs)
        return [{"index": self._index, "text": text, "logprobs": shown, "finish_reason": reason}]

    def whole(self, chunks: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """A choice that isn't streamed."""
        shown: dict[str, list[Any]] | None = None
        if self._top is not None:
            shown = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
            for key, values in shown.items():
                for chunk in chunks:
                    values.extend(chunk["logprobs"][key])
        text = "".join(chunk["text"] for chunk in chunks)
        return {"index": self._index, "text": text, "logprobs": shown, "finish_reason": chunks[-1]["finish_reason"]}

    def _logprobs(
        self, given: str, tokens: Sequence[int], prompt: Sequence[Logprob | None], written: Sequence[Logprob]
    ) -> dict[str, list[Any]]:
        """A prompt's first token has no probability; an offset is where a token's character begins in the text."""
        rows: list[tuple[int, Logprob | None]] = [
            (token, prompt[n] if n < len(prompt) else None) for n, token in enumerate(tokens)
        ]
        rows += [(each.token, each) for each in written]
        shown: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token, each in rows:
            text = self._texts.text(token)
            shown["tokens"].append(text)
            shown["token_logprobs"].append(None if each is None else each.value)
            top = None if each is None else {self._texts.text(t): value for t, value in (*each.top, each[:2])}
            shown["top_logprobs"].append(top if self._top else None)
            shown["text_offset"].append(self._offset)
            if token not in self._texts.special or (given and given.startswith(text, self._offset)):
                self._offset += len(self._decoder.decode(self._texts.of(token)))
        return shown


class ChatShape:
    """One choice of /v1/chat/completions."""

    kind, chunk_kind = "chat.completion", "chat.completion.chunk"

    def __init__(self, texts: TokenTexts, index: int, logprobs: bool) -> None:
        self._texts, self._index, self._logprobs = texts, index, logprobs

    def opening(self) -> list[dict[str, Any]]:
        """The chunk that names the role."""
        return [self._chunk({"role": "assistant", "content": ""}, None, None)]

    def chunks(self, update: Update, drop: bool = False) -> list[dict[str, Any]]:
        """What an update writes."""
        chunks = []
        if update.text or (self._logprobs and update.logprobs):
            content = [self._token(each) for each in update.logprobs]
            chunks.append(self._chunk({"content": update.text}, {"content": content} if self._logprobs else None, None))
        if update.finished:
            chunks.append(self._chunk({}, None, REASONS[update.finished]))
        return chunks

    def whole(self, chunks: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """A choice that isn't streamed."""
        text = "".join(chunk["delta"].get("content", "") for chunk in chunks)
        content = [token for chunk in chunks if chunk["logprobs"] for token in chunk["logprobs"]["content"]]
        return {
            "index": self._index, "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": {"content": content, "refusal": None} if self._logprobs else None,
            "finish_reason": chunks[-1]["finish_reason"],
        }  # fmt: skip

    def _chunk(self, delta: dict[str, Any], logprobs: Any, reason: str | None) -> dict[str, Any]:
        return {"index": self._index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}

    def _token(self, each: Logprob) -> dict[str, Any]:
        top = [self._one(token, value) for token, value in each.top]
        return {**self._one(each.token, each.value), "top_logprobs": top}

    def _one(self, token: int, value: float) -> dict[str, Any]:
        return {"token": self._texts.text(token), "logprob": value, "bytes": list(self._texts.of(token))}
