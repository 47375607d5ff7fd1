"""What all tests share: this folder is importable (`from jobs import run_ranks`), and ranks do not fight for cores."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
