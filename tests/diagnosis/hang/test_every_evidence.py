"""One illness has one code and one rank, whether it was recorded, dumped, logged, answered by RAS or only seen in stacks."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.recording.flight.dumps import dump_of
from distdoctor.recording.flight.rows import recording_of as dumped
from distdoctor.recording.job_log import parse_log
from distdoctor.recording.ras import recording_of as answered
from distdoctor.recording.recording import Recording
from distdoctor.testing import Script
from distdoctor.testing.stacks import frame, in_collective, looked_at, rank
from tests.recording import test_ras as ras
from tests.recording.test_dumps_of_a_job import of_two_groups
from tests.recording.test_job_log import watchdog

HANGS = [check for code, check in PLUGINS.checks.items() if code.startswith("DD1")]
RANKS, ODD, STEPS = 4, 2, 6
DUMPED_NS = 1_758_001_000_000_000_000


def _script() -> Script:
    script = Script(RANKS)
    for _ in range(STEPS):
        script.collective("all_reduce", [8], site="train.py:9 step").step()
    return script


def stopped_in_traces() -> Recording:
    """The odd rank stays in its own code."""
    others = [one for one in range(RANKS) if one != ODD]
    script = _script().stays(ODD)
    return script.collective("all_reduce", [8], site="train.py:9 step", only=others).live(silent_for=40)


def stopped_in_stacks() -> Recording:
    own = rank(ODD, frame("train.py:20 look"), still=40.0)
    return looked_at(*(own if one == ODD else in_collective(one, still=40.0) for one in range(RANKS)))


def stopped_on_record_and_seen() -> Recording:
    """Both: what was recorded, and the stack of the odd rank."""
    return replace(stopped_in_traces(), stacks=stopped_in_stacks().stacks)


def stopped_in_ras() -> Recording:
    return answered(json.dumps(ras.answer([ras.rank(one, AllReduce=5 + (one != ODD)) for one in range(RANKS)])))


def stopped_in_dumps() -> Recording:
    return dumped([dump_of(of_two_groups(one, "stop"), one, f"dump {one}", DUMPED_NS) for one in range(RANKS)])


def stopped_in_the_log() -> Recording:
    last = "Received a dump signal. Last enqueued NCCL work: 807, last completed NCCL work: 807.\n"
    odd = f"[rank{ODD}]:[E1206 18:44:13 ProcessGroupNCCL.cpp:1664] [PG ID 0 PG GUID 0(default_pg) Rank {ODD}] {last}"
    return parse_log("".join(watchdog(one, 808) for one in range(RANKS) if one != ODD) + odd)


def apart_in_traces() -> Recording:
    """The odd rank went on to the barrier after the loop."""
    last = _script().collective("all_reduce", [8], site="train.py:9 step")
    return last.instead(ODD, op="barrier", shape="", site="train.py:30 main").live(silent_for=40)


def apart_in_stacks() -> Recording:
    gone_on = in_collective(ODD, "barrier", "train.py:30 main", still=40.0)
    return looked_at(*(gone_on if one == ODD else in_collective(one, still=40.0) for one in range(RANKS)))


def apart_in_dumps() -> Recording:
    return dumped([dump_of(of_two_groups(one, "skip"), one, f"dump {one}", DUMPED_NS) for one in range(RANKS)])


def apart_in_the_log() -> Recording:
    behind = {"number": 5, "enqueued": 5}
    return parse_log(
        "".join(watchdog(one, **(behind if one == ODD else {"number": 8, "enqueued": 10})) for one in range(RANKS))
    )


def ring_in_traces() -> Recording:
    script = _script()
    for one in range(RANKS):
        script.recv(one, (one - 1) % RANKS, [8], site="train.py:41 rotate")
    return script.live(silent_for=40)


def ring_in_stacks() -> Recording:
    sources = ({"src": str((one - 1) % RANKS)} for one in range(RANKS))
    return looked_at(*(in_collective(n, "recv", "train.py:41 rotate", arguments=a) for n, a in enumerate(sources)))


@pytest.mark.parametrize(
    ("evidence", "code", "ranks"),
    [
        (stopped_in_stacks, "DD116", (ODD,)),
        (stopped_on_record_and_seen, "DD116", (ODD,)),
        (stopped_in_dumps, "DD116", (ODD,)),
        (stopped_in_the_log, "DD116", (ODD,)),
        (stopped_in_ras, "DD116", (ODD,)),
        (apart_in_traces, "DD101", (ODD,)),
        (apart_in_stacks, "DD101", (ODD,)),
        (apart_in_dumps, "DD101", (ODD,)),
        (apart_in_the_log, "DD101", (ODD,)),
        (ring_in_traces, "DD114", tuple(range(RANKS))),
        (ring_in_stacks, "DD114", tuple(range(RANKS))),
    ],
)
def test_the_code_and_the_ranks_do_not_depend_on_the_evidence(
    evidence: Callable[[], Recording], code: str, ranks: tuple[int, ...]
) -> None:
    recording = evidence()
    found = examine(recording, HANGS, PLUGINS.remedies, live=recording.job.running).findings

    assert [(one.code, one.ranks) for one in found[:1]] == [(code, ranks)]


def test_a_ring_is_told_edge_by_edge_whatever_the_evidence() -> None:
    for recording in (ring_in_traces(), ring_in_stacks()):
        (finding,) = examine(recording, HANGS, PLUGINS.remedies, live=True).findings
        edges = finding.evidence["cycle"]
        assert isinstance(edges, list)
        assert [edge.partition(" waits in recv ")[0] for edge in sorted(edges)] == [
            f"rank {one}" for one in range(RANKS)
        ]
        assert finding.title == f"every rank receives first: a ring of {RANKS} recvs"
