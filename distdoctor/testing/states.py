"""What a training was made of at one moment, made by hand: for tests of what a resumption brings back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distdoctor.recording.states import Document, StateSnapshot
from distdoctor.recording.trace.state_file import BUFFERS, COPIES, MOMENTS, WEIGHTS
from distdoctor.testing.rank_trace import site_of

SECOND = 1_000_000_000


def snapshot(
    when: str,
    *,
    run: str,
    rank: int = 0,
    step: int = 0,
    weights: Mapping[str, str] | None = None,
    moments: Mapping[str, str] | None = None,
    buffers: Mapping[str, str] | None = None,
    copies: Mapping[str, str] | None = None,
    site: str = "",
    **fields: Any,
) -> StateSnapshot:
    """The state of one rank when its training began (`start`) or was saved (`save`). Digests are any words."""
    usual: dict[str, Any] = {
        "wall_ns": (1 + step) * SECOND,
        "world_size": 1,
        "program": "/job/train.py",
        "paths": [],
        "sharded": False,
        "fits": "",
        "numbers": {},
        "schedule": "",
        "rng": [],
        "resumes": False,
    }
    kinds = ((WEIGHTS, weights), (MOMENTS, moments), (BUFFERS, buffers), (COPIES, copies))
    digests = {kind: dict(named or {}) for kind, named in kinds}
    place = site_of(site) if site else ""
    return StateSnapshot(
        rank, 0, run, Document(when=when, step=step, site=place, digests=digests, **{**usual, **fields})
    )
