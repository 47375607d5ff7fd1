"""`run --try-fix`: the patch of the first finding is tried in a copy; nothing of the user's is changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from launching import Finished

from distdoctor.cli.try_fix import FirstRun, _judged, first_patch, with_fix_tried
from distdoctor.diagnosis.diagnosis import Diagnosis, FixOutcome, TriedFix
from distdoctor.diagnosis.finding import ERROR, Finding, Prescription
from distdoctor.diagnosis.source.edits import words_replaced
from distdoctor.diagnosis.source.patch import patch_of
from distdoctor.launch.run_options import Outcome
from distdoctor.launch.second_run import JobProgress, SecondRun, SecondRunOrder, root_of
from distdoctor.launch.working_copy import copy_folder
from distdoctor.plugins import load
from distdoctor.recording.recording import Job, Recording
from distdoctor.testing import recording

Run = Callable[..., Finished]
Script = Callable[..., Path]

STEPS = """
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    model(t).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    open("log.txt", "a").write(f"{step}\\n")
"""
GUARDED = """
    if rank == 0 and step == 2:
        dist.barrier()
"""
SECOND = """
    if rank == 0 and step == 3:
        dist.broadcast(t, 0)
"""
MEETS = """
    dist.all_reduce(t)
"""
END = "dist.destroy_process_group()"


@pytest.mark.job
def test_a_fix_that_ends_the_hang_is_verified_and_nothing_of_the_user_is_changed(
    distdoctor: Run, script: Script
) -> None:
    path = script(STEPS + GUARDED + MEETS + END)
    (path.parent / "log.txt").write_text("")
    text = path.read_text()

    done = distdoctor("run", "--nproc", 2, "--try-fix", "--output-format", "json", "train.py")

    assert done.code in (1, 3), "the first run's verdict"
    (remedy, *_) = done.document["findings"][0]["remedies"]
    tried = done.document["tried_fix"]
    assert (done.document["findings"][0]["code"], tried["code"], tried["outcome"]) == ("DD112", "DD112", "verified"), (
        tried
    )
    assert remedy["verified"]
    assert "+    if step == 2:" in remedy["patch"]
    assert tried["steps"] >= 5
    assert (path.read_text(), sorted(one.name for one in path.parent.iterdir())) == (
        text,
        [".distdoctor", "log.txt", "train.py"],
    )
    assert len((path.parent / "log.txt").read_text().splitlines()) <= 2 * 6, "the second run writes its own"
    assert len(list((path.parent / ".distdoctor" / "runs").iterdir())) <= 3


@pytest.mark.job
def test_what_came_instead_is_told_where_a_fix_does_not_help(distdoctor: Run, script: Script) -> None:
    path = script(STEPS + GUARDED + SECOND + MEETS + END)

    done = distdoctor("run", "--nproc", 2, "--try-fix", "--output-format", "json", "train.py")

    report = done.document
    tried = report["tried_fix"]
    assert (tried["code"], tried["outcome"]) == ("DD112", "not verified"), tried
    assert tried["findings"][0]["code"] in ("DD112", "DD102")
    assert tried["findings"][0]["place"]["path"] == str(path)
    assert not any(remedy["verified"] for finding in report["findings"] for remedy in finding["remedies"])
    assert "distdoctor: fix not verified: with it the job ran to step" in done.err


def first(argv: tuple[str, ...] = ("train.py",), nodes: int = 1) -> FirstRun:
    return FirstRun(argv, ("train.py",), nodes, 0, 1.0)


def tried(finding: Finding | None, *, interrupted: int = 0, nodes: int = 1) -> str:
    """What is said of a fix that is not even run."""
    findings = (finding,) if finding else ()
    outcome = Outcome(Recording(Job(), {}), Diagnosis(Job(), findings), hung=False, interrupted=interrupted)
    made = with_fix_tried(outcome, first(nodes=nodes), load(), ()).tried
    assert made is not None
    assert made.outcome == "not tried"
    return made.words


def patched(path: Path) -> Finding:
    text = path.read_text()
    edits = words_replaced(str(path), text, 1, "1", "2")
    made = Prescription("same-order", edits=edits, patch=patch_of(edits, {str(path): text}))
    return Finding("ill", code="DD112", severity=ERROR, prescriptions=(Prescription("in-words"), made))


def test_why_a_fix_was_not_tried_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("x = 1\n")
    ill = patched(path)

    assert tried(None) == "there is no finding"
    assert tried(Finding("ill", code="DD112", severity=ERROR)) == "no finding shows a patch"
    assert tried(ill, interrupted=2) == "the job was ended from outside, so how far it has to come is not known"
    assert tried(ill, nodes=2) == "the job has 2 nodes and this is one of them"
    path.write_text("x = 1  # edited\n")
    assert tried(ill) == f"{path} was edited while the job ran, and the patch is for what ran"
    path.unlink()
    assert tried(ill) == f"{path} cannot be read: No such file or directory"


def test_the_first_patch_of_the_findings_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("x = 1\n")
    words = Finding("more", code="DD101", severity=ERROR, prescriptions=(Prescription("in-words"),))
    ill = patched(path)

    assert first_patch(Diagnosis(Job(), (words, ill))) == (ill, ill.prescriptions[1])


def test_a_job_is_past_its_illness_when_every_rank_is() -> None:
    script = recording(ranks=2)
    for _ in range(4):
        script.collective("all_reduce", [1]).step()
    ill, well = JobProgress.of(script.live()), JobProgress.of(script.collective("all_reduce", [1]).step().step().live())

    assert (ill.steps, ill.calls) == ((4, 4), (4, 4))
    assert well.is_past(ill)
    assert not ill.is_past(ill)
    assert JobProgress((0, 0), (6, 9)).is_past(JobProgress((0, 0), (2, 4)))
    assert not JobProgress((0, 0), (5, 9)).is_past(JobProgress((0, 0), (2, 4)))


def stood_apart() -> Recording:
    """Rank 1 has stopped early and waits in the barrier after the loop, rank 0 goes on to the sixth step."""
    script = recording(ranks=2)
    for _ in range(5):
        script.collective("all_reduce", [8], site="train.py:20 train").step()
    script.collective("barrier", site="train.py:30 main", only=1)
    return script.collective("all_reduce", [8], site="train.py:20 train", only=0).live()


def stopped_together(*, reaches_the_barrier: bool) -> Recording:
    """With the fix both stop after the third step. A patch moves lines, so only functions count."""
    script = recording(ranks=2)
    for _ in range(3):
        script.collective("all_reduce", [8], site="train.py:22 train").step()
    if reaches_the_barrier:
        script.collective("barrier", site="train.py:32 main")
    return script.finished()


def judged(first: Recording, second: Recording, *, stopped: bool = False, timed_out: bool = False) -> TriedFix:
    """What is said of a second run."""
    finding, before = Finding("ill", code="DD101", severity=ERROR), JobProgress.of(first)
    outcome = Outcome(first, Diagnosis(first.job, (finding,)), hung=True, interrupted=0)
    again = SecondRunOrder((), ("train.py",), Path("/job"), {"/job/train.py": ""}, before, 0, 60.0)
    run = SecondRun(second, Path("/copy"), stopped, timed_out, 9.0)
    return _judged(finding, outcome, before, again, run, load(), ())


def test_a_fix_is_verified_when_the_second_run_passes_the_calls_in_which_the_ranks_stood() -> None:
    """It may come to fewer steps: ranks that now stop together stop earlier."""
    well = judged(stood_apart(), stopped_together(reaches_the_barrier=True))

    assert (well.outcome, well.steps) == (FixOutcome.VERIFIED, 3)
    assert well.words == "with it the job ran to its end in 9 s, and DD101 did not come back"


def test_a_second_run_that_ends_before_it_comes_to_those_calls_says_nothing_about_a_fix() -> None:
    early = judged(stood_apart(), stopped_together(reaches_the_barrier=False))

    assert early.outcome is FixOutcome.UNDECIDED
    assert early.words == "with it the script ended by itself at step 3, before step 5 of the first run"


def test_a_second_run_that_took_too_long_says_nothing_about_a_fix() -> None:
    assert judged(stood_apart(), stopped_together(reaches_the_barrier=True), timed_out=True).outcome is (
        FixOutcome.UNDECIDED
    )


def test_a_fix_is_not_verified_when_the_illness_comes_back() -> None:
    back = judged(stood_apart(), stood_apart(), stopped=True)

    assert back.outcome is FixOutcome.NOT_VERIFIED
    assert [one.code for one in back.findings] == ["DD101"]


def test_a_working_copy_holds_sources_and_small_files_and_links_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, to = tmp_path / "job", tmp_path / "copy"
    for name in ("pkg/train.py", "config.yaml", "data/large.bin", ".venv/lib.py", "out/epoch.pt", "__pycache__/x.pyc"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name * 3)
    began = (folder / "out" / "epoch.pt").stat().st_mtime_ns
    for name in ("config.yaml", "data/large.bin", "data"):
        os.utime(folder / name, ns=(began - 10**9, began - 10**9))
    os.utime(folder / "out", ns=(began, began))
    monkeypatch.setattr("distdoctor.launch.working_copy.LARGEST_COPY", 40)

    copy_folder(folder, to, needed=[folder / "pkg" / "train.py"], unless_written_since_ns=began - 1)

    assert sorted(path.relative_to(to).as_posix() for path in to.rglob("*") if not path.is_dir()) == [
        "config.yaml",
        "data/large.bin",
        "pkg/train.py",
    ]
    assert (to / "data" / "large.bin").is_symlink()
    assert (to / ".venv").is_symlink()
    assert not (to / "config.yaml").is_symlink()
    assert not (to / "out").exists(), "what the job itself wrote is not there when it begins again"


def test_the_copied_folder_is_the_working_folder_where_everything_lies_below_it(tmp_path: Path) -> None:
    script = tmp_path / "a" / "train.py"
    script.parent.mkdir()
    script.write_text("")

    assert root_of([str(script)], [str(tmp_path / "a" / "net.py")], str(tmp_path)) == tmp_path
    assert root_of([str(script)], [str(tmp_path / "net.py")], "/somewhere") == tmp_path
