"""An interrupt waits for the end of a block, and is as ever before and after it."""

import os
import signal
import threading

import pytest

from distlab.cluster.local.deferred_interrupt import deferred_interrupt


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_is_raised_at_the_end_of_the_block_and_not_inside():
    reached = []
    with pytest.raises(KeyboardInterrupt):
        with deferred_interrupt():
            interrupt()
            reached.append("the end")
        reached.append("what follows")
    assert reached == ["the end"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt), deferred_interrupt():
        interrupt()
        raise ValueError("is no more important than what the user asks for")


def test_another_thread_and_a_handler_of_the_users_are_left_alone():
    handlers = []

    def enter():
        with deferred_interrupt():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    before = signal.signal(signal.SIGINT, own := lambda *_: handlers.append("own"))
    try:
        enter()
        with deferred_interrupt():
            interrupt()
    finally:
        signal.signal(signal.SIGINT, before)
    assert handlers == [signal.default_int_handler, own, "own"]
