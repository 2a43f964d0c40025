"""Keeps the traffic of a cluster out of the proxies that the environment names.

TensorFlow's gRPC heeds the variables by which a network names its proxy for the web, also between
two processes of one machine. Such a proxy refuses the call or never answers it, and the cluster
waits in silence.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from distlab.cluster.spec import ClusterSpec
from distlab.cluster.tf_config import parse_address

# In the order in which gRPC reads them; upper case and all_proxy it ignores.
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")


def proxy_variables(environ: Mapping[str, str] | None = None) -> list[str]:
    """Returns the variables that name a proxy for gRPC."""
    environ = os.environ if environ is None else environ
    return [name for name in _PROXIES if environ.get(name)]


def bypass_proxies(spec: ClusterSpec, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the variable that lets gRPC call a cluster's hosts directly; {} without a proxy."""
    environ = os.environ if environ is None else environ
    if not proxy_variables(environ):
        return {}
    addresses = [address for job in spec.addresses.values() for address in job]
    # gRPC reads no_proxy only where no_grpc_proxy is not set.
    exempt = (environ.get("no_grpc_proxy") or environ.get("no_proxy", "")).split(",")
    hosts = [*exempt, *(parse_address(address).host for address in addresses)]
    return {"no_grpc_proxy": ",".join(dict.fromkeys(filter(None, hosts)))}
