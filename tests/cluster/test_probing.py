"""What comes back from an address, and what it means."""

import contextlib
import http.server
import signal
import socket
import threading

from distlab.cluster.group import Start, TaskGroup
from distlab.cluster.ports import reserved_ports
from distlab.cluster.probe import doubt_of, probe, unanswering
from distlab.cluster.spec import Layout, TaskName
from tests.support.limits import HANG_SECS
from tests.support.local_tasks import wait_until

SERVE = """
import threading, tensorflow as tf
server = tf.distribute.Server({"worker": ["127.0.0.1:%d"]}, job_name="worker", task_index=0)
print("up", flush=True)
threading.Event().wait()
"""


@contextlib.contextmanager
def listener(backlog=8):
    """A socket that listens on this machine; nobody accepts."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(backlog)
        yield listening, f"127.0.0.1:{listening.getsockname()[1]}"


def test_a_server_answers_until_its_process_is_stopped_or_ended(tmp_path):
    def ask(**options):
        return probe(address, **{"timeout_secs": HANG_SECS, **options})

    task = TaskName("worker", 0)
    with contextlib.ExitStack() as stack:
        ports = stack.enter_context(reserved_ports(1))
        spec = Layout(workers=1).on(ports)
        how = Start(argv=["-c", SERVE % ports[0]], env={})
        group = stack.enter_context(TaskGroup(spec, how=lambda _: how, folder=tmp_path))
        group.start()
        wait_until(lambda: "up" in group.log_of(task).read_text())
        address = spec.address_of(task)
        assert ask().answers and str(ask()).endswith("a TensorFlow server answers")
        assert probe(address.replace("127.0.0.1", "localhost"), timeout_secs=HANG_SECS).answers
        # Those that do not answer are named, in order.
        (_, mute), (gone, refused) = (stack.enter_context(listener()) for _ in range(2))
        gone.close()
        silent = unanswering({"a": mute, "b": address, "c": refused}, timeout_secs=10)
        states = {name: answer.state for name, answer in silent.items()}
        assert list(states.items()) == [("a", "mute"), ("c", "refused")]
        assert unanswering({}) == {}
        group.send_signal([task], signal.SIGSTOP)
        wait_until(lambda: ask(timeout_secs=0.2).state == "mute")
        group.send_signal([task], signal.SIGCONT)
        wait_until(lambda: ask().answers)
        group.send_signal([task], signal.SIGKILL)
        wait_until(lambda: ask().state == "refused")


class Web(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass


def test_what_is_no_server_is_told_by_what_comes_back():
    with listener() as (listening, address):
        listening.close()
        answer = probe(address, timeout_secs=HANG_SECS)
    assert str(answer) == f"{address}: the machine is there and nothing listens on that port"
    assert answer.check == "has the task been started, and does it still run?"

    with http.server.HTTPServer(("127.0.0.1", 0), Web) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        answer = probe(f"127.0.0.1:{web.server_port}", timeout_secs=HANG_SECS)
        web.shutdown()
    assert answer.state == "other" and "which program holds the port" in answer.check

    with listener() as (listening, address):

        def close_all():
            with contextlib.suppress(OSError):
                while True:
                    listening.accept()[0].close()

        threading.Thread(target=close_all, daemon=True).start()
        answer = probe(address, timeout_secs=HANG_SECS)
        listening.shutdown(socket.SHUT_RDWR)
    assert answer.state == "closed" and "forward the port" in answer.check

    with listener() as (_, address):
        answer = probe(address, timeout_secs=2)
    assert answer.state == "mute" and "is the process stopped" in answer.check

    with listener(backlog=0) as (listening, address), contextlib.ExitStack() as callers:
        # A queue that is full: the system then drops further callers, as a firewall would.
        for _ in range(4):
            caller = callers.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(listening.getsockname())
        answer = probe(address, timeout_secs=0.3)
    assert answer.state == "silent" and "firewall" in answer.check

    assert probe("255.255.255.255:1").state == "no route"
    answer = probe("no-such-host.invalid:1")
    assert answer.state == "unknown name" and "/etc/hosts" in answer.check


def test_an_address_of_another_machine_is_doubted_and_an_unknown_name_is_not():
    assert doubt_of("127.0.0.1:1") == doubt_of("localhost:1") == ""
    assert doubt_of(f"{socket.gethostname()}:1") == ""
    assert doubt_of("no-such-host.invalid:1") == ""
    assert doubt_of("192.0.2.7:1").startswith("192.0.2.7:1 is no address of this machine")
