"""Settings for all tests."""

from __future__ import annotations

import os

# The models of the tests are tiny: more threads than one only get in each other's way.
os.environ.setdefault("OMP_NUM_THREADS", "1")
