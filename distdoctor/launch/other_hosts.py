"""What the launchers on other hosts know of the job: they write into our folder, or hand it over through the job's own store."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from distdoctor.errors import DoctorError
from distdoctor.launch.exchange import Exchange
from distdoctor.launch.job_state import JobState
from distdoctor.launch.presence import Presence
from distdoctor.launch.rendezvous import Rendezvous
from distdoctor.recording.lost_host import LostHost
from distdoctor.recording.merge import joined_stacks, merged
from distdoctor.recording.recording import Recording, Trouble
from distdoctor.recording.trace.host_file import HostFile, read_host_files, still_lost

LAST_SLACK_SECONDS = 1.5  # for a late word at the end of the job, of those that others get
# After the wait for the others' last words: a word may have been read a beat late, and the store have been asked a beat ago.
MISSED_SECONDS = 2.0
OTHERS_SECONDS = 3.0  # that launchers on other hosts get to come to their end as well


class OtherHosts:
    """The other launchers of the job. `name` is that of our own host file."""

    def __init__(
        self,
        rendezvous: Rendezvous,
        exchange: Exchange,
        presence: Presence,
        state: JobState,
        folder: Path,
        name: str,
        notice: Callable[[str], None],
    ) -> None:
        self._rendezvous, self._exchange, self._presence = rendezvous, exchange, presence
        self._state, self._folder, self._name, self._notice = state, folder, name, notice

    def with_what_they_see(self, recording: Recording) -> Recording:
        """The recording with what the other hosts saw: asked when this host's ranks do not move. A shared folder holds the traces
        of all ranks; their stacks only their own host can take."""
        if not self._exchange.is_open:
            return recording
        if self._is_shared():
            return self._with_their_stacks(recording)
        self._exchange.give(recording, final=False)
        return self._joined(recording, self._exchange.take())

    def _with_their_stacks(self, recording: Recording) -> Recording:
        if recording.stacks is not None:
            self._exchange.give(Recording(recording.job, {}, stacks=recording.stacks), final=False)
        found = [one.stacks for one in (recording, *self._exchange.take()) if one.stacks is not None]
        return replace(recording, stacks=joined_stacks(found))

    def with_last_words(self, recording: Recording) -> Recording:
        """The same at the end of the job: every host gets the verdict of the whole job, or learns who kept silent."""
        if not self._exchange.is_open or self._is_shared():
            return recording
        deadline = time.monotonic() + OTHERS_SECONDS
        self._exchange.give(recording, final=True)
        others = self._exchange.take_last_words(deadline)
        self._exchange.part(deadline)
        if self._exchange.silent:
            came, hosts = self._rendezvous.hosts - len(self._exchange.silent), self._rendezvous.hosts
            here, silent = self._rendezvous.host_number, self._presence.named(self._exchange.silent)
            self._notice(f"{came} of {hosts} hosts have answered, nothing came from {silent}; this is host {here}")
        whole = self._joined(recording, others)
        return replace(whole, job=replace(whole.job, running=False))

    def await_ends(self) -> None:
        """Whoever shares our folder ends about now as well: what their ranks did last belongs to the verdict."""
        deadline = time.monotonic() + OTHERS_SECONDS
        while time.monotonic() < deadline:
            if not any(host.still_runs for host in self._launchers_here() if host.name != self._name):
                return
            time.sleep(0.1)

    def with_lost(self, recording: Recording) -> Recording:
        """The recording with the hosts that were silent before the job was over, or have not been heard since."""
        lost = still_lost((*recording.job.lost, *self._state.lost, *self._lost_meanwhile()), ())
        return replace(recording, job=replace(recording.job, lost=lost))

    def take_back(self) -> None:
        """Ranks of ours that had come to rest move again."""
        self._presence.moves()
        self._exchange.take_back()

    def _lost_meanwhile(self) -> list[LostHost]:
        """Those who have not been heard since. Ours may have failed the moment a host went down: where somebody has sent nothing
        we wait until its next word would be late."""
        deadline = time.monotonic() + MISSED_SECONDS
        while True:
            hears, silent = self._presence.hears, self._sent_nothing()
            found = [one for one in self._presence.lost(LAST_SLACK_SECONDS) if not one.keeps_store]
            # The store's own host may only have come to its end before us: that is said, or its part of the job lies here.
            found += self._presence.left_without_a_word() if silent else ()
            if not hears or len(found) >= silent or time.monotonic() >= deadline:
                return found
            time.sleep(0.1)

    def _sent_nothing(self) -> int:
        """How many hosts have not told how their part ended."""
        others = (host for host in self._launchers_here() if host.name != self._name)
        return len(self._exchange.silent) or sum(host.still_runs for host in others)

    def _joined(self, recording: Recording, others: Sequence[Recording]) -> Recording:
        try:
            return merged([recording, *others])
        except DoctorError as trouble:
            return replace(recording, troubles=(*recording.troubles, Trouble(str(trouble))))

    def _is_shared(self) -> bool:
        """Whether the other launchers write into our folder, so that it holds the whole job."""
        return len(self._launchers_here()) >= self._rendezvous.hosts

    def _launchers_here(self) -> list[HostFile]:
        """Those of this start of the job that write into our folder."""
        return [host for host in read_host_files(self._folder) if host.takes_part(self._state.attempt)]
