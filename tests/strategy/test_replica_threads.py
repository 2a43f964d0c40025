"""A replica's thread that ends a moment later costs a moment, not a second."""

import threading

import pytest
import tensorflow as tf
from tensorflow.python.distribute import mirrored_run

import distlab as dl
from distlab.strategy.replica_threads import Coordinator


def never(*_):
    raise AssertionError("it looks again a second later")


@pytest.fixture
def coordinator(monkeypatch):
    made = Coordinator()
    monkeypatch.setattr(made, "wait_for_stop", never)
    return made


def test_a_thread_that_has_not_ended_is_waited_for(coordinator):
    ends = threading.Event()
    thread = threading.Thread(target=ends.wait)
    thread.start()
    threading.Timer(0.05, ends.set).start()
    coordinator.join([thread])
    assert not thread.is_alive()


def test_tensorflows_own_would_look_again_a_second_later(monkeypatch):
    from tensorflow.python.training.coordinator import Coordinator as Own

    own, ends = Own(), threading.Event()
    monkeypatch.setattr(own, "wait_for_stop", never)
    thread = threading.Thread(target=ends.wait)
    thread.start()
    with pytest.raises(AssertionError, match="a second later"):
        own.join([thread])
    ends.set()
    thread.join()


def test_the_error_of_a_thread_is_raised_while_another_still_waits():
    coordinator, ends = Coordinator(), threading.Event()

    def fail():
        with coordinator.stop_on_exception():
            raise ValueError("of a replica")

    failing, waiting = threading.Thread(target=fail), threading.Thread(target=ends.wait)
    waiting.start()
    failing.start()
    threading.Timer(0.05, ends.set).start()
    with pytest.raises(ValueError, match="of a replica"):
        coordinator.join([waiting, failing])


def test_a_strategy_of_distlab_waits_so(monkeypatch):
    joined = []
    own = Coordinator.join
    monkeypatch.setattr(
        Coordinator, "join", lambda self, threads, **rest: joined.append(own(self, threads, **rest))
    )
    strategy = dl.make_strategy("mirrored", devices=2)
    assert mirrored_run.coordinator.Coordinator is Coordinator
    numbers = strategy.run(lambda: tf.distribute.get_replica_context().replica_id_in_sync_group)
    assert [int(one) for one in strategy.experimental_local_results(numbers)] == [0, 1]
    assert joined == [None]
