"""Collectives that all go through one helper are told apart by who called it."""

from __future__ import annotations

from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import Finding
from distdoctor.recording.recording import Job, Recording, SourceLine
from distdoctor.testing import TraceBuilder
from distdoctor.testing.rank_trace import SECOND, START_NS

CHECKS = [check for check in PLUGINS.checks.values() if check.family == "hang"]
SOURCE = """\
import torch.distributed as dist
def reduce_mean(tensor):
    dist.all_reduce(tensor)
    return tensor / dist.get_world_size()
def train(model, batches):
    for batch in batches:
        loss = model(batch)
        loss.backward()
        reduce_mean(model.grad)
        if loss.item() < 3:
            reduce_mean(loss)
"""
PATH = "/job/train.py"


def parted(chained: bool = True) -> Recording:
    """Three ranks; in the third step rank 1 leaves out its second call of the helper, and is at the first of the next step."""
    traces = {}
    for rank in range(3):
        log = TraceBuilder(rank, world_size=3)
        for step in range(4):
            for line, size in ((9, 128), (11, 1)):
                last = (rank, step, line) in ((0, 2, 11), (2, 2, 11), (1, 3, 9))
                if (rank, step, line) == (1, 2, 11) or (step == 3 and not last):
                    continue
                chain = [(PATH, (3, 3, 4, 27), "reduce_mean"), (PATH, (line, line, 8, 30), "train")]
                site = SourceLine(PATH, 3, "reduce_mean")
                more = {"chain": chain} if chained else {}
                log.call("all_reduce", [size], site=site, returned_ns=0 if last else None, **more)  # type: ignore[arg-type]
            log.step()
        traces[rank] = log.build()
    job = Job(world_size=3, running=True, read_at_ns=START_NS + 60 * SECOND)
    return Recording(job, traces, frozenset({"collectives", "progress"}), sources={PATH: SOURCE})


def told(job: Recording) -> Finding:
    return examine(job, CHECKS).findings[0]


def test_without_callers_on_record_the_line_of_the_helper_is_all_there_is() -> None:
    found = told(parted(chained=False))

    assert (found.code, found.ranks, found.place.line) == ("DD101", (1,), 3)
