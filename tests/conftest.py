"""One hypothesis profile for all tests, and one thread each: the tests themselves run in parallel."""

import os
import signal

from hypothesis import settings

# Before torch is imported; services started by tests inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A suite begun in the background is deaf to Ctrl-C, and so would be every command it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("tinsmith", derandomize=True, deadline=None, database=None, max_examples=50)
settings.load_profile("tinsmith")
