"""What a SIGKILL is told as, by what the kernel counts."""

from __future__ import annotations

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import CERTAIN, LIKELY, Confidence, Finding
from distdoctor.recording.trace.layout import Phase
from distdoctor.testing.memory import MIB, MemoryJob, memory_job

CHECKS = [check for check in PLUGINS.checks.values() if check.code in ("DD110", "DD408", "DD413")]
GIB = 1 << 30


def only(job: MemoryJob) -> Finding:
    (finding,) = examine(job.recording(), CHECKS).findings
    return finding


def test_the_limit_of_the_cgroup_is_named_with_step_and_phase() -> None:
    job = (
        memory_job(2).trains(4, rss=900 * MIB).is_killed(1, Phase.BACKWARD, "train.py:31 train", kills=1, limit=2 * GIB)
    )

    finding = only(job)

    assert (finding.code, finding.ranks, finding.confidence) == ("DD408", (1,), CERTAIN)
    assert finding.title == (
        "rank 1 was killed by the kernel because memory ran out in step 5, backward: its cgroup's limit of 2 GiB was reached"
    )
    assert finding.place.line == 31
    assert [cure.slug for cure in finding.prescriptions] == ["halve-the-micro-batch", "lower-host-memory"]
    assert "after step 4 it had 900 MiB resident" in finding.why


def test_the_line_that_was_seen_when_memory_ran_low_is_the_place() -> None:
    job = memory_job(2).trains(4, rss=900 * MIB)
    job.is_killed(1, Phase.FORWARD, "train.py:33 train", kills=1, limit=2 * GIB, seen_at="model.py:12 forward")

    finding = only(job)

    assert (finding.place.line, finding.place.function) == (12, "forward")
    assert finding.places[0].role == "seen here when memory ran low, 0.5 s before its end"


def test_what_grew_until_the_end_is_the_first_thing_to_mend() -> None:
    job = memory_job(2).trains(30, rss=lambda rank, step: (400 + 50 * step) * MIB)
    job.holds(
        "cache",
        "train.py:20 keep",
        {step: {"bytes": 50 * step * MIB, "tensors": step} for step in (3, 6, 9, 12, 18, 24)},
    )
    finding = only(job.is_killed(1, Phase.FORWARD, "train.py:33 train", kills=1, limit=2 * GIB))

    assert finding.evidence["bytes_per_step"] == 50 * MIB
    assert finding.place.line == 20
    assert "`cache` keeps 50 MiB more every step" in finding.why
    assert finding.prescriptions[0].slug == "bound-what-is-kept"


@pytest.mark.parametrize(
    ("kills", "code", "confidence", "words"),
    [
        (0, "DD110", CERTAIN, "was killed by a SIGKILL that a process sent, not the OOM killer"),
        (None, "DD110", LIKELY, "was killed by SIGKILL, which the kernel's out-of-memory killer or a process sent"),
        (
            2,
            "DD408",
            CERTAIN,
            "rank 1 was killed by the kernel because memory ran out in step 5, forward: the host had none left",
        ),
    ],
)
def test_a_sigkill_is_told_by_what_the_kernel_counts(
    kills: int | None, code: str, confidence: Confidence, words: str
) -> None:
    finding = only(memory_job(2).trains(4).is_killed(1, Phase.FORWARD, "train.py:31 train", kills=kills))

    assert (finding.code, finding.ranks, finding.confidence, finding.title) == (code, (1,), confidence, words)


@pytest.mark.parametrize(("kills", "code"), [(1, "DD413"), (0, "DD110")])
def test_a_worker_that_is_gone_just_when_the_kernel_kills_is_told_as_such(kills: int, code: str) -> None:
    words = "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed. "
    job = memory_job(2).trains(4, workers=2, workers_rss=800 * MIB).fails(1, words, "train.py:30 train", kills=kills)

    finding = only(job)

    assert (finding.code, finding.ranks, finding.place.line) == (code, (1,), 30)
