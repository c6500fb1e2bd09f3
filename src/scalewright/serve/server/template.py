"""A chat as the text that the model was trained on: the tokenizer's own Jinja template, in a sandbox.

    [{"role": "user", "content": "Hi"}] ──chat_template.jinja, or tokenizer_config.json──► "<|user|>Hi<|assistant|>"

The conventions are those of transformers (`apply_chat_template`): trimmed blocks, loop controls, `raise_exception`,
`strftime_now`, a `tojson` that escapes no HTML, tokens of tokenizer_config.json by name. The tokens of the text are
taken as they are: a template writes its own beginning of text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from scalewright.checkpoint.read import text_files
from scalewright.model.load import is_checkpoint
from scalewright.spec.common.untrusted import inside, read_bytes
from scalewright.spec.ends import CONFIG, json_object, token_name
from scalewright.spec.errors import UserError

LARGEST = 1 << 20  # bytes of a template


class ChatTemplate:
    """The template of the model at `source`, if it has one."""

    def __init__(self, source: str | Path) -> None:
        folders = text_files(Path(source))[0] if is_checkpoint(Path(source)) else [Path(source)]
        self._config = next((config for folder in folders if (config := json_object(folder / CONFIG))), {})
        text = next((text for folder in folders if (text := _in_folder(folder)) is not None), None)
        self._template = None if text is None else _compiled(text, str(folders[0]))

    @property
    def there(self) -> bool:
        """Whether the model has a template."""
        return self._template is not None

    def render(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str:
        """The text up to where the assistant begins; raises UserError for a chat that the template refuses."""
        if self._template is None:
            how = "use /v1/completions, or copy the chat_template.jinja of its training beside its tokenizer"
            raise UserError("the model has no chat template", "messages", how)
        names = ("bos_token", "eos_token", "pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
        tokens = {name: token for name in names if (token := token_name(self._config, name)) is not None}
        try:
            text: str = self._template.render(
                **{**tokens, **variables, "messages": list(map(_flat, messages)), "add_generation_prompt": True}
            )
            return text
        except UserError:
            raise
        except (TemplateError, TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError) as error:
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


def _in_folder(folder: Path) -> str | None:
    path = inside(folder, "chat_template.jinja")
    if path.is_file():
        try:
            return read_bytes(path, LARGEST).decode()
        except (OSError, ValueError) as error:
            raise UserError(f"cannot read it: {error}", str(path), "fetch it again") from None
    for name in (CONFIG, "chat_template.json"):
        given = json_object(folder / name).get("chat_template")
        if isinstance(given, list):  # several, by name
            named = {each.get("name"): each.get("template") for each in given if isinstance(each, dict)}
            given = named.get("default", next(iter(named.values()), None))
        if isinstance(given, str):
            return given
    return None


def _compiled(text: str, where: str) -> Any:
    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None,
               sort_keys: bool = False) -> str:  # fmt: skip
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(text)
    except TemplateError as error:
        raise UserError(f"damaged chat template: {error}", where, "fetch it again") from None
