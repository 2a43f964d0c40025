"""After how long a test takes what it waits for as hung: far beyond what a busy machine needs."""

HANG_SECS = 1800
