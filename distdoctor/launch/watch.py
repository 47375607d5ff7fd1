"""Watch a running job from outside: read the traces, ask the live checks, tell what is new, notice a hang."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from distdoctor.diagnosis.check import Check
from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.examination import examine
from distdoctor.diagnosis.finding import CERTAIN, ERROR, Finding
from distdoctor.diagnosis.remedy import Remedy
from distdoctor.errors import DoctorError
from distdoctor.launch.heartbeat import Heartbeat
from distdoctor.launch.post_mortem import IN_BACKEND, recorded_streams
from distdoctor.launch.sources import with_sources
from distdoctor.launch.suppressions import suppress
from distdoctor.recording.recording import Job, Recording
from distdoctor.recording.trace.events import Exiting, UncaughtException
from distdoctor.recording.trace.run_folder import read_run, trace_paths

INTERVAL_SECONDS = 0.5
# A look may cost this share of one core: after a look of 20 ms the next one at a job that moves comes 2 s later.
SHARE_OF_A_CORE = 0.01
# A launcher that sees a rank fail ends the others itself: torch's gives them 30 s to go. Only after that it is a hang.
LAUNCHERS_PATIENCE_SECONDS = 35.0
# When nothing moved for so long and no check knows why from the traces, the stacks are looked at: then, and ever more rarely.
CLOSER_AFTER_SECONDS = 10.0
CLOSER_AGAIN_SECONDS = 5.0
CLOSER_AT_LEAST_EVERY_SECONDS = 60.0
# Wrong numbers or slowness: the ranks go on.
GOES_ON = frozenset({"DD105", "DD120", "DD123"})
_LAST = (UncaughtException, Exiting)


class Watcher:
    """A thread that looks at a run folder. `tell(finding)` is called once for each finding; `hung(diagnosis)` once, when an
    error of the family "hang" stands, no rank has moved between two looks, and somebody is still there to wait."""

    def __init__(
        self,
        folder: Path,
        job: Callable[[], Job],
        checks: Iterable[Check],
        remedies: Mapping[str, Remedy],
        *,
        tell: Callable[[Finding, Diagnosis], None],
        hung: Callable[[Diagnosis], None],
        new_trace: Callable[[int, Path], None] | None = None,
        closer: Callable[[], Recording | None] | None = None,
        ignored: Iterable[str] = (),
        interval: float = INTERVAL_SECONDS,
        with_others: Callable[[Recording], Recording] = lambda recording: recording,
        moving: Callable[[], None] = lambda: None,
    ) -> None:
        self._folder, self._job, self._interval = folder, job, interval
        self._checks = [check for check in checks if check.live]
        self._remedies, self._ignored = remedies, frozenset(ignored)
        self._tell, self._hung, self._new_trace, self._closer = tell, hung, new_trace, closer
        self._with_others = with_others  # what other hosts saw, asked while nobody moves here
        self._say_moving = moving  # what they were told of us is out of date
        self._pulses: dict[Path, Heartbeat] = {}
        self._told: dict[_Key, Finding] = {}
        self._heard: set[_Key] = set()
        self._hangs = hang_codes(self._checks)
        # What stood at the last look from the traces, and at the last one with stacks; since when.
        self._standing: dict[bool, frozenset[_Key]] = {}
        self._stands_since: dict[bool, float] = {}
        self._at_rest_since = math.inf
        self._pause_before_closer = CLOSER_AGAIN_SECONDS
        self._closer_not_before = 0.0
        self._sources: Mapping[str, str] = {}
        self._recorded: set[int] = set()
        self._leaving: set[int] = set()  # their interpreters go down, their processes may still be there
        self._looks_at_rest = 0
        self._not_before = 0.0
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="distdoctor-watch", daemon=True)
        self.hang: Diagnosis | None = None  # what was known when the job was found to hang
        self.closing = False  # the launcher is ending the ranks: what hangs now is not the job
        self.last: Diagnosis | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the watch; the last look stays in `last`."""
        self._over.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=30)
        for pulse in self._pulses.values():
            pulse.close()

    def start_again(self) -> None:
        """The ranks were restarted: what was found in the start before is no finding about this one."""
        with self._lock:
            self._told.clear()
            self._heard.clear()
            self._standing.clear()
            self._recorded, self._leaving = set(), set()
            self.hang = self.last = None

    def told_for_good(self) -> tuple[Finding, ...]:
        """What was told while the job ran and was certain then: records proved it, and records may be forgotten meanwhile."""
        with self._lock:
            return tuple(finding for finding in self._told.values() if finding.confidence == CERTAIN)

    @property
    def is_hung(self) -> bool:
        return self.hang is not None

    def look(self, *, tell: bool = True, seen: Recording | None = None) -> Diagnosis | None:
        """Read the traces and ask the live checks now. None while there is nothing to read. `seen` brings the stacks."""
        with self._lock:
            job = self._job()  # first: whoever has ended by now has written all it ever will when its trace is read
            try:
                recording = read_run(self._folder)
            except DoctorError:
                return None
            job = replace(job, running=True, read_at_ns=time.monotonic_ns(), read_wall_ns=time.time_ns())
            self._sources = {**self._sources, **(seen.sources if seen else {})}
            recording = with_sources(replace(recording, job=job, sources=self._sources))
            self._sources, self._recorded = recording.sources, set(recording.ranks)
            self._leaving = {rank for rank, log in recording.ranks.items() if log.has_noted(*_LAST)}
            streams = recorded_streams(self._folder, recording)
            recording = replace(recording, streams=streams)
            if self._looks_at_rest:
                recording = self._with_others(recording)
            diagnosis = self._examined(recording, seen)
            if seen is None and self._closer is not None and not self.is_hung and _is_in_backend(diagnosis):
                diagnosis = self._examined(recording, self._closer())
            self.last = diagnosis
            if tell:
                self._tell_news(diagnosis)
            return diagnosis

    def _examined(self, recording: Recording, seen: Recording | None) -> Diagnosis:
        if seen is not None:
            recording = replace(recording, stacks=seen.stacks, backend=seen.backend)
        found = examine(recording, self._checks, self._remedies, live=True)
        return suppress(found, recording.sources, self._ignored)

    def _tell_news(self, diagnosis: Diagnosis) -> None:
        """Tell each finding once. When a rank has failed, only at the second look: by then most jobs are over and reported."""
        failing = bool(self._leaving) or any(end.exit_code or end.signal for end in diagnosis.job.ends.values())
        for finding in diagnosis.findings:
            key = _key(finding)
            if key not in self._told and (not failing or key in self._heard):
                self._told[key] = finding
                self._tell(finding, diagnosis)
            self._heard.add(key)

    def _run(self) -> None:
        while not self._over.wait(self._interval):
            if self._any_rank_moved():
                self._moving()
            else:
                self._resting()

    def _moving(self) -> None:
        """The job moves: look as often as a share of a core allows."""
        if self._looks_at_rest:
            self._say_moving()
        self._standing.clear()
        self._looks_at_rest, self._at_rest_since = 0, math.inf
        self._pause_before_closer = CLOSER_AGAIN_SECONDS
        if time.monotonic() >= self._not_before:
            self._timed_look()

    def _resting(self) -> None:
        """No rank has moved: the first two looks are never put off, they find the hang; later ones may bring stacks."""
        self._looks_at_rest += 1
        self._at_rest_since = min(self._at_rest_since, time.monotonic())
        seen = self._look_closer()
        if seen is None and self._looks_at_rest > 2 and time.monotonic() < self._not_before:
            return
        diagnosis = self._timed_look(seen)
        if diagnosis is not None:
            self._judge_rest(diagnosis, with_stacks=seen is not None)

    def _timed_look(self, seen: Recording | None = None) -> Diagnosis | None:
        before = time.thread_time()
        diagnosis = self.look(seen=seen)
        self._not_before = time.monotonic() + (time.thread_time() - before) / SHARE_OF_A_CORE
        return diagnosis

    def _look_closer(self) -> Recording | None:
        """The stacks of all ranks, when the job has stood still for long and the traces alone do not say why."""
        now = time.monotonic()
        too_early = now - self._at_rest_since < CLOSER_AFTER_SECONDS or now < self._closer_not_before
        if self._closer is None or too_early or self.is_hung or self.closing or not self._recorded:
            return None
        seen = self._closer()
        self._closer_not_before = time.monotonic() + self._pause_before_closer
        self._pause_before_closer = min(2 * self._pause_before_closer, CLOSER_AT_LEAST_EVERY_SECONDS)
        return seen

    def _any_rank_moved(self) -> bool:
        moved = False
        for rank, path in trace_paths(self._folder).items():
            if path not in self._pulses:
                try:
                    self._pulses[path] = Heartbeat(path)
                except OSError:
                    continue
                if self._new_trace is not None:
                    self._new_trace(rank, path)
            moved |= self._pulses[path].beats()
        return moved

    def _judge_rest(self, diagnosis: Diagnosis, *, with_stacks: bool) -> None:
        """An error that stood at the look before and stands now, while no rank moved, will not go away by itself."""
        standing = frozenset(_key(f) for f in diagnosis.findings if f.severity == ERROR and f.code in self._hangs)
        still = standing & self._standing.get(with_stacks, frozenset())
        if not still:
            self._stands_since[with_stacks] = time.monotonic()
        self._standing[with_stacks] = standing
        ends = diagnosis.job.ends
        waiting = self._recorded - self._leaving - ends.keys()
        failed = bool(self._leaving - ends.keys()) or any(end.exit_code or end.signal for end in ends.values())
        patience = LAUNCHERS_PATIENCE_SECONDS if failed else 0.0
        stands = bool(still) and time.monotonic() - self._stands_since[with_stacks] >= patience
        if stands and waiting and not self.closing and self.hang is None:
            self.hang = diagnosis
            self._hung(diagnosis)


_Key = tuple[object, ...]


def _is_in_backend(diagnosis: Diagnosis) -> bool:
    return any(finding.code == IN_BACKEND for finding in diagnosis.findings)


def hang_codes(checks: Iterable[Check]) -> frozenset[str]:
    """The codes that say that ranks wait for what will never come."""
    return frozenset(check.code for check in checks if check.family == "hang")


def _key(finding: Finding) -> _Key:
    """What makes two findings of two looks the same one; titles carry seconds that grow."""
    return finding.code, finding.ranks, finding.place.path, finding.place.line
