"""A slow network between two processes: a relay that delays bytes and limits their rate.

    relays = slow_peers(megabytes_per_sec=160, delay_ms=1)     # before TensorFlow's servers start

Two workers on one machine talk through its memory, which no network is as fast as. With a relay
before each peer they talk through a link whose speed is known. The relay is a process of its own,
because TensorFlow holds Python's lock while it connects, and it ends with the process that
started it.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import subprocess
import sys
import threading
import time

_CHUNK_BYTES = 65536
_CONNECT_SECS = 60.0
_SHORTEST_SLEEP_SECS = 0.0005


def slow_peers(*, megabytes_per_sec: float, delay_ms: float) -> list[subprocess.Popen[str]]:
    """Puts a relay before each other worker, and changes TF_CONFIG of this process to that."""
    config = json.loads(os.environ["TF_CONFIG"])
    addresses, own = config["cluster"]["worker"], config["task"]["index"]
    relays = []
    for number, address in enumerate(addresses):
        if number != own:
            rate, delay = str(1e6 * megabytes_per_sec), str(delay_ms / 1e3)
            command = [sys.executable, "-I", __file__, address, rate, delay]
            pipe = subprocess.PIPE
            relay = subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe)
            assert relay.stdout  # a pipe
            addresses[number] = relay.stdout.readline().strip()
            relays.append(relay)
    os.environ["TF_CONFIG"] = json.dumps(config)
    return relays


def _serve(listener: socket.socket, address: str, rate: float, delay: float) -> None:
    while True:
        near, _ = listener.accept()
        far = _connected(address)
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for source, target in ((near, far), (far, near)):
            _carry(source, target, rate, delay)


def _connected(address: str) -> socket.socket:
    host, port = address.rsplit(":", 1)
    deadline = time.monotonic() + _CONNECT_SECS
    while True:
        try:
            return socket.create_connection((host, int(port)))
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _carry(source: socket.socket, target: socket.socket, rate: float, delay: float) -> None:
    """Carries one direction of a connection, in two threads."""
    under_way: queue.Queue[tuple[float, bytes]] = queue.Queue()

    def receive() -> None:
        data = b"begin"
        while data:
            data = b""
            with contextlib.suppress(OSError):
                data = source.recv(_CHUNK_BYTES)
            under_way.put((time.perf_counter() + delay, data))

    def send() -> None:
        free = 0.0  # when the link is free again
        with contextlib.suppress(OSError):
            while True:
                due, data = under_way.get()
                if not data:
                    target.shutdown(socket.SHUT_WR)
                    return
                free = max(free, due) + len(data) / rate
                if (wait := free - time.perf_counter()) > _SHORTEST_SLEEP_SECS:
                    time.sleep(wait)
                target.sendall(data)

    for job in (receive, send):
        threading.Thread(target=job, daemon=True).start()


def _main(address: str, rate: str, delay: str) -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=16)
    ends = (listener, address, float(rate), float(delay))
    threading.Thread(target=_serve, args=ends, daemon=True).start()
    sys.stdout.write(f"127.0.0.1:{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    sys.stdin.read()  # until the process that started this one has ended


if __name__ == "__main__":
    _main(*sys.argv[1:])
