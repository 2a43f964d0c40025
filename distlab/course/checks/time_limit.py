"""Ends a learner's function that runs for too long, or that the learner interrupts.

    with TimeLimit(function, secs=60.0, status=StatusLine()) as limit:
        limit.run(lambda: check.call(function, inputs))     # what it returns, or Stopped is raised
    limit.failure                                           # in words, with the line it was at

The function runs in the notebook's own process, so it can only be asked to end. A second thread
watches the time, and asks in all the ways there are:

- A signal raises `Stopped` in the main thread, also where it sleeps or waits for a lock.
- Threads that the function has started, such as those of replicas, have it raised in them.
- TensorFlow cancels a `tf.function`, whose loops never return to Python.

Code that catches `Stopped` is asked again. Other C code that never returns hears none of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, TypeVar

from distlab.cluster.deadline import Deadline
from distlab.course.checks.status_line import StatusLine
from distlab.course.results.failures import Failure, innermost_line
from distlab.course.results.stops import ANSWER_SECS, Stop, StopReason
from distlab.errors import InvalidArgument

_LOOK_SECS = 0.5
_SILENT_SECS = 5.0  # before a line below the cell says what runs
_AGAIN_SECS = 3.0  # between two tries to stop it: a cluster has 2 to end in
_MOST_HANDLERS = 10
_END = b"\0"

Result = TypeVar("Result")
Stack = list[tuple[FrameType, int]]  # innermost first


class Stopped(KeyboardInterrupt):
    """Raised in the learner's code; no `except Exception` catches it."""


class _Reminder:
    """Its truth value is `Stopped`, while code runs that has caught that."""

    limit: TimeLimit | None = None

    def __bool__(self) -> bool:
        if self.limit is not None and self.limit._is_inside:
            raise Stopped
        return False


_REMINDER = _Reminder()  # never deleted: Python keeps calls with its address


