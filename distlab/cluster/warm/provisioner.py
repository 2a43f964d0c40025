"""Gives Jupyter kernels from a warm server: in half a second, with TensorFlow imported.

A kernelspec asks for it with `"metadata": {"kernel_provisioner": {"provisioner_name":
"distlab-warm"}}`. Without a server at `DISTLAB_WARM_ADDRESS` the kernel starts as any other.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.provisioning.local_provisioner import LocalProvisioner

from distlab.cluster.warm.process import ADDRESS_VARIABLE, WarmServer, can_fork
from distlab.errors import ProcessError

_OPTIONS = ("env", "cwd", "stdout", "stderr")


class WarmProvisioner(LocalProvisioner):
    """Starts kernels of this interpreter from a warm server, all others as usual."""

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        """Launches the kernel's command."""
        address = os.environ.get(ADDRESS_VARIABLE)
        if not address or not can_fork() or cmd[0] != sys.executable:
            return await super().launch_kernel(cmd, **kwargs)
        options = {name: kwargs[name] for name in _OPTIONS if name in kwargs}
        try:
            # In a thread, for the server may still import, and Jupyter has others to serve.
            server = WarmServer(address=address)
            process = await asyncio.to_thread(server.spawn, cmd[1:], **options)
        except ProcessError as problem:
            self.log.warning("kernel starts cold: %s", problem)
            return await super().launch_kernel(cmd, **kwargs)
        # No pgid: a signal goes through the process, which knows whether it still lives.
        self.process, self.pid, self.pgid = process, process.pid, None  # type: ignore[assignment]
        self.cwd = kwargs.get("cwd")
        return self.connection_info
