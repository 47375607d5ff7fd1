"""What is said of a host that fell silent depends on what its ranks have taken part in since."""

from __future__ import annotations

import json
from dataclasses import replace

from sick import PLUGINS, own

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import ERROR, WARNING, Finding
from distdoctor.recording.lost_host import LostHost
from distdoctor.recording.recording import Job, Recording
from distdoctor.recording.trace.host_file import HostFile, host_from, job_from
from distdoctor.recording.trace.process_key import ProcessKey
from distdoctor.testing import recording
from distdoctor.testing.rank_trace import SECOND
from distdoctor.testing.stacks import in_collective, looked_at

CHECK = PLUGINS.checks["DD132"]


def silent(*, seconds_of_training: int, silent_for: float, interrupted: int = 0) -> list[Finding]:
    """Ranks 0-1 of four are on record; the other host was heard last so long before the last thing that they did."""
    script = recording(ranks=4)
    for _ in range(seconds_of_training):
        script.collective("all_reduce", [8], site="train.py:41 train_step").compute(1.0).step()
    whole = script.live(silent_for=1.0)
    now = whole.job.read_at_ns
    machine = whole.ranks[0].machine
    lost = LostHost("node1", (2, 3), "node0", machine, now - int(silent_for * SECOND), now)
    here: Recording = replace(
        whole,
        job=replace(whole.job, lost=(lost,), interrupted=interrupted),
        ranks={rank: whole.ranks[rank] for rank in (0, 1)},
    )
    return list(examine(here, [CHECK]).findings)


def test_ranks_that_others_have_met_since_train_on_without_their_launcher() -> None:
    (finding,) = silent(seconds_of_training=12, silent_for=8.0)

    assert finding.severity == WARNING
    assert finding.title == "train on without their launcher: the one on node1 has given no sign of life for 8 s"
    assert finding.ranks == (2, 3)


def test_ranks_that_nobody_has_met_since_are_lost() -> None:
    (finding,) = silent(seconds_of_training=6, silent_for=2.5)

    assert finding.severity == ERROR
    assert "are lost, or cut off from node0" in finding.title


def test_a_call_that_all_have_entered_does_not_complete_because_of_the_host_that_is_cut_off() -> None:
    jammed = own("DD122")
    now = jammed.job.read_at_ns
    lost = LostHost("node1", (2,), "node0", jammed.ranks[0].machine, now - 11 * SECOND, now)
    both = [CHECK, PLUGINS.checks["DD122"]]

    assert [finding.code for finding in examine(jammed, both).findings] == ["DD122"]
    cut = replace(jammed, job=replace(jammed.job, hosts=2, lost=(lost,)))
    assert [finding.code for finding in examine(cut, both).findings] == ["DD132"]


def test_ranks_that_stand_in_one_call_because_the_host_of_the_others_is_cut_off_are_told_once() -> None:
    seen = looked_at(in_collective(0), in_collective(1), elsewhere=(2, 3))
    now = 20 * SECOND
    lost = LostHost("node1", (2, 3), "node0", "", now - 11 * SECOND, now)
    both = [CHECK, PLUGINS.checks["DD122"]]

    assert [finding.code for finding in examine(seen, both).findings] == ["DD122"]
    cut = replace(seen, job=replace(seen.job, hosts=2, lost=(lost,)))
    assert [finding.code for finding in examine(cut, both).findings] == ["DD132"]


def test_a_rank_whose_end_nobody_saw_went_with_its_host() -> None:
    script = recording(ranks=3).collective("all_reduce", [8], site="train.py:41 step").step()
    script = script.raises([0, 1], "RuntimeError: Connection reset by peer", site="train.py:41 step").stays(2)
    found = script.finished(survivors="left")
    since = int(found.ranks[0].calls["entered_ns"].max())
    lost = LostHost("node2", (2,), "node0", found.ranks[0].machine, since, since + 3 * SECOND)
    both = [CHECK, PLUGINS.checks["DD110"]]

    alone = examine(found, both).findings
    with_host = examine(replace(found, job=replace(found.job, lost=(lost,))), both).findings

    assert [(one.code, one.ranks) for one in alone] == [("DD110", (2,))]
    assert [(one.code, one.ranks) for one in with_host] == [("DD132", (2,))]


def test_a_host_that_goes_while_the_job_is_ended_from_outside_is_not_missed() -> None:
    assert silent(seconds_of_training=6, silent_for=4.0, interrupted=15) == []


def test_a_host_that_several_miss_is_one_finding() -> None:
    script = recording(ranks=4)
    for _ in range(12):
        script.collective("all_reduce", [8], site="train.py:41 train_step").compute(1.0).step()
    whole = script.live(silent_for=1.0)
    now, machine = whole.job.read_at_ns, whole.ranks[0].machine
    apart = LostHost("node1", (2, 3), "node2", "another clock", 0, 3 * SECOND)
    near = LostHost("node1", (2, 3), "node0", machine, now - 8 * SECOND, now)
    here = {rank: whole.ranks[rank] for rank in (0, 1)}

    (finding,) = examine(replace(whole, job=replace(whole.job, lost=(apart, near)), ranks=here), [CHECK]).findings

    assert finding.title.startswith("train on without their launcher")  # as the host shows whose ranks met them since
    assert finding.why.startswith("as node0 and another host saw it")


def of_a_killed_launcher(**job: object) -> list[Finding]:
    """The one with the store; the ranks of its host have been met since, and the job was over soon."""
    script = recording(ranks=4)
    for _ in range(8):
        script.collective("all_reduce", [8], site="train.py:41 train_step").compute(1.0).step()
    whole = script.live(silent_for=1.0)
    now = whole.job.read_at_ns
    lost = LostHost("node0", (0, 1), "node1", whole.ranks[2].machine, now - 6 * SECOND, now, True, True)
    here = {rank: whole.ranks[rank] for rank in (2, 3)}
    return list(examine(replace(whole, job=replace(whole.job, lost=(lost,), **job), ranks=here), [CHECK]).findings)


def test_a_job_that_ends_with_the_launcher_of_its_store_has_lost_that_launcher() -> None:
    (finding,) = of_a_killed_launcher(running=False, exit_code=1)

    assert (finding.severity, finding.ranks) == (ERROR, (0, 1))
    assert finding.title == "lost their launcher: the one on node0 ended without a word, and the job's store with it"
    assert finding.why.startswith("as node1 saw it; node0 answers, but nobody listens at the port of the job's store")


def test_ranks_that_finish_without_the_launcher_of_their_store_trained_on() -> None:
    (finding,) = of_a_killed_launcher(running=False, exit_code=0)

    assert finding.severity == WARNING
    assert finding.title.startswith("train on without their launcher")


def test_what_one_host_has_noticed_is_in_its_file_until_the_other_one_comes_to_its_end() -> None:
    lost = LostHost("node1", (2, 3), "node0", "boot", 4, 9)
    first = HostFile(ProcessKey(7, host="node0", boot="boot"), running=False, lost=(lost,))
    read = host_from(json.loads(first.to_json()))
    assert read == first
    other = HostFile(ProcessKey(7, host="node1"), running=False)

    alone, both = job_from([first]), job_from([first, other])

    assert isinstance(alone, Job)
    assert isinstance(both, Job)
    assert (alone.lost, both.lost) == ((lost,), ())
