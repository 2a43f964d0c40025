"""A Python kernel that tells when it begins with its code: from then on an interrupt reaches it.

Between `busy`, which every kernel tells, and the first line of the code, ipykernel ignores SIGINT.
"""

from __future__ import annotations

from typing import Any

# The type of its message on the channel of outputs.
BEGUN = "distlab_begun"


def begin_kernel() -> type:
    """Returns the class of the kernel; ipykernel, which it loads, is for the task alone."""
    from ipykernel.ipkernel import IPythonKernel

    class BeginKernel(IPythonKernel):  # type: ignore[misc]
        async def do_execute(self, **arguments: Any) -> Any:
            self.send_response(self.iopub_socket, BEGUN, {})
            return await super().do_execute(**arguments)

    return BeginKernel
