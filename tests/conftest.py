"""One hypothesis profile for all tests, and one thread each: the tests themselves run in parallel."""

import os

from hypothesis import settings

# Before torch is imported; services started by tests inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("tinsmith", derandomize=True, deadline=None, database=None, max_examples=50)
settings.load_profile("tinsmith")
