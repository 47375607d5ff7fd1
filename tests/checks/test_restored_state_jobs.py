"""Jobs that save all that they are made of and go on without a piece of it: the piece and the ranks are named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from jobs import checkpoint as jobs
from jobs import run_ranks, values
from jobs.replicas import _watched

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import ERROR, LIKELY, POSSIBLE, WARNING, Finding
from distdoctor.launch.post_mortem import open_recording
from distdoctor.plugins import load
from distdoctor.recording.recording import Job

pytestmark = pytest.mark.job

STAGES = {  # what is forgotten -> what is said: an optimizer and its schedule that begin anew are a second stage of training
    "scheduler": "the schedule",
    "optimizer": "the optimizer's state",
    "": "",
    "optimizer+scheduler": "",
}


def run(
    folder: Path, name: str, streams: str = "", job: Callable[..., str] = jobs.resumable, **about: object
) -> list[str]:
    """What the ranks returned, recorded into `name`."""
    (folder / name).mkdir(exist_ok=True)
    where = {"folder": str(folder), **about}
    return values(run_ranks(_watched, 2, job, str(folder / name), False, streams, where, timeout=90, join=False))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a first run has saved."""
    folder = tmp_path_factory.mktemp("runs")
    run(folder, "first")
    return folder


def found(folder: Path, name: str, code: str = "DD706") -> list[Finding]:
    recording = replace(open_recording(folder / name), job=Job(world_size=2))
    assert not recording.troubles, recording.troubles
    diagnosis = examine(recording, load().checks.values())
    assert [one for one in diagnosis.not_examined if "failed" in one.reason] == []
    return [one for one in diagnosis.findings if one.code == code]


@pytest.mark.parametrize(
    ("forgets", "ranks", "words"),
    [
        ("optimizer", (0, 1), "without restoring the optimizer's state"),
        ("optimizer on rank 1", (1,), "without restoring the optimizer's state"),
        ("scheduler", (0, 1), "without restoring the schedule"),
        ("scaler", (0, 1), "without restoring the loss scale"),
        ("ema", (0, 1), "without restoring the copies of the model (EMA, target)"),
        ("buffers", (0, 1), "without restoring the buffers"),
        ("precision", (0, 1), "without restoring the weights"),
        ("model on rank 1", (1,), "without restoring the weights and the buffers"),
    ],
)
def test_a_piece_of_state_that_was_not_restored_is_named_with_its_ranks(
    forgets: str, ranks: tuple[int, ...], words: str, saved: Path
) -> None:
    run(saved, forgets.replace(" ", "-"), resumes=True, forgets=forgets)

    (finding,) = found(saved, forgets.replace(" ", "-"))

    assert finding.title == f"{'ranks 0-1' if len(ranks) > 1 else 'rank 1'} resumed from step 5 {words}"
    assert (finding.severity, finding.confidence, finding.ranks) == (
        WARNING if len(ranks) > 1 else ERROR,
        LIKELY,
        ranks,
    )
    line = Path(finding.place.path).read_text("utf-8").splitlines()[finding.place.line - 1]
    assert "# all of it" in line
    assert found(saved, forgets.replace(" ", "-"), "DD218") == []  # that they part then follows from it


def test_a_schedule_that_is_loaded_and_then_stepped_up_to_there_is_named(saved: Path) -> None:
    run(saved, "twice", resumes=True, forgets="that it has moved")

    (finding,) = found(saved, "twice")

    assert finding.title == "ranks 0-1 resumed from step 5 and moved the schedule on once more"
    assert (finding.severity, finding.confidence, finding.ranks) == (WARNING, LIKELY, (0, 1))
    assert "step 5 when it was saved, 10 now" in finding.why


def test_a_job_that_restores_everything_is_silent_and_trains_the_same_to_the_last_bit(saved: Path) -> None:
    looked_at = run(saved, "everything", resumes=True)

    assert found(saved, "everything") == []
    assert run(saved, "unwatched", "collectives", resumes=True) == looked_at


