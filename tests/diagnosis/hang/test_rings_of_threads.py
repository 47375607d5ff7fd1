"""Ranks whose threads wait for each other: proven by nothing but their stacks, which show that no thread is left to go on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import LIKELY, Finding
from distdoctor.recording.recording import Recording
from distdoctor.recording.stacks import Frame, RankStacks, Stacks, ThreadStack
from distdoctor.testing import recording
from distdoctor.testing.stacks import frame, rank, torch_frame

CHECKS = [check for check in PLUGINS.checks.values() if check.family == "hang"]
SECOND = 1_000_000_000
LOADER = """import queue, threading
import torch.distributed as dist


class Loader:
    def work(self, out):
        for batch in list(pick(self.order[self.rank :: self.world])):
            self.agree(len(batch))
            out.put(batch)

    def agree(self, length):
        dist.all_reduce(length, group=self.group)

    def __iter__(self):
        yield self.out.get()
"""
THREAD = (torch_frame("all_reduce"), frame("loader.py:12 agree"), frame("loader.py:8 work"))
QUEUE = (frame("/usr/lib/python3.11/threading.py:327 wait"), frame("/usr/lib/python3.11/queue.py:171 get"))
IN_LOADER = (*QUEUE, frame("loader.py:15 __iter__"), frame("train.py:50 main"))
BESIDE = (*QUEUE, frame("upload.py:15 wait"), frame("train.py:50 main"))
AT_WORK = (frame("upload.py:15 copy"), frame("train.py:50 main"))


def stand(main: tuple[Frame, ...], *, left: bool = True) -> list[Finding]:
    """Rank 0's thread is in call #5 of the group `lengths`; rank 1's has ended (`left`) or puts its batch, and its main thread
    waits in a call of all ranks. `main`: where rank 0's main thread is."""
    script = recording(ranks=2).group("lengths", [0, 1]).source("loader.py", LOADER)
    for _ in range(4):
        script.collective("all_reduce", [64], site="train.py:81 main").compute(0.2).step()
    film = script.film()
    for number, runner in film.runners.items():
        log, now = runner.log, runner.log.now
        for turn in range(5 - number):
            over = 0 if turn == 4 else now + (turn + 1) * SECOND // 10
            log.call(
                "all_reduce", [1], group="lengths", site="loader.py:12 agree", thread=2, at_ns=now + turn * SECOND // 10,
                returned_ns=over,
            )  # fmt: skip
        if number:
            log.call("all_reduce", [3], site="train.py:89 main", at_ns=now + SECOND, returned_ns=0)
    last = max(int(runner.log.last_call["entered_ns"]) for runner in film.runners.values())
    found: Recording = film.read(last + 60 * SECOND)
    stacks = [
        _with_thread(rank(0, *main), THREAD),
        rank(1, torch_frame("all_reduce"), frame("train.py:89 main")),
    ]
    if not left:
        stacks[1] = _with_thread(stacks[1], (*QUEUE[:1], frame("loader.py:9 work")))
    seen = Stacks({one.rank: one for one in stacks}, observed_seconds=0.5)
    return examine(replace(found, stacks=seen), CHECKS, live=True).findings


def _with_thread(seen: RankStacks, frames: tuple[Frame, ...]) -> RankStacks:
    assert seen.process is not None
    threads = (*seen.process.threads, ThreadStack(9, frames, "Thread-2 (work)"))
    return replace(seen, process=replace(seen.process, threads=threads))


def test_a_thread_that_waits_for_one_that_has_ended_closes_the_ring() -> None:
    (finding,) = stand(IN_LOADER)

    assert (finding.code, finding.ranks, finding.confidence) == ("DD108", (0, 1), LIKELY)
    assert {place.site.line for place in finding.places} == {12, 89}


@pytest.mark.parametrize(
    ("main", "left"),
    [
        pytest.param(AT_WORK, True, id="the main thread is at work"),
        pytest.param(BESIDE, True, id="the main thread waits for another thread"),
        pytest.param(IN_LOADER, False, id="the other rank's thread is there"),
    ],
)
def test_ranks_of_which_some_thread_may_go_on_are_in_no_ring(main: tuple[Frame, ...], left: bool) -> None:
    assert "DD108" not in {finding.code for finding in stand(main, left=left)}
