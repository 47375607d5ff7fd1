"""What the logs of a job tell of ranks that fail by themselves, that say nothing, or whose output lies in files of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_job_log import table, told

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import LIKELY, NOTE, POSSIBLE, Finding
from distdoctor.plugins import load
from distdoctor.recording.job_log import parse_log
from distdoctor.recording.open import read_any
from distdoctor.report.verdict import verdict

GLOO = "RuntimeError: [gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:28036."
WAITED = (
    "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation to complete"
)


def raised(rank: int, words: str, line: int = 17, *, inner: str = "") -> str:
    """A traceback as torch prints it with the rank; `inner`: the file of the innermost frame, where that is not the user's."""
    last = [f'  File "{inner}", line 9, in call'] if inner else []
    rows = ["Traceback (most recent call last):", f'  File "/w/train.py", line {line}, in read_block', *last, words]
    return "".join(f"[rank{rank}]: {row}\n" for row in rows)


def lost(rank: int) -> str:
    return raised(rank, GLOO, 40, inner="/site-packages/torch/autograd/graph.py")


def steps(ranks: int, count: int) -> str:
    return "".join(f"[rank{rank}]: step {step} loss 2.1\n" for step in range(count) for rank in range(ranks))


def test_a_connection_that_the_program_opened_itself_is_its_own_error() -> None:
    reset = "ConnectionResetError: [Errno 104] Connection reset by peer: 's3://bucket/block-14'"

    (finding,) = told(lost(0) + raised(1, reset) + table((1, 1, "10:00:07"), (0, -15, "10:00:08")))

    assert (finding.code, finding.ranks, finding.confidence) == ("DD110", (1,), LIKELY)
    assert finding.place.line == 17


@pytest.mark.parametrize("trains_on", [False, True])
def test_a_failure_after_which_a_job_trains_on_is_a_note(trains_on: bool) -> None:
    failed = raised(1, "OSError: no route to the bucket") + lost(0)
    ended = "E1127 13:50:11 20804 api.py:1002] failed (exitcode: 1) local_rank: 1 (pid: 20881) of binary: python3\n"

    (finding,) = told(failed + ended + steps(2, 4 if trains_on else 1))

    assert (finding.ranks, finding.title[:14]) == ((1,), "raised OSError" if trains_on else "failed with OS")
    assert (finding.severity is NOTE, finding.confidence is POSSIBLE) == (trains_on, trains_on)


def test_two_ranks_that_fail_in_words_of_their_own_are_two_findings() -> None:
    text = (
        raised(0, "FileNotFoundError: [Errno 2] No such file: 'a.json'")
        + raised(1, "ValueError: no digits", 21)
        + lost(2)
    )

    first, second = told(text)

    assert [(one.ranks, one.place.line) for one in (first, second)] == [((0,), 17), ((1,), 21)]
    assert first.prescriptions[0].change.endswith("others failed by themselves as well")


def test_an_error_in_communication_is_no_failure_of_its_own() -> None:
    torchs = raised(1, "RuntimeError: invalid device", 21, inner="/site-packages/torch/distributed/distributed_c10d.py")

    (finding,) = told(raised(0, "ValueError: no digits") + torchs)

    assert finding.ranks == (0,)


def test_one_error_of_all_ranks_names_all_of_them() -> None:
    words = "ImportError: cannot import name 'Net'"
    every = "".join(raised(rank, words) for rank in range(3))
    unnamed = every.replace("[rank0]: ", "").replace("[rank1]: ", "").replace("[rank2]: ", "")
    ends = table((0, 1, "10:00:07"), (1, -15, "10:00:07"), (2, -15, "10:00:07"))

    for text in (every + ends, unnamed + ends):
        (finding,) = told(text)
        assert finding.ranks == (0, 1, 2)
        assert "consequence" not in finding.prescriptions[0].change


def test_what_a_loaders_worker_raised_is_told_with_its_line() -> None:
    rows = [
        "Traceback (most recent call last):", '  File "/w/train.py", line 37, in main',
        "AssertionError: Caught AssertionError in DataLoader worker process 0.",
        "Original Traceback (most recent call last):", '  File "/w/train.py", line 23, in __getitem__',
        "AssertionError: clip 131 is too short",
    ]  # fmt: skip
    (finding,) = told("".join(f"[rank1]: {row}\n" for row in rows) + lost(0))

    assert (finding.ranks, finding.place.line) == ((1,), 23)
    assert "AssertionError: clip 131 is too short (in DataLoader worker process 0)" in finding.title


