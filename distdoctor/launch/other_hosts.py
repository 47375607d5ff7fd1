"""What the launchers on other hosts know of the job: they write into our folder, or hand it over through the job's own store."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from distdoctor.diagnosis.check import Check
from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.finding import CERTAIN
from distdoctor.errors import DoctorError
from distdoctor.launch.exchange import Exchange
from distdoctor.launch.job_state import JobState
from distdoctor.launch.presence import Presence
from distdoctor.launch.rendezvous import Rendezvous
from distdoctor.launch.takeover import Takeover
from distdoctor.launch.verdict_of_host_0 import VerdictOfHost0
from distdoctor.recording.lost_host import LostHost
from distdoctor.recording.merge import joined_stacks, merged
from distdoctor.recording.recording import Recording, Trouble
from distdoctor.recording.trace.host_file import HostFile, read_host_files, still_lost

LAST_SLACK_SECONDS = 1.5  # for a late word at the end of the job, of those that others get
# After the wait for the others' last words: a word may have been read a beat late, and the store have been asked a beat ago.
MISSED_SECONDS = 2.0
SURVIVORS_SECONDS = 1.0  # the same where a verdict is overdue
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
        self._host_0 = VerdictOfHost0(rendezvous, exchange)
        self._takeover = Takeover(folder, os.uname().nodename)
        self.verdict: Diagnosis | None = None  # of the whole job, where another host has judged
        self._parting = (
            0.0  # until when the others are stayed for, monotonic seconds; 0: they are not, or have been already
        )

    def with_what_they_see(self, recording: Recording) -> Recording:
        """The recording with what the other hosts saw: asked when this host's ranks do not move. A shared folder holds the traces
        of all ranks; their stacks only their own host can take."""
        if not self._exchange.is_open:
            return recording
        if self._host_0.is_ours:
            self._host_0.begin()
        if self._is_shared():
            return self._with_their_stacks(recording)
        if not self._host_0.is_ours:
            self._exchange.give(recording, final=False)
        return recording if self._host_0.is_awaited else self._joined(recording, self._exchange.take())

    def _with_their_stacks(self, recording: Recording) -> Recording:
        if recording.stacks is not None:
            self._exchange.give(Recording(recording.job, {}, stacks=recording.stacks), final=False)
        if self._host_0.is_awaited:
            return recording
        found = [one.stacks for one in (recording, *self._exchange.take()) if one.stacks is not None]
        return replace(recording, stacks=joined_stacks(found))

    def with_last_words(self, recording: Recording) -> Recording:
        """The same at the end of the job: every host gets the verdict of the whole job, or learns who kept silent."""
        if self._host_0.is_awaited:
            return self._with_verdict_of_host_0(recording)
        if not self._exchange.is_open or self._is_shared():
            return recording
        deadline = time.monotonic() + OTHERS_SECONDS
        if not self._host_0.is_ours:
            self._exchange.give(recording, final=True)
        others = self._exchange.take_last_words(
            deadline,
            are_alive=lambda hosts: self._presence.are_alive(hosts, LAST_SLACK_SECONDS),
            are_lost=lambda hosts: self._presence.are_lost(hosts, LAST_SLACK_SECONDS),
        )
        self._parting = 0.0 if self._host_0.is_ours else deadline
        if self._exchange.silent:
            came, hosts = self._rendezvous.hosts - len(self._exchange.silent), self._rendezvous.hosts
            here, silent = self._rendezvous.host_number, self._presence.named(self._exchange.silent)
            self._notice(f"{came} of {hosts} hosts have answered, nothing came from {silent}; this is host {here}")
        whole = self._joined(recording, others)
        return replace(whole, job=replace(whole.job, running=False))

    def _with_verdict_of_host_0(self, recording: Recording) -> Recording:
        """The recording, which is our part of the job, with the job as host 0 knows it where it has answered (`verdict`)."""
        here, hosts = self._rendezvous.host_number, self._rendezvous.hosts
        if not self._is_shared():
            self._exchange.give(recording, final=True)
        found = self._host_0.last(lambda: self._presence.misses_host_0(LAST_SLACK_SECONDS))
        host_0 = self._presence.named([0])
        self._exchange.silent = [0] if found is None else []
        self._exchange.part(time.monotonic() + OTHERS_SECONDS, self._missed)
        if found is not None:
            self._notice(f"{host_0} has judged for all {hosts} hosts; this is host {here}")
            return self._judged(recording, host_0, found)
        self._notice(
            f"1 of {hosts} hosts has answered, nothing came from {host_0}, which judges for all; this is host {here}"
        )
        if self._is_shared() and not self._takeover.claim(self._state.attempt):
            taken = self._takeover.take(self._state.attempt)
            if taken is not None:
                self._notice(f"{taken[0]} has judged in its place")
                return self._judged(recording, *taken)
        return replace(recording, job=replace(recording.job, running=False))

    def _judged(self, recording: Recording, by: str, found: Diagnosis) -> Recording:
        """Our part with the job as another host knows it, whose verdict is that of all."""
        self.verdict = replace(found, judged_by=by)
        return replace(recording, job=found.job)

    @property
    def takes_over(self) -> bool:
        """Whether we judge for all in the place of host 0: all that lies in our folder is to be read."""
        return self._takeover.is_ours(self._state.attempt)

    def settled(self, recording: Recording, checks: Mapping[str, Check], judge: Callable[[], Diagnosis]) -> Diagnosis:
        """The diagnosis of the whole job at its end: that of host 0, else what `judge()` says. Where others wait for it, they get
        it."""
        if self.verdict is not None:
            return replace(self.verdict, recording=recording, checks=checks)
        found = judge()
        if self._host_0.is_ours:
            self._host_0.give(found, final=True)
            self._exchange.part(time.monotonic() + OTHERS_SECONDS + 2 * self._exchange.pause, self._missed)
        if self.takes_over:
            with contextlib.suppress(OSError):  # a full disk: the others have their own part
                self._takeover.give(self._state.attempt, found)
        return found

    def agreed(self, found: Diagnosis) -> Diagnosis:
        """What is to be said while our ranks rest: what host 0 says, where it judges for us. Until it does, or its silence shows
        that it does not, nothing is said of who waits for whom."""
        if not self._host_0.is_awaited:
            return found
        theirs = self._host_0.now()
        if not self._host_0.is_to_come():
            return found
        known = {finding.code for finding in theirs.findings} if theirs is not None else set()
        ours = (one for one in found.findings if not one.stalls and one.confidence == CERTAIN and one.code not in known)
        if theirs is None:
            return replace(found, findings=tuple(ours))
        remedies = {**found.remedies, **theirs.remedies}
        return replace(found, findings=(*theirs.findings, *ours), remedies=remedies, coverage=theirs.coverage)

    def share(self, found: Diagnosis) -> None:
        """Give the others what is said while ranks rest, where they wait for it."""
        if self._host_0.is_ours:
            self._host_0.give(found, final=False)

    @property
    def ranks_to_read(self) -> frozenset[int] | None:
        """The ranks whose traces are to be read in our folder; None: all that lie there."""
        return frozenset(self._state.exit_codes) if self._host_0.is_awaited else None

    def await_ends(self) -> None:
        """Whoever shares our folder ends about now as well: what their ranks did last belongs to the verdict."""
        if self._host_0.is_awaited:
            return
        if self._host_0.is_ours:
            self._host_0.begin()
        self._await_launchers(OTHERS_SECONDS)

    def await_survivors(self) -> None:
        """The same where we judge in the place of host 0."""
        self._await_launchers(SURVIVORS_SECONDS)

    def _await_launchers(self, seconds: float) -> None:
        """Wait for so long for the launchers that write into our folder and are not lost."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            lost = {host.host for host in self._presence.lost(LAST_SLACK_SECONDS)}
            others = (host for host in self._launchers_here() if host.name != self._name)
            if not any(host.still_runs for host in others if host.process.host not in lost):
                return
            time.sleep(0.1)

    def with_lost(self, recording: Recording) -> Recording:
        """The recording with the hosts that were silent before the job was over, or have not been heard since."""
        lost = still_lost((*recording.job.lost, *self._state.lost, *self._lost_meanwhile()), ())
        return replace(recording, job=replace(recording.job, lost=lost))

    def part(self) -> None:
        """We ask the store nothing more: whose it is may leave, and stays until then, so that nobody misses it."""
        if self._parting:
            self._exchange.part(self._parting, self._missed)

    def take_back(self) -> None:
        """Ranks of ours that had come to rest move again."""
        self._presence.moves()
        self._exchange.take_back()
        self._host_0.take_back()

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

    def _missed(self) -> int:
        """How many hosts have fallen silent: nobody waits for them."""
        return max(len(self._exchange.silent), len(self._presence.lost(LAST_SLACK_SECONDS)))

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
