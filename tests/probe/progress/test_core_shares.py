"""How long a rank stood in the queue for a core is counted between two looks that could be had."""

from __future__ import annotations

from pathlib import Path

import pytest

from distdoctor.probe.context import Rank
from distdoctor.probe.progress import core_share
from distdoctor.probe.writer import TraceWriter
from distdoctor.recording.trace.events import CoreShare
from distdoctor.recording.trace.probe_settings import ProbeSettings
from distdoctor.recording.trace.run_folder import read_run


def test_a_look_that_cannot_be_had_is_left_out_and_the_steps_are_those_between_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a kernel that keeps no count, or while the program has every file open that it may."""
    rank = Rank(str(tmp_path), ProbeSettings(frozenset({"progress"})))
    rank.trace = TraceWriter(str(tmp_path), 0, 1, 0, 0)
    shares = core_share.CoreShares(rank)
    counts = tmp_path / "schedstat"
    monkeypatch.setattr(core_share, "_QUEUE", str(counts))

    for step in range(1, 65):
        if step == 8:
            counts.write_text("1000 200 3\n")
        if step == 20:
            counts.write_text("5000 900 7\n")
        if step == 40:
            counts.unlink()
        shares.stepped(step)

    (share,) = read_run(tmp_path).ranks[0].noted(CoreShare)
    assert (share.steps, share.ran_ns, share.queued_ns) == (32 - 8, 4000, 700)
