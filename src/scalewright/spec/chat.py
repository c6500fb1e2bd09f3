"""A chat's template: Jinja of whoever made the model, so that it is rendered in a sandbox.

    chat_template.jinja, or chat_template of tokenizer_config.json    + messages ──► the text that is tokenized

The dialect is that of transformers (apply_chat_template): blocks trimmed, `break` and `continue`, `{% generation %}`,
tojson without HTML, raise_exception, strftime_now. Templates see names and values, no attributes of Python's.
A loop in one may still take for ever: `render_apart` renders a stranger's in a process with limits.
"""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from scalewright.spec.common.own_imports import own_imports
from scalewright.spec.common.untrusted import inside, read_bytes
from scalewright.spec.ends import CONFIG, json_object, token_name
from scalewright.spec.errors import UserError

FILE = "chat_template.jinja"
TEMPLATE_BYTES = 1 << 20
SECONDS, MEMORY = 10, 2 << 30  # of the process of `render_apart`
FAILS = (jinja2.TemplateError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError)  # of a template
Chat = Sequence[Mapping[str, Any]]  # messages: role, content
SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}` marks what an assistant wrote, for masks; here it is its content."""

    tags = {"generation"}  # noqa: RUF012  # as its base has it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The nodes between the two tags."""
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


def templates(folder: Path) -> dict[str, str]:
    """The chat templates that a folder has, by the file that holds each; the first is the one that is used.

    Raises UserError for a file that can't be read.
    """
    held: dict[str, str] = {}
    if (path := inside(folder, FILE)).is_file():
        try:
            held[FILE] = read_bytes(path, TEMPLATE_BYTES).decode()
        except (OSError, ValueError) as error:
            raise UserError(f"cannot read the chat template: {error}", str(path), "fetch it again") from None
    for name in (CONFIG, "chat_template.json"):
        given = json_object(folder / name).get("chat_template")
        if isinstance(given, list):  # several, by name
            named = {item.get("name"): item.get("template") for item in given if isinstance(item, Mapping)}
            given = named.get("default", next(iter(named.values()), None))
        if isinstance(given, str):
            held[name] = given
    return held


def special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The tokens of a tokenizer_config.json that templates name."""
    return {key: name for key in SPECIAL if (name := token_name(config, key)) is not None}


def render(template: str, messages: Chat, prompt: bool = True, tokens: Mapping[str, str] | None = None) -> str:
    """The text of a chat; `prompt`: with what an assistant's next turn begins with. Raises UserError."""
    names, ready = {"tools": None, "documents": None, **(tokens or {})}, compiled(template)
    try:
        return ready.render(messages=messages, add_generation_prompt=prompt, **names)
    except FAILS as error:
        raise UserError(f"the chat template fails: {error}", "", "mend it, or take that of its family") from None
    except (RecursionError, MemoryError):
        raise UserError("the chat template takes too much memory", "", "take that of its family") from None


def compiled(template: str) -> jinja2.Template:
    """A template in the sandbox, to be rendered many times; raises UserError for what isn't Jinja."""
    extensions = [_Generation, loopcontrols]
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.filters["tojson"] = _to_json
    environment.globals.update(raise_exception=_refuse, strftime_now=_now)
    try:
        return environment.from_string(template)
    except jinja2.TemplateSyntaxError as error:
        what = f"damaged chat template: line {error.lineno}: {error}"
        raise UserError(what, "", "mend it, or take that of its family") from None


def _to_json(value: Any, ensure_ascii: bool = False, **keys: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **keys)


def _refuse(text: str) -> NoReturn:
    raise jinja2.TemplateError(text)


def _now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def render_apart(template: str, chats: Sequence[tuple[Chat, bool]], tokens: Mapping[str, str]) -> list[str]:
    """The texts of (chat, prompt), rendered in a process with limits on time and memory. Raises UserError."""
    request = json.dumps({"template": template, "chats": chats, "tokens": tokens})
    command = [sys.executable, "-m", "scalewright.spec.chat"]
    try:
        with own_imports():
            done = subprocess.run(command, input=request, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        what = f"the chat template takes more than {SECONDS} s"
        raise UserError(what, "", "take that of its family") from None
    answer: dict[str, Any] = {}
    with suppress(ValueError):  # a process that was killed wrote nothing
        answer = json.loads(done.stdout)
    if "texts" in answer:
        return list(answer["texts"])
    raise UserError(answer.get("what", "the chat template fails"), "", answer.get("how", "take that of its family"))


def _main() -> None:
    """The process: a request on stdin, its answer on stdout."""
    with suppress(ImportError, ValueError, OSError):  # Windows has no such limits
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    request = json.load(sys.stdin)
    try:
        texts = [render(request["template"], chat, prompt, request["tokens"]) for chat, prompt in request["chats"]]
        answer: dict[str, Any] = {"texts": texts}
    except UserError as error:
        answer = {"what": error.what, "how": error.how}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    _main()
