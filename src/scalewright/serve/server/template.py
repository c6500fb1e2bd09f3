"""A chat as the text that the model was trained on: the tokenizer's own Jinja template, in a sandbox.

    [{"role": "user", "content": "Hi"}] ──chat_template.jinja, or tokenizer_config.json──► "<|user|>Hi<|assistant|>"

The dialect is that of transformers (spec/chat.py). The tokens of the text are taken as they are: a template writes its
own beginning of text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scalewright.checkpoint.read import text_files
from scalewright.checkpoint.store.bring import bring
from scalewright.model.load import is_checkpoint
from scalewright.serve.load import Loaded
from scalewright.spec.chat import FAILS, compiled, special_tokens, templates
from scalewright.spec.ends import CONFIG, json_object
from scalewright.spec.errors import UserError


class ChatTemplate:
    """The template of the model at `source`, if it has one."""

    def __init__(self, source: str | Path) -> None:
        path = bring(source)
        folders = text_files(path)[0] if is_checkpoint(path) else [path]
        config = next((config for folder in folders if (config := json_object(folder / CONFIG))), {})
        self._tokens = special_tokens(config)
        text = next((text for folder in folders for text in templates(folder).values()), None)
        self._template = None if text is None else compiled(text)

    @property
    def there(self) -> bool:
        """Whether the model has a template."""
        return self._template is not None

    def ends(self, loaded: Loaded) -> frozenset[int]:
        """The tokens that end an answer: the model's, and the `eos_token` of tokenizer_config.json."""
        number = loaded.tokenizer.token_to_id(self._tokens.get("eos_token", ""))
        return loaded.end_of_text if number is None else loaded.end_of_text | {int(number)}

    def render(self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any] | None = None) -> str:
        """The text up to where the assistant begins; raises UserError for a chat that the template refuses."""
        if self._template is None:
            how = "use /v1/completions, or copy the chat_template.jinja of its training beside its tokenizer"
            raise UserError("the model has no chat template", "messages", how)
        try:
            text: str = self._template.render(
                **{**self._tokens, **(variables or {}), "messages": list(map(_flat, messages)),
                   "add_generation_prompt": True}
            )  # fmt: skip
            return text
        except UserError:
            raise
        except FAILS as error:
            raise UserError(f"the chat template refuses it: {error}", "messages", "see the model's card") from None
        except RecursionError:
            raise UserError("the chat template nests too deeply", "messages", "see the model's card") from None


def _flat(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message whose parts of text are one text."""
    content = message.get("content")
    if isinstance(content, list):
        if any(part.get("type") != "text" or not isinstance(part.get("text"), str) for part in content):
            raise UserError("a part of a message is no text", "messages", "this model reads text alone")
        content = "\n".join(part["text"] for part in content)
    return {**message, "content": content or ""}
