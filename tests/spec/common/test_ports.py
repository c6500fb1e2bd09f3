"""A port that is taken: which one, by whom, and what to do."""

from __future__ import annotations

import os
import socket

import pytest

from scalewright.spec.common.ports import how_to_free, listener, port_is_taken

TORCH = (
    "The server socket has failed to listen on any local network address. port: {}, useIpv6: false, code: -98, "
    "name: EADDRINUSE, message: address already in use"
)


def test_who_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert listener(port).startswith(f"process {os.getpid()} (")
        taken = port_is_taken(RuntimeError(TORCH.format(port)))
        assert taken is not None
        assert taken.what.startswith(f"port {port} is taken by process {os.getpid()} (")
        assert taken.how.startswith(f"end it (kill {os.getpid()}), or take another port: MASTER_PORT=29501")
    assert listener(port) == ""


def test_pythons_own_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with pytest.raises(OSError, match="Address already in use") as caught:
            socket.create_server(server.getsockname())
        taken = port_is_taken(caught.value)
        assert taken is not None
        assert f"port {server.getsockname()[1]} is taken" in taken.what


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError(TORCH.format(1)), "port 1 is taken"),
        (OSError(98, "Address already in use"), "port of the rendezvous is taken"),
        (RuntimeError("[c10d] address already in use"), "port of the rendezvous is taken"),
        (RuntimeError("connection refused, port: 29500"), None),
        (OSError(2, "No such file"), None),
    ],
)
def test_which_errors_are_that(error: Exception, words: str | None) -> None:
    taken = port_is_taken(error)
    assert (taken and taken.what) == words


def test_what_to_do_never_names_the_same_port() -> None:
    assert how_to_free(29501, "").count("29501") == 1  # of ss
    assert "ss -ltnp" in how_to_free(29500, "")
