"""What this process sent over TCP is counted, to the byte."""

import socket
import sys

import pytest

from distlab.errors import UnsupportedEnvironment
from distlab.measure import tcp_bytes
from distlab.measure.tcp_bytes import bytes_sent_on, can_count, tcp_bytes_sent

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")


@linux
def test_bytes_that_the_peer_has_read_are_counted():
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    peer, _ = server.accept()
    with server, client, peer:
        before, client_before = tcp_bytes_sent(), bytes_sent_on(client.fileno())
        client.sendall(b"x" * 5000)
        received = 0
        while received < 5000:
            received += len(peer.recv(5000))
        peer.sendall(b"y")  # its packet brings the acknowledgement with it
        assert client.recv(1) == b"y"
        assert bytes_sent_on(client.fileno()) - client_before == 5000
        assert tcp_bytes_sent() - before in (5000, 5001)  # the "y" may be on its way


@linux
def test_what_is_no_connection_has_sent_nothing(tmp_path):
    with (tmp_path / "file").open("w") as file:
        assert bytes_sent_on(file.fileno()) == 0


def test_a_system_that_does_not_count_is_told_what_to_use(monkeypatch):
    monkeypatch.setattr(tcp_bytes.sys, "platform", "darwin")
    assert not can_count()
    with pytest.raises(UnsupportedEnvironment) as refused:
        tcp_bytes_sent()
    assert "darwin" in refused.value.found
    assert refused.value.do == "use Linux, or WSL2 on Windows"
