"""Several answers of NCCL's RAS are looks at one job: whoever moved between them is alive, and who did not stands still."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import Said
from test_ras import BEHIND, CHECKS, DEAD, TABLE, answer, missing, rank

from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import LIKELY, POSSIBLE
from distdoctor.errors import WrongUse
from distdoctor.recording.open import read_any
from distdoctor.recording.ras import in_order, read_ras, recording_of
from distdoctor.report.verdict import verdict


def at(time: str, counts: dict[int, int] | int = 100, absent: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """What 8 ranks have launched at a time of the day: each the same, but for those of `counts`."""
    usual, own = (counts, {}) if isinstance(counts, int) else (counts[-1], counts)
    gone = {one["rank"] for one in absent or []}
    ranks = [rank(n, AllReduce=own.get(n, usual)) for n in range(8) if n not in gone]
    return answer(ranks, absent) | {"timestamp": f"2025-12-19 {time}"}


def diagnosed(*answers: dict[str, Any] | str) -> Diagnosis:
    return examine(recording_of("\n".join(one if isinstance(one, str) else json.dumps(one) for one in answers)), CHECKS)


def found(*answers: dict[str, Any] | str) -> list[tuple[str, tuple[int, ...], object]]:
    return [(finding.code, finding.ranks, finding.confidence) for finding in diagnosed(*answers).findings]


LAGS = {-1: 100, 5: 99}


def test_a_rank_that_is_behind_in_both_answers_with_the_same_counts_has_stopped() -> None:
    (finding,) = diagnosed(at("13:06:00", LAGS), at("13:07:00", LAGS)).findings

    assert (finding.code, finding.ranks, finding.confidence) == ("DD116", (5,), LIKELY)
    assert finding.title == "has launched 99 AllReduce calls in communicator 0xae94, the others 100"
    assert finding.why == (
        "ranks 0-4,6-7 are ahead in it; between 13:06:00 and 13:07:00 neither they nor rank 5 launched anything there"
    )


def test_a_rank_that_was_behind_and_moved_on_is_healthy() -> None:
    diagnosis = diagnosed(at("13:06:00", LAGS), at("13:07:00", {-1: 200, 2: 199}))

    assert not diagnosis.findings
    assert not diagnosis.left_open
    assert verdict(diagnosis) == (
        "nothing stands still: all 8 ranks launched calls between 13:06:00 and 13:07:00, also rank 2, which was behind when RAS "
        "was asked last"
    )


def test_one_answer_alone_makes_a_lag_possible_and_says_what_a_second_one_would_tell() -> None:
    (finding,) = diagnosed(at("13:06:00", {-1: 100, 2: 99, 5: 99})).findings

    assert (finding.code, finding.ranks, finding.confidence) == ("DD116", (2, 5), POSSIBLE)
    assert "only a second one with the same counts shows a hang" in finding.why
    assert "examine both answers together" in finding.prescriptions[0].change


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ((at("13:06:00", LAGS), at("13:06:01", LAGS)), [("DD116", (5,), POSSIBLE)]),  # a step may be longer than that
        ((at("13:06:00", LAGS), at("13:06:00", LAGS)), [("DD116", (5,), POSSIBLE)]),  # one answer, copied
        ((at("13:06:00", 99), at("13:07:00", LAGS)), [("DD116", (5,), POSSIBLE)]),  # the others have just come to it
        ((at("13:06:00", 50), at("13:07:00", LAGS), at("13:08:00", LAGS)), [("DD116", (5,), LIKELY)]),
        ((at("13:08:00", LAGS), at("13:07:00", LAGS), at("13:06:00", 50)), [("DD116", (5,), LIKELY)]),
        ((at("13:06:00", LAGS), at("13:07:00", {-1: 201, 5: 200}), at("13:08:00", {-1: 301, 5: 300})), []),
        ((at("13:06:00"), at("13:07:00")), [("DD122", tuple(range(8)), POSSIBLE)]),
        ((at("13:06:00"), at("13:06:02")), []),
        ((at("13:06:00"), at("13:07:00", {-1: 200, 5: 101})), []),  # it moves, and falls back: left open
        ((TABLE + BEHIND, TABLE + BEHIND), [("DD116", (3,), LIKELY)]),
        ((TABLE + BEHIND, TABLE + BEHIND.replace("6650", "6750").replace("6649", "6749")), []),
        ((TABLE + BEHIND, TABLE.replace("MISMATCH", "OK")), []),
        ((TABLE.replace("MISMATCH", "OK"), TABLE + BEHIND), [("DD116", (3,), POSSIBLE)]),
        ((TABLE + DEAD, TABLE + DEAD), [("DD110", (5,), LIKELY)]),
        ((at("13:06:00", absent=[missing(2, dead=False)]), at("13:07:00", 120)), []),  # it was slow to answer
        ((at("13:06:00"), at("13:07:00", 120, [missing(2, dead=True)])), [("DD110", (2,), LIKELY)]),
    ],
)
def test_the_newest_answer_is_judged_by_the_one_before_it(
    answers: tuple[dict[str, Any] | str, ...], expected: list[tuple[str, tuple[int, ...], object]]
) -> None:
    assert found(*answers) == expected


def test_what_two_answers_do_not_show_is_left_open() -> None:
    assert diagnosed(at("13:06:00"), at("13:07:00", {-1: 200, 5: 101})).left_open == (
        "rank 5 launched 1 call between 13:06:00 and 13:07:00, and is 99 behind: a third answer would show whether it goes on",
    )
    assert diagnosed(TABLE + BEHIND, TABLE.replace("MISMATCH", "OK")).left_open[0] == (
        "rank 3, which was behind before, is not behind any more"
    )


def test_a_dead_process_is_told_with_what_the_others_did_meanwhile() -> None:
    gone = [missing(2, dead=True)]
    (finding,) = diagnosed(at("13:06:00", absent=gone), at("13:07:00", absent=gone)).findings

    assert finding.why.endswith("; ranks 0-1,3-7 launched nothing between 13:06:00 and 13:07:00")


def test_a_rank_that_waits_in_another_communicator_is_not_named_by_two_answers_either() -> None:
    both = []
    for time in ("13:06:00", "13:07:00"):
        one = at(time, {-1: 100, 0: 99, 1: 99})
        one["communicators"] += answer([rank(0, AllReduce=49), rank(1, AllReduce=50)], name="0x77")["communicators"]
        both.append(one)

    assert found(*both) == [("DD116", (0,), LIKELY)]


def test_the_time_that_somebody_printed_above_each_answer_is_told() -> None:
    moments = ("Mon Nov 24 14:05:00 UTC 2025", "Mon Nov 24 14:06:00 UTC 2025")
    (finding,) = diagnosed("".join(f"{moment}\n{TABLE}{BEHIND}" for moment in moments)).findings

    assert f"between {moments[0]} and {moments[1]} neither they nor rank 3" in finding.why


def written(folder: Path, **texts: dict[str, Any] | str) -> list[Path]:
    paths = [folder / name.replace("__", ".") for name in texts]
    for path, words in zip(paths, texts.values(), strict=True):
        path.write_text(words if isinstance(words, str) else json.dumps(words, indent=2))
    return paths


def test_a_folder_or_several_files_are_looks_at_one_job(say: Callable[..., Said], tmp_path: Path) -> None:
    paths = written(tmp_path, a__json=at("13:06:00", LAGS), b__json=at("13:07:00", LAGS))
    by_folder, by_files = say("examine", str(tmp_path)), say("examine", *map(str, reversed(paths)))

    assert by_folder.out.startswith("DD116 error  rank 5  has launched 99 AllReduce calls")
    assert "(likely)" in by_folder.out
    assert "left no recording" not in by_folder.out
    assert (by_folder.out, by_folder.code) == (by_files.out, by_files.code)


def test_that_nothing_stands_still_is_no_error(say: Callable[..., Said], tmp_path: Path) -> None:
    written(tmp_path, a__json=at("13:06:00", LAGS), b__json=at("13:07:00", 200))
    said = say("examine", str(tmp_path))

    assert (said.code, said.out) == (
        0, "nothing stands still: all 8 ranks launched calls between 13:06:00 and 13:07:00\n"
    )  # fmt: skip


def test_text_and_json_of_one_job_are_read_together(tmp_path: Path) -> None:
    """Both call the communicator by its hash."""
    one = answer([rank(n, AllReduce=6649 if n == 3 else 6650) for n in range(8)], name="0x27a079b828ff1a75")
    written(tmp_path, ras_1__json=one, ras_2__txt=TABLE + BEHIND.replace("6650", "6750").replace("6649", "6749"))
    diagnosis = examine(read_any(tmp_path), CHECKS)

    assert not diagnosis.findings
    assert verdict(diagnosis).startswith("nothing stands still: all 8 ranks launched calls")
    (tmp_path / "ras_2.txt").write_text(TABLE + BEHIND)
    assert [(f.code, f.ranks) for f in examine(read_any(tmp_path), CHECKS).findings] == [("DD116", (3,))]


def test_answers_without_a_time_are_in_the_order_of_their_names_or_files(tmp_path: Path) -> None:
    numbered = [tmp_path / name for name in ("ras_9.txt", "ras_10.txt", "ras_11.txt")]
    named = [tmp_path / name for name in ("second.txt", "first.txt")]
    for number, path in enumerate([*numbered, *reversed(named)]):
        path.touch()
        os.utime(path, (number, number))

    assert in_order(reversed(numbered)) == numbered
    assert in_order(named) == named[::-1]


def test_answers_about_different_jobs_are_refused(tmp_path: Path) -> None:
    other = answer([rank(n) for n in range(8)], name="0x77")
    larger = TABLE.replace("        8         8", "       16        16")
    with pytest.raises(WrongUse, match="have no communicator in common"):
        read_ras(*written(tmp_path, a1__json=at("13:06:00"), a2__json=other))
    with pytest.raises(WrongUse, match="of 16 ranks and of 8"):
        read_ras(*written(tmp_path, b1__txt=larger, b2__txt=TABLE))


def test_answers_beside_a_log_of_the_job_are_read_with_it(tmp_path: Path) -> None:
    written(tmp_path, a__json=at("13:06:00", LAGS), b__json=at("13:07:00", LAGS), job__log="[rank1]: ValueError: no\n")
    recording = read_any(tmp_path)

    assert recording.ras is not None
    assert len(recording.ras.earlier) == 1
    assert recording.clues


STACK_OF_5 = """Process 1005: python train.py
Python v3.11.2 (/usr/bin/python3.11)

