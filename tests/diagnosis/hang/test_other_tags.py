"""Ranks that all receive, although one of them has sent what another waits for: under another tag."""

from __future__ import annotations

from dataclasses import replace

from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import Finding
from distdoctor.testing import recording

SOURCE = """def tag(self, epoch, step):
    return epoch * self.steps + step


def push(self, t, tag):
    self.pending.append((dist.isend(t, self.next, tag=tag), t))


def pull(self, t, tag):
    dist.recv(t, self.prev, tag=tag)


def main(rank, data):
    link.steps = 12
    if rank == 0:
        link.steps = len(DataLoader(data))
    push(link, t, tag(link, epoch, step))
"""


def first(sent: int | None) -> Finding:
    """Two stages, each of which waits for the other one; the first has sent with a tag, or has not yet. The second awaits 2."""
    script = recording(ranks=2)
    script.send(0, 1, [8], tag=1, site="train.py:6 push").recv(1, 0, [8], tag=1, site="train.py:10 pull")
    script.send(1, 0, [8], tag=9, site="train.py:6 push").recv(0, 1, [8], tag=9, site="train.py:10 pull").step()
    if sent is not None:
        script.send(0, 1, [8], tag=sent, asynchronous=True, site="train.py:6 push")
    script.recv(0, 1, [8], tag=11, site="train.py:10 pull").recv(1, 0, [8], tag=2, site="train.py:10 pull")
    known = replace(script.live(), sources={"/job/train.py": SOURCE})
    return examine(known, PLUGINS.checks.values()).findings[0]


def test_a_message_under_another_tag_is_no_ring_of_receives() -> None:
    finding = first(sent=3)

    assert (finding.code, finding.ranks) == ("DD113", (1, 0))
    assert "it sent with tag 3, but the receive expects tag 2" in finding.why
    lines = [place.site.line for place in finding.places]
    assert lines[:2] == [10, 6]
    assert {15, 16} & set(lines)  # what one rank makes its tags of


def test_a_ring_in_which_nobody_has_sent_stays_one() -> None:
    finding = first(sent=None)

    assert (finding.code, finding.ranks) == ("DD114", (0, 1))
