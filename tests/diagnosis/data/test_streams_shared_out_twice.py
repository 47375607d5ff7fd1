"""A stream of which each rank has its own part, and which a framework deals out once more."""

from __future__ import annotations

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.recording.recording import Job, Recording
from distdoctor.recording.trace.events import Averaging
from distdoctor.recording.trace.layout import PassFlag
from distdoctor.testing.rank_trace import TraceBuilder

SOURCE = """
class Rows(IterableDataset):
    def __init__(self, files, rank, world):
        self.files = files[rank::world]

    def set_epoch(self, epoch):
        self.epoch = epoch


loader = accelerator.prepare(DataLoader(Rows(files, rank, world)))
"""
WHOLE = SOURCE.replace("[rank::world]", "")
FLAGS = PassFlag.ITERABLE | PassFlag.HASHED | PassFlag.STEPPED


@pytest.mark.parametrize(
    ("digests", "shard", "source", "told"),
    [
        (("a1", "b2"), "IterableDatasetShard", SOURCE, True),
        (("a1", "a1"), "IterableDatasetShard", SOURCE, False),  # told one share of one: the whole stream for everybody
        (("a1", "b2"), "Rows", SOURCE, False),  # nobody deals it out once more
        (("a1", "b2"), "IterableDatasetShard", WHOLE, False),  # they differ, and not because somebody shared them out
    ],
)
def test_what_is_shared_out_by_the_program_and_by_the_framework_is_told(
    digests: tuple[str, str], shard: str, source: str, told: bool
) -> None:
    logs = {}
    for rank, digest in enumerate(digests):
        log = TraceBuilder(rank, world_size=2)
        log.note(Averaging((0, 1), "DistributedDataParallel"))
        data = "\0".join((shard, "-1", digest, "3", digest, "", "", "Rows"))
        made = "/job/train.py:10 <module>"
        log.loader_pass(
            indices=range(rank * 8, rank * 8 + 8), dataset=data, flags=FLAGS, loop_site=made, made_site=made
        )
        log.step()
        logs[rank] = log.build()
    recording = Recording(Job(world_size=2), logs, sources={"/job/train.py": source})
    checks = [check for check in PLUGINS.checks.values() if check.code == "DD311"]

    found = examine(recording, checks).findings
    assert [(one.ranks, one.place.line) for one in found] == ([((0, 1), 4)] if told else [])
