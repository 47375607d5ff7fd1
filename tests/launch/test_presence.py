"""Launchers that say through a real store that they are there: who falls silent is missed, and who says goodbye is not."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch.distributed as dist

from distdoctor.launch.presence import WORDS_A_SECOND, Presence, beat_of, longest_unnoticed
from distdoctor.launch.rendezvous import Rendezvous
from distdoctor.recording.trace.process_key import ProcessKey

HOSTS = 24


def test_the_store_takes_as_many_words_a_second_in_a_large_job_as_in_a_small_one() -> None:
    assert [beat_of(hosts) for hosts in (2, WORDS_A_SECOND, 64, 1024)] == [1, 1, 4, 64]
    assert longest_unnoticed(WORDS_A_SECOND) < 5 < longest_unnoticed(64) < 11
    assert longest_unnoticed(1024) < 135


@pytest.fixture
def launchers() -> Iterator[list[Presence]]:
    """Of one job, each on a connection of its own."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    made = []
    for host in range(HOSTS):
        rendezvous = Rendezvous()
        rendezvous.store, rendezvous.hosts, rendezvous.host_number = dist.PrefixStore("job", server), HOSTS, host
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
