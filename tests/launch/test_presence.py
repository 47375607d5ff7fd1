"""Launchers that say through a real store that they are there: who falls silent is missed, and who says goodbye is not."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
import torch.distributed as dist

from distdoctor.launch.presence import WORDS_A_SECOND, Presence, beat_of, longest_unnoticed
from distdoctor.launch.rendezvous import Rendezvous
from distdoctor.launch.roll_call import ANSWER_SECONDS, Rest
from distdoctor.recording.trace.process_key import ProcessKey

HOSTS, MANY_HOSTS = 24, 64


def test_the_store_takes_as_many_words_a_second_in_a_large_job_as_in_a_small_one() -> None:
    assert [beat_of(hosts) for hosts in (2, WORDS_A_SECOND, 60, 1020)] == [1, 1, 4, 68]
    assert longest_unnoticed(WORDS_A_SECOND) < 5 < longest_unnoticed(60) < 11
    assert longest_unnoticed(1020) < 139


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def launchers(request: pytest.FixtureRequest) -> Iterator[list[Presence]]:
    """Of one job, each on a connection of its own."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    made, hosts = [], getattr(request, "param", HOSTS)
    for host in range(hosts):
        rendezvous = Rendezvous()
        rendezvous.store, rendezvous.hosts, rendezvous.host_number = dist.PrefixStore("job", server), hosts, host
        made.append(Presence(rendezvous, ProcessKey(host=f"ddh{host}"), lambda: None))
        made[-1].begin(0, [host])
    yield made
    for one in made:
        one.end()


@pytest.mark.job
def test_one_that_falls_silent_is_missed_by_all_and_one_that_says_goodbye_by_nobody(launchers: list[Presence]) -> None:
    time.sleep(2 * beat_of(HOSTS))
    launchers[5].end()

    launchers[7]._over.set()  # as where its process has ended: nothing more is said
    since = time.monotonic()
    rest = [one for host, one in enumerate(launchers) if host not in (5, 7)]
    while not all(one.lost() for one in rest) and time.monotonic() - since < 30:
        time.sleep(0.1)
    seconds = time.monotonic() - since

    for one in rest:
        assert [(lost.host, lost.ranks) for lost in one.lost()] == [("ddh7", (7,))]
    assert beat_of(HOSTS) < seconds < 2 * longest_unnoticed(HOSTS)


@pytest.mark.job
@pytest.mark.parametrize("launchers", [MANY_HOSTS], indirect=True)
def test_among_many_hosts_all_are_called_where_ranks_wait_and_only_who_is_gone_is_missed(
    launchers: list[Presence],
) -> None:
    wait_until(lambda: launchers[0]._heard.keys() == set(range(1, MANY_HOSTS)))
    wait_until(
        lambda: all(0 in one._heard and one._rolls is not None and not one._rolls.heard for one in launchers[1:])
    )
    launchers[9].rests(10)
    wait_until(lambda: all(one._rolls is not None and one._rolls.judged for one in launchers))
    assert not any(one.lost() for one in launchers)  # everybody was there
    launchers[5]._serves_store = False  # which is in this process, as all launchers are here
    launchers[5].end()

    launchers[7]._over.set()  # as where its process has ended: nothing more is said
    launchers[7]._wake.set()
    since = time.monotonic()
    rest = [one for host, one in enumerate(launchers) if host not in (5, 7)]
    while not all(one.lost() for one in rest) and time.monotonic() - since < 30:
        for one in rest:
            one.rests(time.monotonic() - since)
        time.sleep(0.1)
    seconds = time.monotonic() - since

    for one in rest:
        (lost,) = one.lost()
        assert (lost.host, lost.ranks) == ("ddh7", (7,))
        assert lost.seconds < 10
    assert seconds < 8 < longest_unnoticed(MANY_HOSTS)


