"""A rank that waits for its own threads, by a queue, an event or a future, is told what does not happen; it holds no lock."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sick import PLUGINS

from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import Finding
from distdoctor.recording.stacks import FileWait
from distdoctor.recording.trace.events import ThreadFailed
from distdoctor.testing.rank_trace import TraceBuilder
from distdoctor.testing.stacks import frame, in_collective, looked_at, rank

HANGS = [check for code, check in PLUGINS.checks.items() if code.startswith("DD1")]
LIBRARY = "/usr/lib/python3.11"


def told(line: str, *inside: str, reads: bool = False) -> Finding:
    """What is said of a rank that stands in this line; `inside` are the frames of the library, the innermost first."""
    standing = rank(1, *(frame(f"{LIBRARY}/{words}") for words in inside), frame("train.py:2 save"))
    if reads:
        assert standing.process is not None
        standing = replace(standing, process=replace(standing.process, waits_for=FileWait("read", "pipe:[7]", "FIFO")))
    job = looked_at(in_collective(0), standing, sources={"train.py": f"def save():\n    {line}\n"})
    (finding,) = examine(job, HANGS, PLUGINS.remedies, live=True).findings
    return finding


@pytest.mark.parametrize(
    ("line", "inside", "words", "who"),
    [
        (
            "return box.get()",
            ["threading.py:327 wait", "queue.py:171 get"],
            "nothing is put into `box`",
            "whoever fills it",
        ),
        (
            "box.put(1)",
            ["threading.py:327 wait", "queue.py:140 put"],
            "`box` is full, and nothing is taken",
            "empties it",
        ),
        (
            "self.saved.wait()",
            ["threading.py:327 wait", "threading.py:629 wait"],
            "nobody sets `self.saved`",
            "to set it",
        ),
        ("ready.wait()", ["threading.py:327 wait"], "nobody notifies `ready`", "to notify it"),
        (
            "write.result()",
            ["threading.py:327 wait", "concurrent/futures/_base.py:451 result"],
            "`write` does not come to an end",
            "what it runs",
        ),
    ],
)
def test_what_a_wait_in_the_library_is_for_is_named(line: str, inside: list[str], words: str, who: str) -> None:
    finding = told(line, *inside)

    assert words in finding.title
    assert f"{who} does not" in finding.prescriptions[0].change
    assert "lock" not in finding.prescriptions[0].change


@pytest.mark.parametrize("line", ["return box.get()", "return sleep(9)"])
def test_a_thread_that_an_error_has_ended_is_told_and_is_the_cause_where_its_work_is_waited_for(line: str) -> None:
    frames = [frame(f"{LIBRARY}/{words}") for words in ("threading.py:327 wait", "queue.py:171 get")]
    standing = rank(1, *(frames if "box" in line else []), frame("train.py:2 take"))
    log = TraceBuilder(1, world_size=2)
    log.note(ThreadFailed("ValueError: n/a", "reader"), site="reader.py:9 fill")
    job = looked_at(in_collective(0), standing, sources={"train.py": f"def take():\n    {line}\n"})
    job = replace(job, ranks={1: log.build()})

    found = [one for one in examine(job, HANGS, PLUGINS.remedies, live=True).findings if one.code == "DD116"]

    (finding,) = found
    owed = "box" in line
    assert finding.title.endswith("nothing is put into `box`, and its thread reader ended with ValueError: n/a") is owed
    assert finding.place.short == ("reader.py:9" if owed else "train.py:2")
    assert any("its thread reader ended here: ValueError: n/a" in place.role for place in finding.places)


def test_a_thread_that_failed_on_every_rank_is_shown_and_no_cause() -> None:
    frames = [frame(f"{LIBRARY}/{words}") for words in ("threading.py:327 wait", "queue.py:171 get")]
    job = looked_at(
        in_collective(0), rank(1, *frames, frame("train.py:2 take")), sources={"train.py": "def f():\n    q.get()\n"}
    )
    logs = {number: TraceBuilder(number, world_size=2) for number in range(2)}
    for log in logs.values():
        log.note(ThreadFailed("ValueError:\nn/a", "status"), site="status.py:9 post")
    job = replace(job, ranks={number: log.build() for number, log in logs.items()})

    (finding,) = [one for one in examine(job, HANGS, PLUGINS.remedies, live=True).findings if one.code == "DD116"]

    assert finding.title.endswith("nothing is put into `q`")
    assert any("its thread status ended here: ValueError: n/a" in place.role for place in finding.places)


def test_a_task_of_another_rank_that_failed_is_told_where_a_key_of_the_store_is_waited_for() -> None:
    log = TraceBuilder(0, world_size=2)
    log.note(ThreadFailed("TypeError: float32", "writer_0", True), site="save.py:9 write")
    line = 'store.wait(["published/best"])'
    job = looked_at(
        in_collective(0), rank(1, frame("train.py:2 follow")), sources={"train.py": f"def f(store):\n    {line}\n"}
    )
    job = replace(job, ranks={0: log.build()})

    (finding,) = [one for one in examine(job, HANGS, PLUGINS.remedies, live=True).findings if one.code == "DD116"]

    assert finding.ranks == (1,)
    roles = {place.ranks: place.role for place in finding.places}
    assert roles[(0,)].startswith(("a task of its thread writer_0 failed here", "waits"))
    assert finding.prescriptions[0].change.startswith("fix the error at save.py:9 on rank 0; set that key")


def test_a_prompt_is_taken_away_also_where_the_input_is_a_pipe() -> None:
    assert told('input("really? ")', reads=True).prescriptions[0].change.startswith("remove the prompt at train.py:2")


def test_a_loop_that_waits_says_what_still_holds() -> None:
    finding = told("while os.path.exists(lock): time.sleep(0.1)")

    assert finding.prescriptions[0].change.startswith("find out why `os.path.exists(lock)` still holds (train.py:2)")


def test_a_task_that_failed_is_shown_of_a_rank_that_looks_again_and_again_and_is_not_said_to_be_the_cause() -> None:
    loop = frame("train.py:30 poll")
    polls = rank(1, frame("train.py:7 check"), loop, still=0.0, cpu_share=1.0, moved=True, lasting=loop)
    log = TraceBuilder(1, world_size=2)
    log.note(ThreadFailed("StatisticsError: no data", "reward_1", True), site="reward.py:17 score")
    job = replace(looked_at(in_collective(0, still=60.0), polls), ranks={1: log.build()})

    (finding,) = [one for one in examine(job, HANGS, PLUGINS.remedies, live=True).findings if one.code == "DD116"]

    assert (finding.title, finding.place.short) == ("has been in poll while the others wait for 60 s", "train.py:30")
    roles = {place.site.short: place.role for place in finding.places}
    assert roles["reward.py:17"].startswith("a task of its thread reward_1 failed here")
