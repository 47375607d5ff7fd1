"""A plain log is read for the few lines that name a rank or a size, and for nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from distdoctor import plugins
from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import Finding
from distdoctor.errors import NothingToInspect
from distdoctor.recording.job_log import ClueKind, parse_log
from distdoctor.recording.open import read_any

PREAMBLE = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/job/train.py", line 31, in main
[rank1]:     step(x)
[rank1]:   File "/job/train.py", line 12, in step
[rank1]:     dist.all_reduce(x)
[rank1]:   File "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 4181, in all_reduce
[rank1]:     work.wait()
[rank1]: RuntimeError: [enforce fail at ../third_party/gloo/pair.cc:446] op.preamble.length <= op.nbytes. 400 vs 200
"""
STORE = """\
[rank0]: torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//cpu//0/3
[rank1]: torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//cpu//0/3
"""
PEER = "[rank0]: RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4711\n"
TORCHRUN = """\
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_10:00:00
  host      : node0
  rank      : 2 (local_rank: 2)
  exitcode  : -9 (pid: 4711)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 4711
"""


def told(text: str) -> list[Finding]:
    found = plugins.load()
    return list(examine(parse_log(text), [found.checks["DD127"]], found.remedies).findings)


def test_gloos_preamble_gives_sizes_and_the_line_of_whoever_received() -> None:
    (finding,) = told(PREAMBLE)

    assert (finding.code, finding.ranks, finding.place.line, finding.place.function) == ("DD103", (1,), 12, "step")
    assert finding.evidence["bytes came"] == 400
    assert finding.evidence["bytes expected"] == 200


def test_a_store_key_ends_in_the_rank_that_never_came() -> None:
    (finding,) = told(STORE)

    assert (finding.code, finding.ranks) == ("DD118", (3,))


def test_a_lost_peer_accuses_nobody_who_printed_it() -> None:
    (finding,) = told(PEER)

    assert finding.code == "DD127"
    assert finding.ranks == ()
    assert finding.evidence["innocent ranks"] == [0]


def test_an_exception_of_the_program_comes_before_what_follows_from_it() -> None:
    own = '[rank2]:   File "/job/data.py", line 7, in read\n[rank2]: ValueError: bad sample 17\n'

    (finding,) = told(PEER + own + STORE)

    assert (finding.code, finding.ranks, finding.place.line) == ("DD110", (2,), 7)
    assert finding.title == "failed with ValueError: bad sample 17"


def test_torchruns_table_tells_how_ranks_ended() -> None:
    recording = parse_log(TORCHRUN)

    assert recording.job.ends[2].signal == 9
    assert [(f.code, f.ranks) for f in told(TORCHRUN)] == [("DD110", (2,))]


def test_joined_clients_are_counted() -> None:
    (finding,) = told(
        "torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 clients joined.\n"
    )

    assert (finding.code, finding.title) == ("DD118", "only 1 of 2 ranks came to the store")


@pytest.mark.parametrize("line", ["[rank3]: x", "[rank 3] x", "[default3]:x", "3: x", "[1,3]<stderr>:x"])
def test_the_prefixes_of_launchers_name_the_rank(line: str) -> None:
    (clue,) = parse_log(line.replace("x", "ValueError: no")).clues

    assert (clue.rank, clue.kind) == (3, ClueKind.EXCEPTION)


def test_the_log_of_a_healthy_job_is_nothing_to_inspect(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("epoch 1: loss 0.31\n2026-11-21 10:00:00 INFO saved\n")

    with pytest.raises(NothingToInspect, match="names no rank and no error"):
        read_any(log)


def test_a_folder_with_one_log_is_read(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(STORE)

    assert read_any(tmp_path).clues[0].numbers == (3,)
