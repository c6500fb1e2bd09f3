"""The server answers its page and nothing else: states, mistakes, other sites' requests, a taken port, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import pytest

from scalewright.explore.server import Explorer
from scalewright.explore.state import State
from scalewright.spec.errors import UserError

STATE = State("llama-3.1-8b", "dgx-h100", 4096, {"devices": 64, "tp": 2, "global_batch": 256, "micro_batch": 1})


@pytest.fixture(scope="module")
def server():
    with Explorer("127.0.0.1", 0, "<p>page", frozenset({STATE.model}), frozenset({STATE.cluster})) as explorer:
        thread = threading.Thread(target=explorer.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield explorer
        explorer.shutdown()
        thread.join(10)


def get(server, path, **headers):
    """The status and the text of an answer."""
    request = urllib.request.Request(server.url + path.lstrip("/"), headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_page_and_a_picture(server):
    assert get(server, "/") == (200, "<p>page")
    status, text = get(server, f"/picture?{STATE.query()}")
    assert status == 200
    assert json.loads(text)["numbers"]["step_time_s"]["p50"] > 0


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/etc/passwd", 404, "no such page"), ("/picture", 400, "unknown model"),
        ("/picture?model=..%2F..%2Fetc&cluster=dgx-h100", 400, "unknown model"),
        (f"/picture?{STATE.query()}&tq=1", 400, "unknown key 'tq'"),
        (f"/picture?{STATE.query().replace('tp=2', 'tp=3')}", 400, "not divisible by tp 3"),
        (f"/reasons?{STATE.query().replace('tp=2', 'tp=0')}", 400, "tp"),
        (f"/picture?{STATE.query()}&x={'a' * 5000}", 400, "too long"),
    ],
)  # fmt: skip
def test_a_mistake_is_a_sentence(server, path, status, words):
    got, text = get(server, path)
    assert got == status
    assert words in text
    if status == 400:
        assert json.loads(text)["error"]["how"]


def test_another_site_s_name_is_refused(server):
    assert get(server, "/", Host="evil.example:8642")[0] == 403
    assert get(server, "/", Host="localhost:1")[0] == 200


def test_a_taken_port_is_a_sentence(server):
    port = server.server_address[1]
    with pytest.raises(UserError, match=f"port {port} is taken") as error:
        Explorer("127.0.0.1", port, "", frozenset(), frozenset())
    assert "--port" in error.value.how


def test_ctrl_c_ends_the_verb_cleanly():
    command = [sys.executable, "-m", "scalewright", "explore", "--port", "0", "--json"]
    work = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert work.stdout is not None
    text = ""
    while not text.endswith("}\n"):
        line = work.stdout.readline()
        assert line, work.stderr.read() if work.stderr else ""
        text += line
    url = json.loads(text)["url"]
    with urllib.request.urlopen(url, timeout=60) as page:
        assert b"Explore a layout" in page.read()
    work.send_signal(signal.SIGINT if os.name != "nt" else signal.CTRL_C_EVENT)
    _, complaint = work.communicate(timeout=60)
    assert work.returncode == 0
    assert "Traceback" not in complaint
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(url.split(":")[-1].strip("/")))) != 0


def test_a_search_that_another_one_ended_is_no_answer(server, monkeypatch):
    """One page's search isn't shown as whole when a second page has begun its own."""
    others: list[int] = []

    def searched(state, stop):
        if not others:  # the second begins while the first is under way
            others.append(0)
            others[0] = get(server, f"/search?{STATE.query()}")[0]
        return {"complete": not stop()}

    monkeypatch.setattr("scalewright.explore.server.searched", searched)
    status_and_text = get(server, f"/search?{STATE.query()}")
    assert others == [200]
    assert status_and_text[0] == 400
    assert "a newer search" in status_and_text[1]
