"""Of many hosts one judges: what the others get from it through a real store, and what they do without it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import torch.distributed as dist

from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.finding import ERROR, Finding, Place
from distdoctor.diagnosis.sent_verdict import MAGIC, pack_verdict, unpack_verdict
from distdoctor.errors import UnreadableRecording
from distdoctor.launch import verdict_of_host_0
from distdoctor.launch.exchange import FINAL, Exchange
from distdoctor.launch.rendezvous import Rendezvous
from distdoctor.launch.verdict_of_host_0 import VerdictOfHost0
from distdoctor.recording.coverage import Coverage
from distdoctor.recording.recording import Job, RankEnd, SourceLine

HOSTS = 3
LINE = SourceLine("/job/tr\udcffain.py", 3, "step")
FINDING = Finding(
    "rank 1 \x1b[31m differs", (1,), place=LINE, places=(Place(LINE, (0, 2), "wait"),), severity=ERROR, code="DD101"
)
VERDICT = Diagnosis(
    Job(world_size=3, ends={1: RankEnd(None, 9)}, exit_code=1),
    (FINDING,),
    examined=("DD101",),
    world_size=3,
    coverage=Coverage(3, (0, 1, 2), hosts={"a": (0, 1, 2)}),
)


@pytest.fixture
def hosts() -> Iterator[list[VerdictOfHost0]]:
    """Each on a connection of its own."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    made = []
    for host in range(HOSTS):
        rendezvous = Rendezvous()
        rendezvous.store, rendezvous.hosts, rendezvous.host_number = dist.PrefixStore("job", server), HOSTS, host
        exchange = Exchange(rendezvous)
        exchange.all_judge_up_to = HOSTS - 1
        made.append(VerdictOfHost0(rendezvous, exchange))
    yield made
    for one in made:
        one.end()


def test_a_verdict_travels_whole() -> None:
    assert unpack_verdict(pack_verdict(VERDICT)) == VERDICT


@pytest.mark.parametrize("at", range(0, 400, 7))
def test_a_verdict_that_is_damaged_or_cut_off_is_refused_in_a_sentence(at: int) -> None:
    data = pack_verdict(VERDICT)
    flipped = bytearray(data)
    flipped[at % len(data)] ^= 0x10
    for damaged in (bytes(flipped), data[: at % len(data)], MAGIC + data[:at], b""):
        with pytest.raises(UnreadableRecording):
            unpack_verdict(damaged)


def test_ranks_that_cannot_be_are_refused() -> None:
    for wrong in (Diagnosis(Job(), world_size=1 << 60), Diagnosis(Job(), (Finding("", (-5,)),))):
        with pytest.raises(UnreadableRecording):
            unpack_verdict(pack_verdict(wrong))


def test_all_get_the_verdict_of_a_host_0_that_takes_longer_than_a_silent_one_is_awaited(
    hosts: list[VerdictOfHost0], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdict_of_host_0, "SILENT_SECONDS", 1.0)
    monkeypatch.setattr(verdict_of_host_0, "BEAT_SECONDS", 0.2)
    monkeypatch.setattr(verdict_of_host_0, "SECONDS_A_HOST", 10.0)
    found: list[Diagnosis | None] = []
    waiting = [threading.Thread(target=lambda one=one: found.append(one.last())) for one in hosts[1:]]
    hosts[0].begin()
    for one in waiting:
        one.start()
    time.sleep(3)
    assert not found
    hosts[0].give(VERDICT, final=True)
    for one in waiting:
        one.join(10)
    assert found == [VERDICT] * (HOSTS - 1)


def test_a_host_0_that_is_gone_or_too_slow_is_not_awaited_for_long(
    hosts: list[VerdictOfHost0], monkeypatch: pytest.MonkeyPatch
) -> None:
    since = time.monotonic()
    assert hosts[1].last() is None  # it has never said a word
    assert 2 < time.monotonic() - since < 8
    monkeypatch.setattr(verdict_of_host_0, "SECONDS_A_HOST", 0.5)
    hosts[0].begin()
    since = time.monotonic()
    assert hosts[2].last() is None  # it says that it is at it, and never ends
    assert 4 < time.monotonic() - since < 10


def test_a_host_0_without_a_sign_of_life_is_not_awaited_unless_it_says_that_it_is_at_it(
    hosts: list[VerdictOfHost0], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdict_of_host_0, "BEAT_SECONDS", 0.2)
    since = time.monotonic()
    assert hosts[1].last(lambda: True) is None
    assert time.monotonic() - since < 2
    hosts[0].begin()
    late = threading.Timer(2, lambda: hosts[0].give(VERDICT, final=True))
    late.start()
    assert hosts[2].last(lambda: time.monotonic() - since > 1) == VERDICT
    late.join()


@pytest.mark.parametrize("data", [b"", b"garbage", MAGIC + b"garbage"])
def test_a_damaged_verdict_is_none(hosts: list[VerdictOfHost0], data: bytes) -> None:
    hosts[0].begin()
    hosts[0]._put((1, data, FINAL))
    assert hosts[1].last() is None


def test_a_word_about_the_verdict_that_is_damaged_is_none(hosts: list[VerdictOfHost0]) -> None:
    hosts[0].begin()
    exchange = hosts[0]._exchange
    exchange.ask(lambda store: store.set(exchange.key("verdict"), b"\xff x 99999999 final"))
    assert hosts[1].last() is None


def test_a_verdict_is_taken_back_when_ranks_move(hosts: list[VerdictOfHost0]) -> None:
    hosts[0].begin()
    hosts[0].give(VERDICT, final=False)
    assert hosts[1].now() == VERDICT
    assert hosts[1].is_to_come()
    hosts[0].take_back()
    assert hosts[1].now() is None
    assert not hosts[1].is_to_come()
