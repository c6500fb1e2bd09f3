"""Connections that are cut end waits at both ends; others stay."""

from __future__ import annotations

import socket

from scalewright.parallel.connections import connections, cut


def test_both_ends_of_a_connection_see_its_end() -> None:
    before = connections()
    with socket.create_server(("127.0.0.1", 0)) as server:
        left = socket.create_connection(server.getsockname())
        right, _ = server.accept()
        ours = connections() - before
        later = socket.create_connection(server.getsockname())
        near, far = socket.socketpair()
        assert len(ours) == 3  # one only listens
        cut(ours)
        assert (left.recv(1), right.recv(1)) == (b"", b"")
        other, _ = server.accept()  # it still does
        for begin, end in ((later, other), (near, far)):
            begin.sendall(b"x")
            assert end.recv(1) == b"x"
            begin.close()
            end.close()
        left.close()
        right.close()
