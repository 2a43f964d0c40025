"""Code for a process of its own, after which permissions hold for it and what it starts.

run_python(OBEY_PERMISSIONS + code)
"""

# Root may read and write everywhere, by capabilities that it can give away for good.
OBEY_PERMISSIONS = """
import ctypes, os, struct
if os.geteuid() == 0:
    for capability in range(64):
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)
    assert ctypes.CDLL(None).capset(struct.pack("Ii", 0x20080522, 0), bytes(24)) == 0
"""