HOST_0 = """
import sys, time
import torch.distributed as dist
from distdoctor.launch.presence import Presence
from distdoctor.launch.rendezvous import Rendezvous
from distdoctor.recording.trace.process_key import ProcessKey

rendezvous = Rendezvous()
client = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False)
rendezvous.store, rendezvous.hosts, rendezvous.host_number = dist.PrefixStore("job", client), int(sys.argv[2]), 0
Presence(rendezvous, ProcessKey(host="ddh0"), lambda: None).begin(0, [0])
time.sleep(60)
"""


@pytest.mark.job
def test_a_roll_call_that_host_0_judges_late_leaves_no_word_of_torch_on_the_terminal(
    capfd: pytest.CaptureFixture[str],
) -> None:
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    host_0 = subprocess.Popen([sys.executable, "-c", HOST_0, str(server.port), str(HOSTS)])
    rendezvous = Rendezvous()
    rendezvous.store, rendezvous.hosts, rendezvous.host_number = dist.PrefixStore("job", server), HOSTS, 1
    other = Presence(rendezvous, ProcessKey(host="ddh1"), lambda: None)
    try:
        other.begin(0, [1])
        rolls = other._rolls
        assert rolls is not None
        wait_until(lambda: 0 in other._heard and not rolls.heard)
        host_0.send_signal(signal.SIGSTOP)
        since = time.monotonic()
        other.call_all()
        wait_until(lambda: rolls.judged > 0)
        given_up = time.monotonic() - since
    finally:
        host_0.kill()
        host_0.wait()
        other.end()

    assert 2 * ANSWER_SECONDS - 0.5 < given_up < 2 * ANSWER_SECONDS + 5
    assert "".join(capfd.readouterr()) == ""


KEEPER = """
import os, sys, time
import torch.distributed as dist
from distdoctor.launch.presence import Presence
from distdoctor.launch.rendezvous import Rendezvous
from distdoctor.recording.trace.process_key import ProcessKey

server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
rendezvous = Rendezvous()
rendezvous.store, rendezvous.hosts, rendezvous.host_number = dist.PrefixStore("job", server), 3, 1
one = Presence(rendezvous, ProcessKey(host="ddh1"), lambda: None)
one.begin(0, [1])
print(server.port, flush=True)
if sys.stdin.readline() == "its ranks have ended\\n":
    one.ending()
    time.sleep(2)
os._exit(0)
"""


def missed_by_the_others(keeper: subprocess.Popen[str], word: str) -> list[list[str]]:
    """Whom each of two other hosts misses when the process with the store, which is not host 0, has been told a word."""
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    port, others = int(keeper.stdout.readline()), []
    for host in (0, 2):
        client = dist.TCPStore("127.0.0.1", port, is_master=False)
        rendezvous = Rendezvous()
        rendezvous.store, rendezvous.hosts, rendezvous.host_number = dist.PrefixStore("job", client), 3, host
        others.append(Presence(rendezvous, ProcessKey(host=f"ddh{host}"), lambda: None))
        others[-1].begin(0, [host])
        others[-1]._keeps_store = False  # it lives on another host, they are to think
    wait_until(lambda: all(1 in one._heard for one in others))
    keeper.communicate(word)
    for one in others:
        one.ending()
    wait_until(lambda: not any(one.hears for one in others))
    return [[lost.host for lost in one.left_without_a_word() if lost.launcher_ended] for one in others]


@pytest.mark.job
def test_a_store_that_goes_is_missed_unless_its_launcher_has_said_that_its_ranks_have_ended() -> None:
    pipe, words = subprocess.PIPE, [sys.executable, "-c", KEEPER]
    killed, ended = (subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) for _ in range(2))

    assert missed_by_the_others(killed, "") == [["ddh1"], ["ddh1"]]
    assert missed_by_the_others(ended, "its ranks have ended\n") == [[], []]


def test_all_are_called_when_ranks_rest_for_longer_than_ever_and_then_ever_more_rarely() -> None:
    rest = Rest()

    assert [seconds for seconds in range(60) if rest.lasts(seconds)] == [2, 4, 8, 16, 32]
    rest.ends()
    assert [seconds for seconds in range(200) if rest.lasts(seconds)] == [89, 178]
