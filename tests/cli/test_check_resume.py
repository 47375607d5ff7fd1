"""`distdoctor check-resume`: a script that goes on as if it had never been interrupted, and one that forgets its optimizer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from commands import Said

from distdoctor.cli.check_resume import in_place
from distdoctor.errors import WrongUse
from distdoctor.recording.replay import Replay, read_replay
from distdoctor.report.resume_table import render

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "resume_scripts" / "nano_gpt.py"
LOSSES = ((5, 2.0, 2.0), (6, 1.5, 1.25))


@pytest.mark.job
@pytest.mark.parametrize(
    ("more", "answer", "code"),
    [
        ((), "resumed after step 4: every bit of the next 2 steps is that of the uninterrupted run", ""),
        (
            ("--forget", "optimizer"),
            "resumed after step 4, ranks 0-1 differ in step 5: the optimizer's state of tokens.weight",
            "DD706",
        ),
    ],
)
def test_a_script_that_is_killed_is_compared_step_by_step(
    more: tuple[str, ...], answer: str, code: str, tmp_path: Path, say: Callable[..., Said]
) -> None:
    words = ["--nproc", 2, "--kill", "--at", 5, "--resume-args", "--init_from resume", "--run-dir", tmp_path / "run"]
    words += [SCRIPT, "--out_dir", "{dir}", "--max_iters", 6, "--rng", *more]

    done = say("check-resume", *words)

    assert done.out.splitlines()[0] == answer, done.err
    findings = json.loads((tmp_path / "run" / "diagnosis.json").read_text())["findings"]
    assert [(one["code"], one["confidence"]) for one in findings if one["code"] == "DD706"] == (
        [(code, "certain")] if code else []
    )
    assert done.code == (1 if code else 0)


FINDS_ITS_CHECKPOINT = """
import os, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(0)
path, begin, model = sys.argv[1], 0, torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if os.path.exists(path):
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    begin = saved["step"]
replica = DistributedDataParallel(model)
for step in range(begin, 8):
    torch.manual_seed(step)
    optimizer.zero_grad()
    replica(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    if dist.get_rank() == 0 and step % 2:
        torch.save({"model": model.state_dict(), "step": step + 1}, path)
    dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.job
@pytest.mark.parametrize(
    ("shared", "answer"),
    [
        (False, "resumed after step 4: every bit of the next 4 steps is that of the uninterrupted run"),
        (
            True,
            "resuming was not compared: the interrupted job began with /",
        ),
    ],
)
def test_what_the_uninterrupted_job_has_saved_is_not_what_the_other_goes_on_from(
    shared: bool, answer: str, tmp_path: Path, say: Callable[..., Said]
) -> None:
    (tmp_path / "train.py").write_text(FINDS_ITS_CHECKPOINT)
    saved = str(tmp_path / "last.pt") if shared else "last.pt"

    done = say("check-resume", "--nproc", 1, "--kill", "--at", 5, "train.py", saved)

    assert done.out.splitlines()[0].startswith(answer), done.out + done.err
    assert "DD706" not in done.out
    assert (done.code, (tmp_path / "last.pt").exists()) == (0, True)


def test_the_two_histories_of_a_job_get_folders_of_their_own() -> None:
    assert in_place(["--out={dir}/ck", "x"], Path("/a")) == ["--out=/a/ck", "x"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--kill", "--stop-args", "--stop", "train.py"), "--stop-args makes the script end by itself"),
        (("--strategy", "ddp", "--kill"), "--stop-args, --resume-args and --kill are for scripts"),
    ],
)
def test_what_does_not_go_together_is_one_sentence_with_a_way_out(words: tuple[str, ...], said: str) -> None:
    from distdoctor.cli.check_resume import check_resume

    result = CliRunner().invoke(check_resume, list(words))

    assert isinstance(result.exception, WrongUse), result.output
    assert said in str(result.exception)
    assert result.exception.way_out


def test_the_answer_is_the_first_line_and_both_curves_are_shown() -> None:
    lines = render(
        Replay(4, "SIGKILL", 2, 6, (1,), "the loss", words="1.25 instead of 1.5", losses=LOSSES)
    ).splitlines()

    assert lines[0] == "resumed after step 4, rank 1 differs in step 6: the loss 1.25 instead of 1.5"
    assert lines[-1] == "largest difference of the losses: 0.25"


@pytest.mark.parametrize(
    ("replay", "healthy"),
    [
        (Replay(4, compared=2), True),
        (Replay(4, compared=2, step=5, piece="the loss"), False),
        (Replay(4, compared=2, step=5, unstable_at=1, bound=0.3, losses=LOSSES), True),
        (Replay(4, compared=2, step=5, unstable_at=1, bound=0.2, losses=LOSSES), False),
        (Replay(4, compared=2, missing=("the schedule",)), False),
        (Replay(4, anew=True), False),
        (Replay(trouble="it saved nothing"), False),
    ],
)
def test_a_resumption_is_well_when_nothing_differs_beyond_what_two_runs_differ_anyway(
    replay: Replay, healthy: bool, tmp_path: Path
) -> None:
    assert replay.healthy is healthy
    replay.write(tmp_path)
    assert read_replay(tmp_path) == replay
