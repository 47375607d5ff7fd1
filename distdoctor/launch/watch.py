"""Watch a running job from outside: read the traces, ask the live checks, tell what is new, notice a hang."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from distdoctor.diagnosis.check import Check
from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import CERTAIN, Finding, Stalls
from distdoctor.diagnosis.hang.live.stall import Stall
from distdoctor.diagnosis.remedy import Remedy
from distdoctor.diagnosis.said_live import SaidLive
from distdoctor.errors import DoctorError
from distdoctor.launch.heartbeat import Heartbeat
from distdoctor.launch.standing import StandingFindings
from distdoctor.launch.suppressions import suppress
from distdoctor.recording.merge import joined_stacks
from distdoctor.recording.open import open_run
from distdoctor.recording.recording import Job, Recording
from distdoctor.recording.stacks import Stacks
from distdoctor.recording.trace.events import Exiting, UncaughtException
from distdoctor.recording.trace.run_folder import trace_paths

INTERVAL_SECONDS = 0.5
# Looks, and the glances between them, may cost this share of one core: after 20 ms the next look at a job that moves comes 2 s
# later.
SHARE_OF_A_CORE = 0.01
# A launcher that sees a rank fail ends the others itself: torch's gives them 30 s to go. Only after that it is a hang.
LAUNCHERS_PATIENCE_SECONDS = 35.0
# When nothing moved for so long and no check knows why from the traces, the stacks are looked at: then, and ever more rarely.
# The second time what has stood still since then exceeds the patience of ten seconds. The third time is when a rank at work has
# kept the others waiting for long (`LONG_SECONDS` of diagnosis/hang/live/stall).
CLOSER_AFTER_SECONDS = (10.0, 13.0, 25.0, 45.0, 85.0)
ENDING_SECONDS = 30.0  # what ranks that are asked to end may still do: handlers, a last checkpoint
LOOKS_FOR_A_REASON = 2  # before it is told that ranks wait, and not why
CLOSER_EVERY_SECONDS = 60.0  # from then on
_LAST = (UncaughtException, Exiting)


@dataclass(frozen=True)
class OtherHostsSeen:
    """What a watcher has to do with the other hosts of its job; the one host of a job has none.

    `seen(recording)` adds what they saw, asked while nobody moves here; `resting(seconds)` tells them for how long nobody has,
    `moving()` that what they were told of us is out of date. Where one host judges for all, `agreed(diagnosis)` is what is to be
    said, `share(diagnosis)` gives the others what we say, and `ranks()` are those whose traces we read; None: all in the folder.
    """

    seen: Callable[[Recording], Recording] = lambda recording: recording
    moving: Callable[[], None] = lambda: None
    resting: Callable[[float], None] = lambda seconds: None
    agreed: Callable[[Diagnosis], Diagnosis] = lambda found: found
    share: Callable[[Diagnosis], None] = lambda found: None
    ranks: Callable[[], frozenset[int] | None] = lambda: None


class Watcher:
    """A thread that looks at a run folder. `tell(finding)` is called once for each finding. `still(finding, seconds)`: it
    has held ranks up for so long; `withdrawn(finding, seconds)`: its ranks went on after so long. `hung(diagnosis, proven)` is
    called once: a standstill is proven and somebody is there to wait, or one has lasted for `hang_after` seconds."""

    def __init__(
        self,
        folder: Path,
        job: Callable[[], Job],
        checks: Iterable[Check],
        remedies: Mapping[str, Remedy],
        *,
        tell: Callable[[Finding, Diagnosis], None],
        hung: Callable[[Diagnosis, bool], None],
        still: Callable[[Finding, float], None] = lambda finding, seconds: None,
        withdrawn: Callable[[Finding, float], None] = lambda finding, seconds: None,
        hang_after: float | None = None,
        new_trace: Callable[[int, Path], bool] | None = None,
        closer: Callable[[], Recording | None] | None = None,
        ignored: Iterable[str] = (),
        interval: float = INTERVAL_SECONDS,
        has_begun: Callable[[], bool] = lambda: True,
        hosts: OtherHostsSeen = OtherHostsSeen(),
    ) -> None:
        self._folder, self._job, self._interval = folder, job, interval
        self._checks = [check for check in checks if check.live]
        self._remedies, self._ignored = remedies, frozenset(ignored)
        self._tell, self._hung, self._new_trace, self._closer = tell, hung, new_trace, closer
        self._still, self._withdrawn, self._hang_after = still, withdrawn, hang_after
        self._hosts = hosts
        self._has_begun = has_begun  # before, the folder holds what another run has left there, if anything
        self._from_outside = frozenset(check.code for check in self._checks if check.outside)
        self._of_processes = frozenset(check.code for check in self._checks if set(check.facts) == {Stall})
        self._waits = frozenset(check.code for check in self._checks if check.stalls is Stalls.MAYBE)
        self._symptoms = frozenset(check.code for check in self._checks if check.symptom)
        self.standing = StandingFindings(self._waits, self._symptoms)
        self._all_remedies: dict[str, Remedy] = {}
        self._proven_since = math.inf
        self._pulses: dict[Path, Heartbeat] = {}
        self._unmet: set[Path] = set()  # traces whose ranks nobody was told of
        self._told: dict[_Key, Finding] = {}
        self._heard: set[_Key] = set()
        self._at_rest_since = math.inf
        self._closer_looks = 0  # that were due since the ranks came to rest
        self._looked_closer = 0  # how often that was done
        self._seen_at_rest: Recording | None = None  # by the last of them
        self._sources: Mapping[str, str] = {}
        self._recorded: set[int] = set()
        self._leaving: set[int] = set()  # their interpreters go down, their processes may still be there
        self._failing = False  # a rank has raised: what moves now is on its way out
        self._looks_at_rest = 0
        self._not_before = 0.0
        self._paid = 0.0  # CPU seconds of the thread that have been waited for
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="distdoctor-watch", daemon=True)
        self.hang: Diagnosis | None = None  # what was known when the job was found to hang, or at the last look since
        self._hang_is_proven = False
        self.closing = False  # the launcher is ending the ranks: what hangs now is not the job
        self.last: Diagnosis | None = None
        self.stacks: Stacks | None = None  # the newest, and when they were taken
        self.stacks_wall_ns = 0
        self._examined_with_stacks: tuple[str, ...] = ()

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, succeeded: bool = False) -> None:
        """End the watch; the last look stays in `last`. `succeeded`: every rank has ended well, so none had been stuck."""
        self._over.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=30)
        if succeeded:
            self._take_back({rank for finding in self.standing.not_taken_back() for rank in finding.ranks})
        for pulse in self._pulses.values():
            pulse.close()

    def hurry(self) -> None:
        """Look at the next beat: something changed that the ranks' traces do not show."""
        self._not_before = 0.0

    def start_again(self) -> None:
        """The ranks were restarted: what was found in the start before is no finding about this one."""
        with self._lock:
            self._told.clear()
            self._heard.clear()
            self.standing = StandingFindings(self._waits, self._symptoms)
            self._recorded, self._leaving = set(), set()
            self.hang = self.last = self.stacks = self._seen_at_rest = None
            self._hang_is_proven = False
            self._examined_with_stacks = ()

    def said(self, *, succeeded: bool, interrupted: bool, aborting: bool) -> SaidLive:
        """All that was said of the job, and is true of it at this moment: for whoever asks when it is over."""
        with self._lock:
            stood = bool(self.standing.open()) and not succeeded
            unfinished = self.unfinished(succeeded=succeeded)
            findings = unfinished.findings if unfinished is not None else ()
            return SaidLive(
                told=self.told_for_good(),
                stood=findings,
                leads=self.is_hung or stood,
                hung=self.is_hung or (stood and interrupted and any(one.stalls for one in findings)),
                ended_by_distdoctor=aborting,
                withdrawn=tuple(self.standing.withdrawn),
                examined=self._examined_with_stacks,
                remedies=dict(self._all_remedies),
            )

    def told_for_good(self) -> tuple[Finding, ...]:
        """What was told while the job ran and was certain then: records proved it, and records may be forgotten meanwhile. What
        only a look at the processes showed, such as that they cannot be looked into, is true of that look alone."""
        with self._lock:
            over = {*self.standing.lapsed, *((finding.code, finding.ranks) for finding, _ in self.standing.withdrawn)}
            certain = (finding for finding in self._told.values() if finding.confidence == CERTAIN)
            told = (finding for finding in certain if finding.code not in self._of_processes)
            return tuple(finding for finding in told if (finding.code, finding.ranks) not in over)

    @property
    def is_hung(self) -> bool:
        return self.hang is not None

    def look(self, *, tell: bool = True, seen: Recording | None = None) -> Diagnosis | None:
        """Read the traces and ask the live checks now. None while there is nothing to read. `seen` brings the stacks."""
        if not self._has_begun():
            return None
        with self._lock:
            job = self._job()  # first: whoever has ended by now has written all it ever will when its trace is read
            try:
                sources = {**self._sources, **(seen.sources if seen else {})}
                recording = open_run(self._folder, sources, ranks=self._hosts.ranks())
            except DoctorError:
                return None
            if any(log.attempt < job.attempt for log in recording.ranks.values()):
                return None  # of the start before: on a full disk no file says that another has begun
            job = replace(job, running=True, read_at_ns=time.monotonic_ns(), read_wall_ns=time.time_ns())
            recording = replace(recording, job=job)
            self._sources, self._recorded = recording.sources, set(recording.ranks)
            if self._looks_at_rest:
                recording = self._with_other_hosts(recording, seen)
            # Those of other hosts too: their launcher ends the ranks, and starts them again where it may.
            self._leaving = {rank for rank, log in recording.ranks.items() if log.has_noted(*_LAST)}
            self._failing = any(log.has_noted(UncaughtException) for log in recording.ranks.values())
            diagnosis = self._examined(recording, seen)
            if seen is None and self._closer is not None and not self.is_hung and self._needs_a_look(diagnosis):
                diagnosis = self._examined(recording, self._closer())
            diagnosis = self._hosts.agreed(diagnosis) if self._looks_at_rest else diagnosis
            self.last = diagnosis
            self._all_remedies.update(diagnosis.remedies)
            if tell:
                self._tell_news(diagnosis)
            return diagnosis

    def _with_other_hosts(self, recording: Recording, seen: Recording | None) -> Recording:
        """The recording with what other hosts saw, their stacks too; they are given the newest of ours since the ranks came to
        rest, which for ourselves are looked at but once."""
        self._seen_at_rest = seen or self._seen_at_rest
        if self._seen_at_rest is None:
            return self._hosts.seen(recording)
        ours = self._seen_at_rest.stacks
        whole = self._hosts.seen(replace(recording, stacks=ours))
        if ours is None or whole.stacks is None:
            return whole
        theirs = {rank: one for rank, one in whole.stacks.ranks.items() if rank not in ours.ranks}
        return replace(whole, stacks=replace(whole.stacks, ranks=theirs, launcher=None) if theirs else None)

    def _examined(self, recording: Recording, seen: Recording | None) -> Diagnosis:
        if seen is not None:
            stacks = joined_stacks([one for one in (seen.stacks, recording.stacks) if one is not None])
            recording = replace(recording, stacks=stacks, backend=seen.backend)
        found = examine(recording, self._checks, self._remedies, live=True)
        if seen is not None and seen.stacks:
            self.stacks, self.stacks_wall_ns = seen.stacks, time.time_ns()
            self._examined_with_stacks = found.examined
        return suppress(found, recording.sources, self._ignored)

    def _tell_news(self, diagnosis: Diagnosis) -> None:
        """Tell each finding once. When a rank has failed, only at the second look: by then most jobs are over and reported."""
        failing = bool(self._leaving) or any(end.exit_code or end.signal for end in diagnosis.job.ends.values())
        for finding in diagnosis.findings:
            key = _key(finding)
            if self.standing.explains(finding) or self._is_premature(finding):
                continue
            if key not in self._told and (not failing or key in self._heard):
                self._told[key] = finding
                self._tell(finding, diagnosis)
            self._heard.add(key)

    def _is_premature(self, finding: Finding) -> bool:
        """Whether it says that ranks at rest wait, while looks that may show why are still to come."""
        waits = bool(finding.stalls) and finding.code in self._symptoms and bool(self._looks_at_rest)
        return waits and self._closer is not None and self._looked_closer < LOOKS_FOR_A_REASON

    def _run(self) -> None:
        while not self._over.wait(self._interval):
            if not self._has_begun():
                continue
            moved = self._ranks_that_moved()
            self._took_back(moved)
            if moved:
                self._moving()
            else:
                self._resting()
            for finding, seconds in self.standing.updates():
                self._still(finding, seconds)

    def _moving(self) -> None:
        """The job moves: look as often as a share of a core allows."""
        if self._looks_at_rest:
            self._hosts.moving()
        self._looks_at_rest, self._at_rest_since = 0, math.inf
        self._closer_looks, self._looked_closer, self._seen_at_rest = 0, 0, None
        if time.monotonic() >= self._not_before:
            self._timed_look()

    def _resting(self) -> None:
        """No rank has moved: the first two looks are never put off, they find the hang; later ones may bring stacks."""
        self._looks_at_rest += 1
        self._at_rest_since = min(self._at_rest_since, time.monotonic())
        self._hosts.resting(time.monotonic() - self._at_rest_since)
        seen = self._look_closer()
        if seen is None and self._looks_at_rest > 2 and time.monotonic() < self._not_before:
            return
        diagnosis = self._timed_look(seen, tell=False)
        ending = self._is_being_ended()  # by now: the signal may have come while the processes were looked at
        if diagnosis is not None and not ending:
            self.standing.polled(diagnosis.findings, with_stacks=seen is not None)
            with self._lock:
                self._tell_news(diagnosis)  # what stands is noted by now: whoever is told keeps it, should we be killed
            if self.hang is not None and seen is not None and not self.closing:
                newest = {_key(finding): finding for finding in self.standing.open()}
                self.hang = replace(self.hang, findings=tuple(newest.get(_key(one), one) for one in self.hang.findings))
            others = (finding for finding in diagnosis.findings if not finding.stalls)
            self._hosts.share(replace(diagnosis, findings=(*self.standing.to_share(), *others)))
            self._judge(diagnosis)

    def _timed_look(self, seen: Recording | None = None, *, tell: bool = True) -> Diagnosis | None:
        diagnosis = self.look(tell=tell, seen=seen)
        spent, self._paid = time.thread_time() - self._paid, time.thread_time()
        self._not_before = time.monotonic() + spent / SHARE_OF_A_CORE
        return diagnosis

    def _look_closer(self) -> Recording | None:
        """The stacks of all ranks, when the job has stood still for long and the traces alone do not say why. A hang that is left
        alone, and not proven, is looked at further: its ranks may be at another line by now."""
        rested = time.monotonic() - self._at_rest_since
        if self._closer is None or self._hang_is_proven or self.closing or not self._recorded:
            return None
        if rested < closer_after(self._closer_looks):
            return None
        self._closer_looks += 1
        while closer_after(self._closer_looks) <= rested:  # a look took long: what is past is not made up for
            self._closer_looks += 1
        self._looked_closer += 1
        return self._closer()

    def _took_back(self, moved: Iterable[int]) -> None:
        """Ranks gave a sign of life: what was said about their standing still is over, unless they are being ended."""
        stands = bool(self.standing.not_taken_back())
        if not (self._failing or (stands and self._is_being_ended())):
            self._take_back(moved)

    def _take_back(self, moved: Iterable[int]) -> None:
        for finding, seconds in self.standing.moved(moved):
            self._withdrawn(finding, seconds)

    def _is_being_ended(self) -> bool:
        """Whether the launcher ends the ranks, or somebody has asked the job to end a moment ago: what the ranks do now, and that
        their workers are gone, says nothing about what stood."""
        if self.closing:
            return True
        job = self._job()
        return bool(job.interrupted) and time.monotonic_ns() - job.interrupted_ns < ENDING_SECONDS * 1e9

    def _ranks_that_moved(self) -> set[int]:
        moved, mine = set(), self._hosts.ranks()
        for rank, path in trace_paths(self._folder).items():
            if mine is not None and rank not in mine:
                continue
            if path in self._pulses and not self._pulses[path].is_of(path):
                self._pulses.pop(path).close()
            if path not in self._pulses:
                try:
                    self._pulses[path] = Heartbeat(path)
                except OSError:
                    continue
                self._unmet.add(path)
            if path in self._unmet and (self._new_trace is None or self._new_trace(rank, path)):
                self._unmet.discard(path)
            if self._pulses[path].beats():
                moved.add(rank)
        return moved

    def _judge(self, diagnosis: Diagnosis) -> None:
        """Whether the job hangs: a standstill is proven, or one has lasted for as long as the user allows."""
        if self.closing or self.hang is not None:
            return
        ends = diagnosis.job.ends
        waiting = self._recorded - self._leaving - ends.keys()
        failed = bool(self._leaving - ends.keys()) or any(end.exit_code or end.signal for end in ends.values())
        proven = self.standing.proven()
        self._proven_since = min(self._proven_since, time.monotonic()) if proven else math.inf
        patience = LAUNCHERS_PATIENCE_SECONDS if failed else 0.0
        if waiting and proven and time.monotonic() - self._proven_since >= patience:
            self._found_hung(diagnosis, proven)
        elif waiting and self._hang_after is not None:
            lasting = self.standing.standing_for(self._hang_after)
            if lasting:
                self._found_hung(self._seen_once_more(diagnosis), lasting)

    def _seen_once_more(self, diagnosis: Diagnosis) -> Diagnosis:
        """The diagnosis with the stacks of this moment: nothing is proven, so where the ranks stand is all there is to say."""
        seen = self._closer() if self._closer is not None else None
        return (self._timed_look(seen) if seen is not None else None) or diagnosis

    def _found_hung(self, diagnosis: Diagnosis, because: list[Finding]) -> None:
        known = {_key(finding) for finding in diagnosis.findings}
        explained = {rank for finding in diagnosis.findings if finding.stalls for rank in finding.ranks}
        lost = [one for one in because if _key(one) not in known]
        held = (one for one in lost if one.stalls is Stalls.FOREVER or not one.ranks or set(one.ranks) - explained)
        self.hang = replace(diagnosis, findings=(*held, *diagnosis.findings))
        self._hang_is_proven = all(finding.stalls is Stalls.FOREVER for finding in because)
        self._hung(self.hang, self._hang_is_proven)

    def _needs_a_look(self, diagnosis: Diagnosis) -> bool:
        return any(finding.code in self._from_outside for finding in diagnosis.findings)

    def unfinished(self, *, succeeded: bool) -> Diagnosis | None:
        """What was known when the job ended: the hang, or the last poll and what still stood, without what was refuted."""
        if self.hang is not None or self.last is None:
            return self.hang
        stood = () if succeeded else self.standing.open()
        kept = {(finding.code, finding.ranks) for finding in stood}
        others = tuple(f for f in self.last.findings if not f.stalls and (f.code, f.ranks) not in kept)
        return replace(self.last, findings=(*stood, *others), remedies={**self._all_remedies, **self.last.remedies})


def closer_after(looks: int) -> float:
    """After how many seconds of rest the stacks are looked at once more, after so many looks."""
    beyond = looks - len(CLOSER_AFTER_SECONDS) + 1
    return CLOSER_AFTER_SECONDS[looks] if beyond <= 0 else CLOSER_AFTER_SECONDS[-1] + beyond * CLOSER_EVERY_SECONDS


_Key = tuple[object, ...]


def _key(finding: Finding) -> _Key:
    """What makes two findings of two looks the same one; titles carry seconds that grow, a rank in a loop changes its line."""
    place = finding.place
    return finding.code, finding.ranks, place.path, place.function if finding.stalls is Stalls.MAYBE else place.line
