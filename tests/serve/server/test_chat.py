"""/v1/chat/completions by OpenAI's own client, and templates beside those of transformers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from scalewright.serve.chat import Chat
from scalewright.serve.request import Request
from scalewright.serve.sampling import Sampling, seed_at
from scalewright.serve.server.template import ChatTemplate
from scalewright.spec.errors import UserError
from serve.server.fake import FakeEngine, byte_tokenizer, serving

HELLO: Any = [{"role": "user", "content": "hey"}]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    with serving(tmp_path_factory.mktemp("served") / "tiny") as (url, _):
        yield openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)


def test_an_answer(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=HELLO, max_completion_tokens=4, temperature=0)
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "hey", "length")
    assert answer.usage.prompt_tokens == 5  # <|user|>, three bytes, <|assistant|>
    assert answer.object == "chat.completion"


def test_a_stream(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="tiny", messages=HELLO, temperature=0, stream=True, n=2, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    for index in (0, 1):
        deltas = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == index]
        assert deltas[0].delta.role == "assistant"
        assert "".join(each.delta.content or "" for each in deltas) == "hey" * 3
        assert [each.finish_reason for each in deltas if each.finish_reason] == ["stop"]
    assert last.usage.completion_tokens == 32  # twice three times five, and the end


def test_logprobs(client: openai.OpenAI) -> None:
    keys: Any = {"model": "tiny", "messages": HELLO, "max_tokens": 2, "temperature": 0, "logprobs": True}
    answer = client.chat.completions.create(**keys, top_logprobs=2)
    special, letter = answer.choices[0].logprobs.content
    assert (special.token, letter.token, letter.bytes, letter.logprob) == ("<|user|>", "h", [104], math.log(0.5))
    assert [(each.token, each.logprob) for each in letter.top_logprobs] == [("h", math.log(0.5)), ("g", math.log(0.25))]
    streamed = [c.choices[0].logprobs for c in client.chat.completions.create(**keys, top_logprobs=2, stream=True)]
    assert [token for each in streamed if each for token in each.content] == [special, letter]


def test_parts_of_text_are_one_text(client: openai.OpenAI) -> None:
    parts: Any = [{"role": "user", "content": [{"type": "text", "text": "he"}, {"type": "text", "text": "y"}]}]
    answer = client.chat.completions.create(model="tiny", messages=parts, max_tokens=5, temperature=0)
    assert answer.choices[0].message.content == "he\ny"
    picture: Any = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    with pytest.raises(openai.BadRequestError, match="a part of a message is no text"):
        client.chat.completions.create(model="tiny", messages=picture)


def test_what_is_not_there_is_refused(client: openai.OpenAI) -> None:
    tool: Any = {"type": "function", "function": {"name": "f", "parameters": {}}}
    with pytest.raises(openai.BadRequestError, match="tools: this key isn't taken here"):
        client.chat.completions.create(model="tiny", messages=HELLO, tools=[tool])
    with pytest.raises(openai.BadRequestError, match="top_logprobs needs logprobs"):
        client.chat.completions.create(model="tiny", messages=HELLO, top_logprobs=2)
    with pytest.raises(openai.BadRequestError, match="messages"):
        client.chat.completions.create(model="tiny", messages=[])


def test_a_model_without_a_template(tmp_path: Path) -> None:
    with serving(tmp_path / "base", template=None) as (url, _):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)
        with pytest.raises(openai.BadRequestError, match=r"no chat template: use /v1/completions"):
            client.chat.completions.create(model="base", messages=HELLO)


def test_the_tokenizer_s_end_of_a_turn_ends_an_answer(tmp_path: Path) -> None:
    folder = tmp_path / "chatty"
    folder.mkdir()
    (folder / "tokenizer_config.json").write_text('{"eos_token": {"content": "<|user|>"}}')
    with serving(folder) as (url, _):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)
        answer = client.chat.completions.create(model="chatty", messages=HELLO, temperature=0)
    assert answer.choices[0].finish_reason == "stop"  # the fake engine writes the prompt again: <|user|> comes first
    assert (answer.choices[0].message.content, answer.usage.completion_tokens) == ("", 1)


TEMPLATES = {
    "chatml": "{% for m in messages %}\n{{ '<|im_start|>' + m['role'] + '\n' + m['content'] | trim + '<|im_end|>' }}\n"
    "{% endfor %}\n{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "checked": "{{ bos_token }}{% for m in messages %}\n    {%- if m.role == 'skip' %}{% continue %}{% endif %}\n"
    "    {%- if m.role == 'system' and not loop.first %}{{ raise_exception('late') }}{% endif %}\n"
    "    {{- m.content | tojson(indent=1) }}\n{% endfor %}",
    "named": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ ns.n }}{{ m.content }}"
    "{% if kind is defined %}{{ kind }}{% endif %}{% endfor %}{{ eos_token }}",
}
CHAT = [
    {"role": "system", "content": "Be <brief> & kind. "},
    {"role": "skip", "content": "no"},
    {"role": "user", "content": "Hé?"},
]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("where", ["jinja", "config", "list"])
def test_a_template_writes_what_it_writes_in_transformers(name: str, where: str, tmp_path: Path) -> None:
    import transformers

    config: dict[str, Any] = {"bos_token": "<|user|>", "eos_token": {"content": "<|endoftext|>"}}
    if where == "jinja":
        (tmp_path / "chat_template.jinja").write_text(TEMPLATES[name])
    elif where == "config":
        config["chat_template"] = TEMPLATES[name]
    else:
        named = {"tool_use": "no", "default": TEMPLATES[name]}
        config["chat_template"] = [{"name": each, "template": text} for each, text in named.items()]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer(), bos_token="<|user|>", eos_token="<|endoftext|>"
    )
    theirs.chat_template = TEMPLATES[name]
    expected = theirs.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True, kind="x")
    assert ChatTemplate(tmp_path).render(CHAT, {"kind": "x", "messages": []}) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{ raise_exception('only one turn') }}", "only one turn"),
        ("{{ messages[0].content.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe|not safely callable"),
        ("{% for a in range(10 ** 9) %}{% endfor %}", "Range too big"),
        ("{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", "nests too deeply"),
        ("{{ messages[7].content }}", "has no element 7|undefined"),
    ],
)
def test_a_template_can_refuse_and_does_no_harm(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text(text)
    with pytest.raises(UserError, match=message):
        ChatTemplate(tmp_path).render(HELLO)


def test_a_damaged_template_is_named_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(UserError, match="damaged chat template"):
        ChatTemplate(tmp_path)


def test_turns_of_a_chat_in_the_terminal_have_seeds_of_their_own(tmp_path: Path) -> None:
    """The first that of the chat; also those after /reset."""
    seeds = list[int]()

    class Noting(FakeEngine):
        def add(self, request: Request) -> int:
            seeds.append(request.sampling.seed)
            return super().add(request)

        def cancel(self, number: int) -> None:
            assert self.idle

    chat = Chat(Noting(), ChatTemplate(tmp_path), Sampling(seed=5), 3)  # type: ignore[arg-type]
    for turn in range(4):
        "".join(chat.answer("hello"))
        if turn == 1:
            chat.reset()
    assert seeds == [seed_at(5, turn) for turn in range(4)]
    assert seeds[0] == 5


def test_no_tools_may_be_named(client: openai.OpenAI) -> None:
    keys: Any = {"model": "tiny", "messages": HELLO, "max_tokens": 2, "temperature": 0}
    none = {"tools": [], "tool_choice": "none", "parallel_tool_calls": False}
    assert client.chat.completions.create(**keys, extra_body=none).choices[0].finish_reason == "length"
    for key, value in (("tools", [{"type": "function"}]), ("tool_choice", "auto"), ("parallel_tool_calls", True)):
        with pytest.raises(openai.BadRequestError, match="there are no tools") as caught:
            client.chat.completions.create(**keys, extra_body={key: value})
        assert caught.value.param == key


def test_the_place_of_a_mistake_in_a_message(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"Invalid type for 'messages\[0\]\.role': expected a string"):
        client.chat.completions.create(model="tiny", messages=[{"role": 5, "content": "a"}])  # type: ignore[list-item]