def test_a_piece_that_begins_anew_within_one_run_is_named_and_a_second_stage_is_not(tmp_path: Path) -> None:
    trained = {
        forgets: run(tmp_path, forgets or "whole", job=jobs.twice_in_one_run, forgets=forgets) for forgets in STAGES
    }

    for forgets, what in STAGES.items():
        findings = found(tmp_path, forgets or "whole")
        assert [one.title for one in findings] == [f"ranks 0-1 resumed from step 5 without restoring {what}"] * bool(
            what
        )
        for one in findings:
            assert (one.severity, one.confidence) == (WARNING, LIKELY)
            assert "# all of it" in Path(one.place.path).read_text("utf-8").splitlines()[one.place.line - 1]
    assert run(tmp_path, "unwatched", "collectives", job=jobs.twice_in_one_run) == trained[""]


@pytest.mark.parametrize(("workers", "restores"), [(1, True), (0, True), (1, False)])
def test_a_stream_whose_position_stays_in_its_worker_begins_anew_after_the_resume(
    workers: int, restores: bool, tmp_path: Path
) -> None:
    about = {"job": jobs.in_segments, "workers": workers, "restores": restores}
    trained = run(tmp_path, "once", **about)  # type: ignore[arg-type]

    findings = found(tmp_path, "once", "DD704")
    assert [one.ranks for one in findings] == [(0, 1)] * bool(workers and restores)
    for one in findings:
        assert one.title.startswith("the stream begins anew after the resume: ranks 0-1 read again")
        assert "# of this segment" in Path(one.place.path).read_text("utf-8").splitlines()[one.place.line - 1]
    assert run(tmp_path, "unwatched", "collectives", **about) == trained  # type: ignore[arg-type]


@pytest.mark.parametrize("shared", [True, False])
def test_a_stream_that_is_the_same_since_all_restored_one_state_is_told_where_they_did(
    shared: bool, tmp_path: Path
) -> None:
    run(tmp_path, "once", job=jobs.in_segments, shared=shared)

    findings = found(tmp_path, "once", "DD306")
    assert [one.ranks for one in findings] == [(0, 1)] * shared
    for one in findings:
        assert "since they restored one state" in one.title
        assert "# each goes on from here" in Path(one.place.path).read_text("utf-8").splitlines()[one.place.line - 1]


@pytest.mark.parametrize("how", ["empty", "whole", "weights"])
def test_a_phase_whose_optimizer_was_given_a_state_without_moments_is_named(how: str, tmp_path: Path) -> None:
    trained = run(tmp_path, how, job=jobs.in_two_phases, how=how)

    findings = found(tmp_path, how)
    assert [one.title for one in findings] == (
        ["ranks 0-1 resumed from step 6 without restoring the optimizer's state"] if how == "empty" else []
    )
    for one in findings:
        assert one.confidence == LIKELY
        assert (
            "# into what the template has" in Path(one.place.path).read_text("utf-8").splitlines()[one.place.line - 1]
        )
        assert "get_state_dict" in one.prescriptions[0].change
    assert run(tmp_path, "unwatched", "collectives", job=jobs.in_two_phases, how=how) == trained


def test_what_one_rank_alone_restores_or_another_optimizer_forgets_is_named_with_its_line(tmp_path: Path) -> None:
    job = jobs.restored_in_vain
    run(tmp_path, "first", job=job)
    for how, ranks, severity, words, role in (
        ("early", (0, 1), WARNING, "# once more", "makes anew what the save holds"),
        ("one", (1,), ERROR, "# alone", "decides who restores: `dist.get_rank() == 0`"),
    ):
        run(tmp_path, how, job=job, resumes=True, how=how)
        (finding,) = found(tmp_path, how)
        assert (finding.severity, finding.ranks, finding.places[0].role) == (severity, ranks, role)
        assert words in Path(finding.place.path).read_text("utf-8").splitlines()[finding.place.line - 1]

    looked_at = run(tmp_path, "right", job=job, resumes=True)
    assert found(tmp_path, "right") == []
    assert run(tmp_path, "unwatched", "collectives", job=job, resumes=True) == looked_at


