"""Where ranks have always gone through different lines, the condition between these lines is not the one that let them part."""

from __future__ import annotations

from textwrap import dedent

from distdoctor.diagnosis.derived import derived
from distdoctor.diagnosis.hang.verdict import Verdict
from distdoctor.recording.recording import Recording
from distdoctor.recording.trace.events import NewGroupBegun
from distdoctor.recording.trace.layout import CallFlag
from distdoctor.testing import recording

HEADERS = """\
    def push(x):
        global last
        if x.shape != last:
            dist.send(header(x), 1)
            last = x.shape
        dist.send(x, 1)
    def pull():
        dist.recv(header, 0)
        dist.recv(x, 0)
    def main():
        if dist.get_rank() == 0:
            push(next(data))
        else:
            pull()
    main()
    """
ROLES = """\
    def lead():
        while not short_of_time():
            dist.broadcast(x, 0)
        dist.barrier()
    def follow():
        for batch in loader:
            dist.broadcast(x, 0)
        dist.barrier()
    def main(rank):
        if rank == 0:
            lead()
        else:
            follow()
    main(RANK)
    """


def decided(job: Recording) -> list[int]:
    """The line of the condition that is named for the first incident."""
    decision = derived(Verdict, job).incidents[0].decision
    return [decision.site.line] if decision is not None else []


def test_a_message_that_was_left_out_is_put_down_to_its_own_condition() -> None:
    script = recording(ranks=2).source("t.py", dedent(HEADERS))
    for header in (True, False):
        if header:
            script.send(0, 1, [2], site="t.py:4 push")
        script.recv(1, 0, [2], site="t.py:8 pull").send(0, 1, [64], site="t.py:6 push")
        script.recv(1, 0, [64], site="t.py:9 pull")
    assert decided(script.live()) == [3]


def test_two_roles_that_agreed_so_far_part_by_the_condition_of_one_of_them() -> None:
    script = recording(ranks=2).source("t.py", dedent(ROLES))
    for _ in range(5):
        script.collective("broadcast", [4], site="t.py:3 lead").instead(1, site="t.py:7 follow")
    script.collective("barrier", site="t.py:4 lead").instead(
        1, op="broadcast", shape="[4]", root=0, site="t.py:7 follow"
    )
    assert decided(script.live()) == [2]


def test_the_condition_around_a_group_that_some_make_is_named() -> None:
    source = (
        "rank = dist.get_rank()\nif rank in EVAL:\n    small = dist.new_group(EVAL)\nall_of_us = dist.new_group()\n"
    )
    script = recording(ranks=3).source("t.py", source)
    script.note(NewGroupBegun((0, 1), done_ns=1), [0, 1], site="t.py:3 <module>")
    script.note(NewGroupBegun(()), site="t.py:4 <module>")
    assert decided(script.live(silent_for=70)) == [2]


def test_lists_of_objects_that_are_not_equally_long_are_told_by_their_sizes() -> None:
    source = "items = read() if dist.get_rank() == 0 else [None] * 3\ndist.broadcast_object_list(items, src=0)\n"
    script = recording(ranks=2).source("t.py", source)
    script.collective("broadcast", [4], dtype="int64", flags=CallFlag.OBJECT, site="t.py:2 <module>")
    script.instead(1, shape="[3]")
    verdict = derived(Verdict, script.live())
    assert [(one.differs, one.ranks) for one in verdict.incidents] == [("shape", (1,))]
    assert decided(script.live()) == [2]


def test_contents_of_objects_may_have_any_size() -> None:
    script = recording(ranks=2)
    script.collective("broadcast", [400], dtype="uint8", flags=CallFlag.OBJECT, site="t.py:2 main").instead(
        1, shape="[300]"
    )
    assert not derived(Verdict, script.live()).incidents