class TimeLimit:
    """The limit of time for all calls of one answer.

    Args:
        function: The learner's function.
        secs: How long its calls may take together; waiting for a core does not count.
        skip: Code around the calls that is not the learner's, though it may share their globals.
        status: Where learners read that their code is still running.

    Raises:
        InvalidArgument: The time is no number above 0.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        secs: float = ANSWER_SECS,
        skip: CodeType | None = None,
        status: StatusLine,
    ) -> None:
        if not secs > 0:
            raise InvalidArgument(
                asked=f"check(secs={secs!r})",
                found=f"secs={secs!r}",
                do="allow more than 0 s",
            )
        self._function, self._secs, self._skip, self._status = function, secs, skip, status
        self._stop: Stop | None = None
        self._line = ""
        self._is_inside = False
        self._is_asking = False
        self._cancel: Callable[[], None] = lambda: None
        self._tries, self._stopped_at, self._try_at = 0, 0.0, 0.0
        self._deadline: Deadline | None = None
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> TimeLimit:
        self._thread = threading.get_ident()
        self._told, self._tell = socket.socketpair()
        self._tell.setblocking(False)
        is_main = threading.current_thread() is threading.main_thread()
        self._handler = signal.getsignal(signal.SIGINT) if is_main else None
        self._has_signals = self._handler is not None and hasattr(signal, "pthread_kill")
        if self._has_signals:
            signal.signal(signal.SIGINT, self._heed)
            # An interrupt is seen at once also where no handler of Python's can run.
            theirs = signal.set_wakeup_fd(self._tell.fileno(), warn_on_full_buffer=False)
            self._had_wakeup = theirs != -1
            if self._had_wakeup:
                signal.set_wakeup_fd(theirs)
        return self

    def __exit__(self, *_: object) -> None:
        if self._deadline is not None:
            self._tell.send(_END)
            self._watcher.join()
        if self._has_signals:
            if not self._had_wakeup:
                signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGINT, self._handler)
        self._status.clear()
        _REMINDER.limit = None
        self._told.close()
        self._tell.close()

    @property
    def failure(self) -> Failure | None:
        """Why there is nothing to judge, if the function was stopped."""
        if self._stop is None:
            return None
        return self._stop.failure((self._line,) if self._line else ())

    def run(self, call: Callable[[], Result]) -> Result:
        """Returns the result of a call of the learner's function.

        Raises:
            Stopped: The time is over, or the learner interrupted it.
        """
        if self._stop is not None:  # between two calls
            raise Stopped
        self._others = set(sys._current_frames())
        with self._cancellable():
            if self._deadline is None:
                self._began = time.monotonic()
                self._deadline = Deadline(self._secs, lambda: [os.getpid()])
                self._watcher.start()
            try:
                self._is_inside = True
                return call()
            finally:
                self._is_inside = False  # from here on nothing is raised any more, but
                _raise_in(self._thread, None)  # what is on its way: here or not at all
                if self._stop is not None:
                    raise Stopped from None

    @contextlib.contextmanager
    def _cancellable(self) -> Iterator[None]:
        """Lets TensorFlow, if it is loaded, cancel the functions that run inside."""
        eager: Any = sys.modules.get("tensorflow.python.eager.cancellation")
        if eager is None:
            yield
            return
        manager = eager.CancellationManager()
        self._cancel = manager.start_cancel
        with eager.CancellationManagerContext(manager):
            yield

    def _heed(self, _: int, frame: FrameType | None) -> None:
        """Handles the signal: an interrupt by the learner, or one that `_ask` has sent."""
        is_first = self._stop is None
        if is_first and self._handler is not signal.SIG_IGN:
            self._note(StopReason.INTERRUPT)
        elif not self._is_asking:  # they press again, while what was stopped ends
            return
        self._is_asking = False
        if self._is_inside:
            raise Stopped

    def _note(self, reason: StopReason, detail: str = "") -> None:
        self._line = self._running_line()
        self._stopped_at = time.monotonic()
        self._try_at = self._stopped_at + _AGAIN_SECS
        self._stop = Stop(reason, detail)

    def _watch(self) -> None:
        assert self._deadline is not None
        while True:
            ready, _, _ = select.select([self._told], [], [], _LOOK_SECS)
            told = self._told.recv(4096) if ready else b""
            if _END in told:
                return
            if not self._is_inside:
                continue
            is_interrupted = signal.SIGINT in told and self._handler is not signal.SIG_IGN
            if self._stop is None and self._deadline.has_passed():
                self._note(StopReason.TIME, f"{self._secs:g}")
                self._ask()
            elif is_interrupted and not self._tries:
                if self._stop is None:  # its handler waits for the end of C code
                    self._note(StopReason.INTERRUPT)
                self._ask(by_signal=False)
            elif self._stop is not None and time.monotonic() >= self._try_at:
                self._ask()
            self._show()

    def _ask(self, *, by_signal: bool = True) -> None:
        """Asks the learner's code to end."""
        self._tries += 1
        self._try_at = time.monotonic() + _AGAIN_SECS
        self._cancel()
        for thread, stack in self._new_stacks():
            if innermost_line(stack, self._function, skip=self._skip):
                _raise_in(thread, Stopped)
        if self._tries > 1:
            if any(_is_of_cluster(frame) for frame, _ in self._own_stack()):
                return  # it ends processes, which must not be left half done
            if self._has_signals:
                self._insist()
        if not self._has_signals:
            _raise_in(self._thread, Stopped)
        elif by_signal:
            self._is_asking = True
            signal.pthread_kill(self._thread, signal.SIGINT)

    def _insist(self) -> None:
        """Lets the main thread raise it several times: each `except:` around catches one.

        Python does calls that are pending between bytecodes, and one whose truth value is an error
        raises that. What is left when the code has ended does nothing.
        """
        python, _REMINDER.limit = ctypes.pythonapi, self
        for _ in range(_MOST_HANDLERS):
            python.Py_AddPendingCall(python.PyObject_IsTrue, ctypes.py_object(_REMINDER))

    def _show(self) -> None:
        now = time.monotonic()
        if self._stop is not None and now >= self._stopped_at + _SILENT_SECS:
            self._status.show_stuck(self._line)
        elif now >= self._began + _SILENT_SECS:
            self._status.show_running(self._running_line(), self._secs)

    def _running_line(self) -> str:
        """Returns the learner's line that runs now, in a thread of a replica if there is one."""
        stacks = [*(stack for _, stack in self._new_stacks()), self._own_stack()]
        lines = (innermost_line(stack, self._function, skip=self._skip) for stack in stacks)
        return next(filter(None, lines), "")

    def _own_stack(self) -> Stack:
        """Returns the stack of the call, innermost first, without what has called `run`."""
        frames = traceback.walk_stack(sys._current_frames()[self._thread])
        inside = itertools.takewhile(lambda item: item[0].f_code is not _RUN, frames)
        return list(inside)

    def _new_stacks(self) -> list[tuple[int, Stack]]:
        """Returns the stacks of threads that were started since the call began, innermost first."""
        return [
            (thread, list(traceback.walk_stack(frame)))
            for thread, frame in sys._current_frames().items()
            if thread not in self._others
        ]


_RUN = TimeLimit.run.__code__


def _is_of_cluster(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith("distlab.cluster.")


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Raises an error in a thread as soon as it runs code of Python; None: no longer."""
    raised = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)