Thread 1005 (idle): "MainThread"
    wait_for_upload (train.py:41)
    main (train.py:120)
    <module> (train.py:131)
"""


def test_the_stack_of_the_rank_that_is_behind_gives_its_line_and_the_others_stand_where_ras_says(
    say: Callable[..., Said], tmp_path: Path
) -> None:
    written(tmp_path, a__json=at("13:06:00", LAGS), b__json=at("13:07:00", LAGS), rank5__txt=STACK_OF_5)
    said = say("examine", str(tmp_path))

    assert said.code == 3
    assert [line for line in said.out.splitlines() if line.startswith("DD")] == [
        "DD116 error  rank 5  train.py:41 wait_for_upload  has launched 99 AllReduce calls in communicator 0xae94, the others "
        "100 (likely)"
    ]
    assert "ranks 0-4,6-7  unknown line                 waits in a call of communicator 0xae94" in said.out
    assert "bound the wait at train.py:41" in said.out
    assert "ranks seen" not in said.out


def test_one_answer_and_one_stack_are_a_moment_of_a_job_that_may_be_moving(
    say: Callable[..., Said], tmp_path: Path
) -> None:
    written(tmp_path, a__json=at("13:06:00", LAGS), rank5__txt=STACK_OF_5)

    assert "(likely)" not in say("examine", str(tmp_path)).out
