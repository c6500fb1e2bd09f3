"""Chat templates: transformers' dialect, nothing of Python's, and limits for a stranger's."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from jinja2 import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from scalewright.spec import chat
from scalewright.spec.chat import render, render_apart, special_tokens, templates
from scalewright.spec.errors import UserError

TALK: list[dict[str, Any]] = [
    {"role": "user", "content": 'Wo ist "Süden"? <b>'}, {"role": "assistant", "content": "Unten."},
    {"role": "user", "content": "Danke"},
]  # fmt: skip
DIALECT = """{%- set kinds = namespace(n=0) -%}
{{ bos_token }}{% for m in messages %}
  {% if loop.index > 2 %}{% break %}{% endif %}
  {% if m.role == 'assistant' %}
<a>{% generation %}{{ m.content | trim }}{% endgeneration %}</a>
  {% else %}
<u>{{ m | tojson }}{{ m | tojson(indent=1) }}</u>
  {% endif %}
{% endfor %}
{% if add_generation_prompt %}<a>{% endif %}{{ strftime_now('%Y')[:2] }}{{ tools is none }}{{ documents is none }}"""


@pytest.mark.parametrize("prompt", [False, True])
def test_the_text_is_transformers_s(prompt: bool) -> None:
    theirs, _ = render_jinja_template([TALK], chat_template=DIALECT, add_generation_prompt=prompt, bos_token="<s>")
    assert [render(DIALECT, TALK, prompt, {"bos_token": "<s>"})] == theirs


def test_what_a_template_raises_is_said() -> None:
    with pytest.raises(UserError, match="the chat template fails: turns must alternate: mend it"):
        render("{{ raise_exception('turns must alternate') }}", TALK)
    with pytest.raises(UserError, match="damaged chat template: line 2"):
        render("a\n{% if %}", TALK)
    assert TemplateError in chat.FAILS


@pytest.mark.parametrize("text", [
    "{{ messages.__class__ }}", "{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ messages.append(1) }}",
    "{{ cycler.__init__.__globals__ }}", "{% include '/etc/passwd' %}",
])  # fmt: skip
def test_nothing_of_python_is_reached(text: str) -> None:
    with suppress(UserError):  # refused, or undefined
        assert render(text, TALK) == ""


def test_a_stranger_s_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "SECONDS", 1)
    loop = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}"
    with pytest.raises(UserError, match="takes more than 1 s"):
        render_apart(loop + "{% endfor %}{% endfor %}", [(TALK, True)], {})
    with pytest.raises(UserError, match="too much memory"):
        render_apart("{{ 'a' * 99999999999 }}", [(TALK, True)], {})
    both = [(TALK, True), (TALK[:1], True)]
    assert render_apart("{{ messages | length }}{{ eos_token }}", both, {"eos_token": "."}) == ["3.", "1."]


def test_a_file_comes_before_the_config_and_the_default_before_others(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named, "eos_token": {"content": "x"}}))
    assert templates(tmp_path) == {"tokenizer_config.json": "d"}
    (tmp_path / "chat_template.jinja").write_text("f")
    assert list(templates(tmp_path).values()) == ["f", "d"]
    assert special_tokens({"eos_token": {"content": "x"}, "bos_token": None}) == {"eos_token": "x"}
