"""What was certain while the job ran stays in the report, whatever the rings have forgotten since."""

from __future__ import annotations

from dataclasses import replace

from distdoctor import plugins
from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import CERTAIN, ERROR, LIKELY, NOTE, POSSIBLE, WARNING, Finding, Prescription
from distdoctor.diagnosis.said_live import SaidLive, with_what_stood, with_what_was_said, with_what_was_told
from distdoctor.recording.recording import Job, SourceLine
from distdoctor.testing.gradients import trained_job

CHECKS = plugins.load().checks
TOLD = Finding("SUM on rank 0, MAX on rank 1", ranks=(1,), code="DD105", severity=ERROR, confidence=CERTAIN)


def test_a_finding_that_was_told_is_not_forgotten() -> None:
    assert with_what_was_told(Diagnosis(Job()), [TOLD], CHECKS).findings == (TOLD,)


def test_what_more_ranks_have_come_to_since_is_told_once() -> None:
    line, other = SourceLine("train.py", 14, "setup"), SourceLine("train.py", 30, "train")
    told = replace(TOLD, code="DD602", place=line, ranks=(0,))
    end = replace(told, ranks=(0, 1))

    assert with_what_was_told(Diagnosis(Job(), (end,)), [told], CHECKS).findings == (end,)
    assert with_what_stood(Diagnosis(Job(), (end,)), [told], CHECKS).findings == (end,)
    elsewhere = replace(end, place=other)
    assert with_what_was_told(Diagnosis(Job(), (elsewhere,)), [told], CHECKS).findings == (told, elsewhere)


def test_one_event_keeps_the_name_that_the_end_gave_it() -> None:
    end = Finding("rank 1 skipped", ranks=(1,), code="DD101", severity=ERROR)

    assert with_what_was_told(Diagnosis(Job(), (end,)), [TOLD], CHECKS).findings == (end,)
    assert with_what_was_told(Diagnosis(Job(), (TOLD,)), [TOLD], CHECKS).findings == (TOLD,)


def test_what_was_said_while_it_stood_keeps_its_words_unless_the_end_is_surer() -> None:
    seen = Finding("is at `time.sleep(600)`", ranks=(1,), code="DD116", severity=ERROR, confidence=LIKELY)
    later = replace(seen, title="is in its own code")

    assert with_what_stood(Diagnosis(Job(), (later,)), [seen], CHECKS).findings == (seen,)
    proven = replace(later, confidence=CERTAIN)
    assert with_what_stood(Diagnosis(Job(), (proven,)), [seen], CHECKS).findings == (proven,)


def test_what_is_only_late_at_the_end_has_no_way_out_beside_that_of_what_was_seen() -> None:
    seen = Finding(
        "reads", ranks=(1,), code="DD115", confidence=LIKELY, prescriptions=(Prescription("bound-the-wait"),)
    )
    late = replace(seen, code="DD123", confidence=POSSIBLE, prescriptions=(Prescription("balance-ranks"),))

    assert with_what_stood(Diagnosis(Job(), (late,)), [seen], CHECKS).findings == (seen,)
    keeps_a_lock = replace(seen, ranks=(0,), delays=(1,))
    assert with_what_stood(Diagnosis(Job(), (late,)), [keeps_a_lock], CHECKS).findings == (keeps_a_lock,)


def test_a_fact_keeps_the_name_that_was_more_specific_while_it_stood() -> None:
    """The source was edited after the run: the condition that named the hang is no longer to be read."""
    seen = Finding("under a condition", ranks=(0,), code="DD112", severity=ERROR, explains=("key",), specificity=60)
    later = Finding("ranks disagree", ranks=(0, 1), code="DD101", severity=ERROR, explains=("key",), specificity=40)
    other = replace(later, explains=("another",))

    assert with_what_stood(Diagnosis(Job(), (later,)), [seen], CHECKS).findings == (seen,)
    assert with_what_stood(Diagnosis(Job(), (other,)), [seen], CHECKS).findings == (seen, other)


def local_training(*, forgets: bool) -> Diagnosis:
    """A window of local training that ends in a meeting; `forgets`: the ring of the first rank has wrapped since."""
    job = trained_job(2).initial().step()
    for _ in range(3):
        job.step(grads={1: 1}, params={1: 1}, synced=0, unsynced=1)
    recording = job.step(grads={1: 1}, before={1: 1}, synced=0, unsynced=1).step().recording()
    if forgets:
        log = recording.ranks[0]
        more = {**log.more, "updates": log.more["updates"][1:]}
        recording = replace(recording, ranks={**recording.ranks, 0: replace(log, more=more)})
    return examine(recording, CHECKS.values())


PARTED = Finding("every forward was inside no_sync", ranks=(0, 1), code="DD207", severity=ERROR, confidence=CERTAIN)


def test_replicas_that_have_met_again_refute_what_was_said_of_them() -> None:
    diagnosis = local_training(forgets=False)
    assert diagnosis.findings == ()

    judged = with_what_was_said(diagnosis, SaidLive(told=(PARTED,)), CHECKS)

    assert judged.findings == ()
    assert [finding for finding, _ in judged.withdrawn] == [PARTED]


def test_what_was_said_of_replicas_stays_where_records_were_overwritten_since() -> None:
    judged = with_what_was_said(local_training(forgets=True), SaidLive(told=(PARTED,)), CHECKS)

    assert PARTED in judged.findings
    assert judged.withdrawn == ()


def test_what_the_end_calls_by_another_name_or_accepts_is_not_taken_back() -> None:
    told = SaidLive(told=(PARTED,))
    whole = local_training(forgets=False)
    renamed = replace(PARTED, code="DD202", title="gradients differ")
    for end in (replace(whole, findings=(renamed,)), replace(whole, suppressed=(PARTED,))):
        assert with_what_was_said(end, told, CHECKS).withdrawn == ()


def test_who_was_told_to_be_the_odd_one_stays_so_where_what_is_left_only_shows_that_ranks_part() -> None:
    told = replace(TOLD, code="DD203", ranks=(1,), evidence={"agreed_until_step": 4})
    left = replace(told, title="ranks hold different weights", ranks=(0, 1))
    later = replace(left, evidence={"agreed_until_step": 9})

    assert with_what_was_told(Diagnosis(Job(), (left,)), [told], CHECKS).findings == (told,)
    assert told not in with_what_was_told(Diagnosis(Job(), (later,)), [told], CHECKS).findings


def test_a_note_of_the_time_before_leads_no_warning_of_the_end() -> None:
    note, warning = replace(TOLD, severity=NOTE, code="DD216"), replace(TOLD, severity=WARNING, code="DD306")
    found = with_what_was_told(Diagnosis(Job(), findings=(warning,)), [note, TOLD], CHECKS)

    assert [one.code for one in found.findings] == [TOLD.code, "DD306", "DD216"]
