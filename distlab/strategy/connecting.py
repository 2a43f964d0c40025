"""How a coordinator reaches its servers: within a time limit, and open to an interrupt.

    strategy = connect(cluster, lambda: ParameterServerStrategy(resolver), timeout_secs=300)

TensorFlow waits for them without end, in a call that holds the GIL. So all must answer before it is
asked, and its call runs in a thread, while this one keeps the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tensorflow.python.eager import context
from tensorflow.python.framework import errors

from distlab.cluster.spec import ClusterSpec
from distlab.errors import DistlabError
from distlab.strategy import c_interface, meeting_errors
from distlab.strategy.calling import Call, give_up

_ASK_AGAIN_SECS, _LOOK_SECS = 0.05, 0.01
# TensorFlow's call has this long even where the last server came in the last moment.
_LEAST_SECS = 1.0

# In TensorFlow's Python: where its context is there already, and where it is yet to be made.
_CALLS = ("TFE_ContextSetServerDef", "TFE_ContextSetServerDefWithTimeoutAndRetries")


def connect(cluster: ClusterSpec, make: Callable[[], Any], *, timeout_secs: float) -> Any:
    """Returns what `make` returns, with a bound to TensorFlow's wait for the servers."""
    deadline = time.monotonic() + timeout_secs
    while error := meeting_errors.who_does_not_serve(cluster, timeout_secs):
        if time.monotonic() > deadline:
            raise error
        time.sleep(_ASK_AGAIN_SECS)
    deadline = max(deadline, time.monotonic() + _LEAST_SECS)

    def set_server_def(handle: Any, keep_alive_secs: int, server: bytes, *_: object) -> None:
        def wait() -> None:
            c_interface.set_server_def(handle, server, keep_alive_secs=keep_alive_secs)

        call = Call(wait)
        try:
            while not call.ended(_LOOK_SECS):
                if time.monotonic() > deadline:
                    raise meeting_errors.who_does_not_connect(cluster, timeout_secs)
            call.check()
        except BaseException:
            give_up(handle)
            raise

    originals = {name: getattr(context.pywrap_tfe, name) for name in _CALLS}
    for name in _CALLS:
        setattr(context.pywrap_tfe, name, set_server_def)
    try:
        return make()
    except BaseException as error:
        context.context()._server_def = None  # else the next operation would wait for them again
        if isinstance(error, errors.OpError):
            raise meeting_errors.refused(cluster, error.message, kind="parameter_server") from error
        if isinstance(error, DistlabError):  # without the way through TensorFlow
            raise error.with_traceback(None) from error.__cause__
        raise
    finally:
        for name, original in originals.items():
            setattr(context.pywrap_tfe, name, original)
