"""The model card of an export: names from a checkpoint stay text on the page that a hub makes of it."""

from __future__ import annotations

from pathlib import Path

import html5lib
import pytest
from markdown_it import MarkdownIt

from scalewright.checkpoint.card import model_card
from scalewright.checkpoint.format import Manifest
from scalewright.spec.presets import load_model_spec

NAMES = ["a|b", "![a](https://b/c.png)", "<script>c</script>", "a\n\n<img src=x>", "&lt;b&gt;", "[a](b)", "---"]


@pytest.mark.parametrize("name", NAMES)
def test_names_stay_text(tmp_path: Path, name: str) -> None:
    model = load_model_spec("gpt2").replace(name=name)
    state = {"run": {"init": name, "data": {"train": [{"path": name, "weight": 1.0}], "seq_len": 8}}}
    manifest = Manifest(1, 1, "run", model.dump(), {}, {}, {})
    page = MarkdownIt("commonmark").enable("table").render(model_card(model, manifest, state, tmp_path))
    body = html5lib.parse(page, namespaceHTMLElements=False).find("body")
    own = {"body", "h1", "p", "table", "thead", "tbody", "tr", "th", "td"}
    assert {element.tag for element in body.iter()} <= own
    texts = [element.text for element in body.iter() if element.tag in ("h1", "td")]
    assert texts.count(" ".join(name.split())) == 3  # the title, what it began from, its data