COUNTERS = {  # what is forgotten -> what is said of it, and which line is shown
    "updates": (
        "without restoring the update counter of the copies of the model (EMA, target)",
        "Average.updates was 5 when it was saved, 0 now",
        "# begins here",
    ),
    "that it has moved": (
        "and moved the schedule on once more",
        "WarmUp.samples was 80 when it was saved, 160 now",
        "# once more",
    ),
}


@pytest.mark.parametrize("at_once", [True, False], ids=["in one run", "in two"])
def test_the_counter_of_a_schedule_or_an_average_of_the_users_own_is_compared_too(
    at_once: bool, tmp_path: Path
) -> None:
    job, about = (jobs.own_counters_in_one_run, {}) if at_once else (jobs.with_own_counters, {"resumes": True})
    if not at_once:
        run(tmp_path, "first", job=job)
    for forgets, (title, why, line) in COUNTERS.items():
        run(tmp_path, forgets, job=job, forgets=forgets, **about)
        (finding,) = found(tmp_path, forgets)
        assert finding.title == f"ranks 0-1 resumed from step 5 {title}"
        assert (finding.severity, finding.confidence, finding.ranks) == (WARNING, LIKELY, (0, 1))
        assert finding.why.endswith(why)
        shown = [Path(one.site.path).read_text("utf-8").splitlines()[one.site.line - 1] for one in finding.places]
        assert any(line in one for one in shown)

    looked_at = run(tmp_path, "everything", job=job, **about)
    assert found(tmp_path, "everything") == []
    assert run(tmp_path, "unwatched", "collectives", job=job, **about) == looked_at


def test_the_counter_of_an_average_in_a_dictionary_is_compared_too(tmp_path: Path) -> None:
    job = jobs.with_a_shadow
    run(tmp_path, "first", job=job)
    run(tmp_path, "forgotten", job=job, resumes=True, forgets=True)
    (finding,) = found(tmp_path, "forgotten")
    assert finding.title.startswith("ranks 0-1 resumed from step 5 without restoring the update counter")
    assert (finding.severity, finding.confidence) == (WARNING, LIKELY)
    assert finding.why.endswith("Shadow.updates was 5 when it was saved, 0 now")

    run(tmp_path, "kept", job=job, resumes=True)
    assert found(tmp_path, "kept") == []


LOST = "rank 0 resumed from step 5 without restoring the copies of the model (EMA, target) that the checkpoint holds"


def test_an_average_that_no_module_holds_is_missed_after_a_resume_where_it_was_saved(tmp_path: Path) -> None:
    job = jobs.averaged_in_a_dictionary
    run(tmp_path, "first", job=job)
    run(tmp_path, "lost", job=job, resumes=True, forgets=True)
    (finding,) = found(tmp_path, "lost")
    assert (finding.title, finding.confidence, finding.ranks) == (LOST, LIKELY, (0,))

    looked_at = run(tmp_path, "kept", job=job, resumes=True)
    assert found(tmp_path, "kept") == []
    assert run(tmp_path, "unwatched", "collectives", job=job, resumes=True) == looked_at


@pytest.mark.parametrize("forgets", [True, False])
def test_an_average_is_missed_within_one_run_too(forgets: bool, tmp_path: Path) -> None:
    run(tmp_path, "one", job=jobs.averaged_twice_in_one_run, forgets=forgets)
    assert [one.title for one in found(tmp_path, "one")] == ([LOST] if forgets else [])


