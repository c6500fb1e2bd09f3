"""The page at /: one HTML text with its style and its script; nothing comes from elsewhere."""

from __future__ import annotations

import importlib.resources
from functools import cache

import jinja2


def page_text(model: str, chats: bool, locked: bool) -> str:
    """The page of a model; `chats`: it has a chat template, `locked`: an API key is asked for."""
    template = jinja2.Template(_asset("chat.html"), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    text: str = template.render(model=model, chats=chats, locked=locked, css=_asset("chat.css"), js=_asset("chat.js"))
    return text


@cache
def _asset(name: str) -> str:
    return (importlib.resources.files("scalewright.serve.server") / "assets" / name).read_text(encoding="utf-8")