def test_who_prints_nothing_while_gloo_gives_up_on_the_others_had_not_come() -> None:
    waits = "".join(raised(rank, WAITED, 38, inner="/site-packages/torch/autograd/graph.py") for rank in range(2))
    text = "[rank2]: building the index (about 900 s)\n" + waits
    text += table((1, 1, "10:00:07"), (0, -15, "10:00:08"), (2, -15, "10:00:08"))

    (finding,) = told(text)

    assert (finding.code, finding.ranks, finding.confidence) == ("DD116", (2,), LIKELY)
    assert "`building the index (about 900 s)`" in finding.why
    assert [one.code for one in told(text.replace("building", "OSError: no"))] == ["DD110"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "W1127 13:39:16 11164 api.py:753] Received 15 death signal, shutting down workers\n",
            "ended from outside by SIGTERM",
        ),
        (
            "torch.distributed.elastic.multiprocessing.api.SignalException: Process 10926 got signal: 2\n",
            "interrupted (SIGINT)",
        ),
    ],
)
def test_who_asked_torchrun_to_end_is_said_and_nobody_is_accused(text: str, words: str) -> None:
    diagnosis = examine(parse_log(raised(0, "KeyboardInterrupt: ") + text), list(load().checks.values()))

    assert not diagnosis.findings
    assert verdict(diagnosis).startswith(f"the job was {words}")


def test_watchdogs_that_stand_accuse_nobody_who_was_ended_for_it() -> None:
    stuck = "[E704 15:31:40 x.cpp:1746] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress"
    text = "".join(f"[rank{rank}]:{stuck} in monitoring\n" for rank in range(3)) + table((1, -6, "10:00:07"))

    (finding,) = told(text)

    assert (finding.code, finding.ranks, finding.confidence) == ("DD122", (0, 1, 2), POSSIBLE)


# -- logs of one job in several files ------------------------------------------------------------------------------------------


def in_folder(folder: Path, files: dict[str, str]) -> list[Finding]:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return list(examine(read_any(folder), list(load().checks.values())).findings)


def test_files_of_torchruns_log_dir_are_the_ranks_of_its_last_attempt(tmp_path: Path) -> None:
    error = raised(0, "KeyError: 'spk060'").replace("[rank0]: ", "")
    (finding,) = in_folder(
        tmp_path,
        {
            "run/attempt_0/1/stderr.log": error.replace("KeyError", "OSError"),
            "run/attempt_1/0/stderr.log": lost(0).replace("[rank0]: ", ""),
            "run/attempt_1/1/stderr.log": error,
            "run/attempt_1/1/stdout.log": "step 3 loss 2.0\n" * 20,
        },
    )

    assert (finding.code, finding.ranks, finding.place.line) == ("DD110", (1,), 17)
    assert "KeyError" in finding.title
    assert finding.why.startswith("line 3 of run/attempt_1/1/stderr.log; ")


def test_a_task_without_a_log_is_the_one_that_the_store_waits_for(tmp_path: Path) -> None:
    too_few = "torch.distributed.DistStoreError: Timed out after 11 seconds waiting for clients. 3/4 clients joined.\n"
    keys = "torch.distributed.DistStoreError: wait timeout after 10000ms, keys: /default_pg/0//cpu//0/0\n"
    (finding,) = in_folder(tmp_path, {"task_0.log": too_few, "task_1.log": keys, "task_3.log": keys})

    assert (finding.code, finding.ranks) == ("DD118", (2,))


def test_a_rank_that_trained_is_no_proof_that_the_job_of_another_file_went_on(tmp_path: Path) -> None:
    (finding,) = in_folder(tmp_path, {"rank0.log": raised(0, "OSError: no"), "rank1.log": "step 1 loss 2.0\n" * 90})

    assert (finding.ranks, finding.severity is NOTE) == ((0,), False)