@pytest.mark.parametrize("forgets", ["the average", ""])
def test_an_average_that_is_loaded_and_then_made_anew_within_one_run_may_be_a_mistake(
    forgets: str, tmp_path: Path
) -> None:
    run(tmp_path, "one", job=jobs.own_counters_in_one_run, forgets=forgets)
    told = [(one.code, one.confidence, one.title) for one in found(tmp_path, "one")]
    title = "ranks 0-1 resumed from step 5 without restoring the copies of the model (EMA, target)"
    assert told == ([("DD706", POSSIBLE, title)] if forgets else [])


OF_FIRST = "with what rank 0 keeps for itself: Exchange.rest[0] and 3 more", LIKELY, (1,)
OF_NEXT = "with what other ranks keep for themselves: Exchange.rest[0] and 3 more", LIKELY, (0, 1)
NOTHING = "without restoring what the checkpoint holds of objects of your own", POSSIBLE, (0,)
RESTS = {"first": OF_FIRST, "next": OF_NEXT, "nothing": NOTHING, "own": None, "mean": None}


@pytest.mark.parametrize("by_hand", [False, True], ids=["", "by hand"])
@pytest.mark.parametrize("keeps", RESTS)
def test_what_each_rank_keeps_for_itself_is_followed_through_a_checkpoint(
    keeps: str, by_hand: bool, tmp_path: Path
) -> None:
    looked_at = run(tmp_path, "one", job=jobs.with_a_rest, keeps=keeps, by_hand=by_hand)
    told = [
        (one.title.partition(" resumed from step 12 ")[2], one.confidence, one.ranks) for one in found(tmp_path, "one")
    ]
    expected = RESTS[keeps]
    assert told == ([expected] if expected else [])
    unwatched = run(tmp_path, "unwatched", "collectives", job=jobs.with_a_rest, keeps=keeps, by_hand=by_hand)
    assert unwatched == looked_at


def test_a_save_in_the_midst_of_an_epoch_and_a_resumption_at_its_start_repeat_samples(tmp_path: Path) -> None:
    job = jobs.in_the_midst_of_an_epoch
    run(tmp_path, "first", job=job)
    run(tmp_path, "again", job=job, resumes=True)
    run(tmp_path, "rest", job=job, resumes=True, skips=True)

    (finding,) = found(tmp_path, "again", "DD704")

    assert finding.title.startswith("16 samples repeat")
    assert "the resumed job restarts epoch 1 from its first sample" in finding.title
    assert (finding.severity, finding.confidence, finding.ranks) == (WARNING, LIKELY, (0, 1))
    assert "# from here" in Path(finding.place.path).read_text("utf-8").splitlines()[finding.place.line - 1]
    assert found(tmp_path, "rest", "DD704") == []


def test_a_loader_that_is_read_one_batch_ahead_passes_over_none(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    job = jobs.accelerated
    run(tmp_path, "first", job=job)
    run(tmp_path, "again", job=job, resumes=True)
    run(tmp_path, "rest", job=job, resumes=True, skips=True)

    (finding,) = found(tmp_path, "again", "DD704")

    assert finding.title.startswith("48 samples repeat")
    assert "the resumed job restarts epoch 0 from its first sample" in finding.title
    assert found(tmp_path, "rest", "DD704") == []


@pytest.mark.parametrize("how", ["dcp", "safetensors"])
def test_what_other_ways_of_saving_left_is_compared_too(how: str, tmp_path: Path) -> None:
    job = jobs.saved_by_others
    run(tmp_path, "first", job=job, how=how)
    run(tmp_path, "bare", job=job, how=how, resumes=True, whole=False)
    run(tmp_path, "whole", job=job, how=how, resumes=True)

    (finding,) = found(tmp_path, "bare")

    assert finding.title.endswith("without restoring the optimizer's state")
    assert finding.ranks == (0, 1)
    saved = finding.places[-1]
    assert "# of then" in Path(saved.site.path).read_text("utf-8").splitlines()[saved.site.line - 1]
    assert found(tmp_path, "whole") == []
