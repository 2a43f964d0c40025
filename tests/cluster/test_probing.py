import contextlib
import http.server
import signal
import socket
import threading
import time

import pytest

from distlab.cluster.group import Start, TaskGroup
from distlab.cluster.ports import reserved_ports
from distlab.cluster.probing import doubt_of, probe, unanswering
from distlab.cluster.spec import TaskName, local_spec
from distlab.errors import InvalidArgument

SERVE = """
import threading, tensorflow as tf
server = tf.distribute.Server({"worker": ["127.0.0.1:%d"]}, job_name="worker", task_index=0)
print("up", flush=True)
threading.Event().wait()
"""


@pytest.fixture
def server(tmp_path):
    """A TensorFlow server in a process of its own: its address, and a way to send it signals."""
    task = TaskName("worker", 0)
    with reserved_ports(1) as ports:
        spec = local_spec(workers=1, ports=ports)
        how = lambda _: Start(argv=["-c", SERVE % ports[0]], env={})  # noqa: E731
        with TaskGroup(spec, how=how, folder=tmp_path) as group:
            group.start()
            wait_for(lambda: "up" in group.log_of(task).read_text())
            yield spec.address_of(task), lambda number: group.send_signal([task], number)


@contextlib.contextmanager
def listener(backlog=8):
    """A socket that listens on this machine; nobody accepts."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen(backlog)
        yield one, f"127.0.0.1:{one.getsockname()[1]}"


def wait_for(condition, secs=30):
    deadline = time.monotonic() + secs
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_server_answers_until_its_process_is_stopped_or_ended(server):
    address, send = server
    assert probe(address).answers and str(probe(address)).endswith("a TensorFlow server answers")
    assert probe(address.replace("127.0.0.1", "localhost")).answers
    send(signal.SIGSTOP)
    wait_for(lambda: probe(address, timeout_secs=0.2).state == "mute")
    send(signal.SIGCONT)
    wait_for(lambda: probe(address).answers)
    send(signal.SIGKILL)
    wait_for(lambda: probe(address).state == "refused")


def test_a_port_on_which_nobody_listens_is_refused():
    with listener() as (one, address):
        one.close()
        answer = probe(address)
    assert str(answer) == f"{address}: the machine is there and nothing listens on that port"
    assert answer.check == "has the task been started, and does it still run?"


def test_something_else_on_the_port_is_known_from_a_server():
    class Quiet(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Quiet) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        answer = probe(f"127.0.0.1:{web.server_port}")
        web.shutdown()
    assert answer.state == "other" and "which program holds the port" in answer.check


def test_who_accepts_and_closes_at_once_is_known_too():
    with listener() as (one, address):

        def close_all():
            with contextlib.suppress(OSError):
                while True:
                    one.accept()[0].close()

        threading.Thread(target=close_all, daemon=True).start()
        answer = probe(address)
        one.shutdown(socket.SHUT_RDWR)
    assert answer.state == "closed" and "forward the port" in answer.check


def test_who_accepts_and_says_nothing_is_mute():
    with listener() as (_, address):
        started = time.monotonic()
        answer = probe(address, timeout_secs=0.2)
    assert answer.state == "mute" and "is the process stopped" in answer.check
    assert 0.15 < time.monotonic() - started < 2


def test_a_machine_that_drops_what_it_is_sent_is_silent():
    with listener(backlog=0) as (one, address), contextlib.ExitStack() as callers:
        # A queue that is full: the system then drops further callers, as a firewall would.
        for _ in range(4):
            caller = callers.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(one.getsockname())
        answer = probe(address, timeout_secs=0.3)
    assert answer.state == "silent" and "firewall" in answer.check


def test_a_machine_without_a_way_to_it_and_a_name_that_nobody_knows():
    assert probe("255.255.255.255:1").state == "no route"
    answer = probe("no-such-host.invalid:1")
    assert answer.state == "unknown name" and "/etc/hosts" in answer.check


def test_those_that_do_not_answer_are_named_in_order_and_asked_at_once(server):
    address, _ = server
    with listener() as (_, mute), listener() as (_, also_mute), listener() as (gone, refused):
        gone.close()
        started = time.monotonic()
        tasks = {"a": mute, "b": address, "c": also_mute, "d": refused}
        silent = unanswering(tasks, timeout_secs=0.5)
        assert time.monotonic() - started < 0.95
    assert {name: one.state for name, one in silent.items()} == {
        "a": "mute",
        "c": "mute",
        "d": "refused",
    }
    assert list(silent) == ["a", "c", "d"] and unanswering({}) == {}


def test_what_is_no_address_cannot_be_probed():
    with pytest.raises(InvalidArgument, match="has a scheme\n  to do: write 'h:1'") as error:
        probe("grpc://h:1")
    assert error.value.asked == "probe('grpc://h:1')"


def test_an_address_of_another_machine_is_doubted_and_an_unknown_name_is_not():
    assert doubt_of("127.0.0.1:1") == doubt_of("localhost:1") == ""
    assert doubt_of(f"{socket.gethostname()}:1") == ""
    assert doubt_of("no-such-host.invalid:1") == ""
    assert doubt_of("192.0.2.7:1").startswith("192.0.2.7:1 is no address of this machine")
