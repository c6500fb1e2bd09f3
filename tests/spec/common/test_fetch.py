"""hf:org/name: only config.json is fetched, and every failure is one line."""

from __future__ import annotations

import io
import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from scalewright.spec.errors import UserError
from scalewright.spec.presets import load_model_spec


def test_only_config_json_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    urls: list[str] = []

    def respond(url: str, timeout: float) -> io.BytesIO:
        urls.append(url)
        return io.BytesIO(json.dumps({"model_type": "gpt2", "n_layer": 5}).encode())

    monkeypatch.setattr(urllib.request, "urlopen", respond)
    spec = load_model_spec("hf:some/small-gpt")
    assert (spec.name, spec.num_hidden_layers) == ("small-gpt", 5)
    load_model_spec("hf:some/small-gpt@v1.0")
    assert [url.partition("/some/")[2] for url in urls] == [
        "small-gpt/resolve/main/config.json",
        "small-gpt/resolve/v1.0/config.json",
    ]
    assert all(url.startswith("https://") for url in urls)


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (urllib.error.URLError("Name or service not known"), "check the network"),
        (TimeoutError("timed out"), "timed out"),
        (urllib.error.HTTPError("", 401, "", {}, None), "gated"),  # type: ignore[arg-type]
        (urllib.error.HTTPError("", 404, "", {}, None), "no such model"),  # type: ignore[arg-type]
        (urllib.error.HTTPError("", 503, "", {}, None), "HTTP 503"),  # type: ignore[arg-type]
    ],
)
def test_failures(monkeypatch: pytest.MonkeyPatch, failure: Exception, message: str) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise failure

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    with pytest.raises(UserError) as error:
        load_model_spec("hf:some/model")
    assert message in str(error.value)
    assert "hf:some/model" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"<html>", b"[1]", b"\xff\xfe", b"[" * 200_000, b" " * (5 << 20)])
def test_a_response_that_is_no_config(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: io.BytesIO(content))
    with pytest.raises(UserError):
        load_model_spec("hf:some/model")


@pytest.mark.parametrize("name", ["hf:one", "hf:a/b/c", "hf:a/b?x", "hf:../../etc", "hf:a/b@x y"])
def test_invalid_names(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: pytest.fail("used the network"))
    with pytest.raises(UserError, match="org/name"):
        load_model_spec(name)
