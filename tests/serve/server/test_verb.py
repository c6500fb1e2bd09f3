"""The verbs `serve` and `chat` with a real model, and the lines of docs/serve.md."""

from __future__ import annotations

import io
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from model.tiny_specs import SPECS
from scalewright.model.decoder import Decoder
from scalewright.model.init import initialize
from scalewright.serve.generate import generate_text
from serve.server.fake import TEMPLATE, byte_tokenizer
from serve.server.test_safety import fuzzed
from serve.test_load import write_checkpoint

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose model writes bytes."""
    folder, spec = tmp_path_factory.mktemp("runs") / "tiny", SPECS["llama"].replace(vocab_size=262)
    model = Decoder(spec)
    initialize(model, spec, 3)
    write_checkpoint(folder, 10, model, spec.dump())
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@contextmanager
def served(*arguments: object) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """The verb in a process, and the line that it prints when it is ready."""
    command = [sys.executable, "-m", "scalewright", "serve", *map(str, arguments), "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.wait(30)


def test_a_run_is_served_exactly(run: Path, tmp_path: Path) -> None:
    """Its greedy text is `generate`'s, beside others; fuzzed bodies do the engine no harm; a signal ends it with 0."""
    (tmp_path / "key").write_text("sk-1\n")
    flags = (
        "--kv-memory",
        0.05,
        "--max-concurrency",
        4,
        "--draft",
        "ngram",
        "--draft-tokens",
        3,
        "--api-key",
        f"@{tmp_path / 'key'}",
        "--served-model-name",
        "mine",
    )
    with served(run, *flags) as (process, line):
        block = 64 * 2 * 3 * 2 * 8 * 4  # tokens, keys and values, layers, KV heads, their width, bytes
        tokens = int(0.05 * 2**30 // block) * 64
        assert line == {"url": line["url"], "model": "mine", "kv_tokens": tokens, "max_concurrency": 4}
        with httpx2.Client(base_url=line["url"], headers={"Authorization": "Bearer sk-1"}) as client:
            body = {
                "model": "mine",
                "prompt": ["To be", "or not", "é", "a b c", "more"],
                "max_tokens": 12,
                "temperature": 0,
            }
            choices = client.post("/v1/completions", json=body).json()["choices"]
            for prompt, choice in zip(body["prompt"], choices, strict=True):  # type: ignore[call-overload]
                alone = generate_text(str(run), prompt, max_new_tokens=12, temperature=0)
                assert choice["text"] == alone.text
            chat = {
                "messages": [{"role": "user", "content": "hi"}],
                "max_tokens": 3,
                "logprobs": True,
                "top_logprobs": 1,
            }
            content = client.post("/v1/chat/completions", json=chat).json()["choices"][0]["logprobs"]["content"]
            assert [each["logprob"] <= each["top_logprobs"][0]["logprob"] for each in content] == [True] * 3
            draw = random.Random(5)
            for _ in range(150):
                path = draw.choice(["/v1/completions", "/v1/chat/completions"])
                content = fuzzed(draw, path)
                assert client.post(path, content=content).status_code in (200, 400, 404), content
            assert client.get("/picture").json()["requests"] == []
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_a_chat_reads_lines_and_keeps_the_turns(
    run: Path, call_cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def chat(lines: str) -> list[str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(lines))
        answer = call_cli("chat", run, "--temperature", 0, "--max-tokens", 4)
        assert answer.code == 0, answer.err
        assert "/reset forgets it" in answer.err
        return list(answer.out.split("\n"))

    first, second, _ = chat("hello\n\nand you\n")
    assert chat("hello\n/reset\nhello\n/quit\nhello\n")[:2] == [first, first]
    prompt = f"<|user|>hello<|assistant|>{first}<|user|>and you<|assistant|>"
    assert second == generate_text(str(run), prompt, max_new_tokens=4, temperature=0).text


def test_a_model_without_a_template_goes_on(
    run: Path, tmp_path: Path, call_cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "checkpoints").symlink_to(run / "checkpoints")
    (folder / "tokenizer.json").write_bytes((run / "tokenizer.json").read_bytes())
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n"))
    answer = call_cli("chat", folder, "--temperature", 0, "--max-tokens", 4)
    assert "no chat template: it continues your text" in answer.err
    assert answer.out == generate_text(str(run), "hello", max_new_tokens=4, temperature=0).text + "\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kv-memory", "0.00001"], "no block of the cache fits into 1e-05 GiB"),
        (["--api-key", ""], "the key is empty"),
        (["--api-key", "@nowhere"], "cannot read the key"),
        (["--host", "192.0.2.1"], "cannot listen at 192.0.2.1:8000"),
    ],
)
def test_mistakes(run: Path, call_cli: Callable[..., Any], arguments: list[str], message: str) -> None:
    answer = call_cli("serve", run, *arguments)
    assert answer.code == 2
    assert message in answer.err


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_lines_of_the_page(run: Path, tmp_path: Path) -> None:
    """docs/serve.md after its first line (`demo` has tests of its own), at a port that is free."""
    page = (ROOT / "docs" / "serve.md").read_text(encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as sock:
        page = page.replace(":8000", f":{sock.getsockname()[1]}")
        port = sock.getsockname()[1]
    (train, serve), (curl,), (chat,) = (text.splitlines() for text in re.findall(r"```sh\n(.*?)\n```", page, re.DOTALL))
    (code,) = re.findall(r"```python\n(.*?)\n```", page, re.DOTALL)
    path = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}

    def typed(line: str, text: str = "") -> str:
        done = subprocess.run(["bash", "-c", line], cwd=tmp_path, env=path, input=text, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert train == "scalewright demo"
    (tmp_path / "runs").mkdir()
    shutil.copytree(run, tmp_path / "runs" / "demo")
    server = subprocess.Popen(["bash", "-c", f"exec {serve} --port {port}"], cwd=tmp_path, env=path,
                              stdout=subprocess.PIPE, text=True)  # fmt: skip
    try:
        assert server.stdout is not None
        assert f"http://127.0.0.1:{port}" in server.stdout.readline()
        assert json.loads(typed(curl))["usage"]["completion_tokens"] == 20
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout
        assert typed(chat, "ROMEO:\n/quit\n").strip()
    finally:
        server.terminate()
    assert server.wait(60) == 0
