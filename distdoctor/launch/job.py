"""One job from start to end: record it, watch it, end it where asked, and examine what it left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.finding import CERTAIN, Finding, Stalls
from distdoctor.diagnosis.hang.ending import CRASHES
from distdoctor.errors import DoctorError, NothingToInspect
from distdoctor.launch.ends import Ends, asked_from_outside, ended_from_outside
from distdoctor.launch.environment import environment
from distdoctor.launch.exchange import Exchange
from distdoctor.launch.last_lines import LastLines
from distdoctor.launch.observed_agent import AgentEnd, run_agent
from distdoctor.launch.other_launcher import run_command
from distdoctor.launch.post_mortem import diagnose, open_recording
from distdoctor.launch.presence import Presence
from distdoctor.launch.processes import descends_from, is_alive, send, this_process
from distdoctor.launch.rendezvous import Rendezvous
from distdoctor.launch.signals_heard import SignalsHeard, finishing
from distdoctor.launch.suppressions import is_named
from distdoctor.launch.torchrun_arguments import parse
from distdoctor.launch.watch import Watcher
from distdoctor.plugins import Plugins
from distdoctor.recording.files import write_whole
from distdoctor.recording.lost_host import LostHost
from distdoctor.recording.merge import merged
from distdoctor.recording.recording import ASK_TO_END, Attempt, Job, RankEnd, Recording, SourceLine, Trouble
from distdoctor.recording.seen_live import SeenLive
from distdoctor.recording.trace.events import Exiting, UncaughtException
from distdoctor.recording.trace.host_file import HostFile, merged_ends, read_host_files, still_lost
from distdoctor.recording.trace.layout import CallFlag, site_text
from distdoctor.recording.trace.probe_settings import ProbeSettings
from distdoctor.recording.trace.process_key import started_at
from distdoctor.recording.trace.reader import read_trace
from distdoctor.recording.trace.redaction import redacted_arguments
from distdoctor.recording.trace.run_folder import seals_of, socket_paths, trace_paths, unused_attempt

LAST_SLACK_SECONDS = 1.5  # for a late word at the end of the job, of those that others get
# After the wait for the others' last words: a word may have been read a beat late, and the store have been asked a beat ago.
MISSED_SECONDS = 2.0
OTHERS_SECONDS = 3.0  # that launchers on other hosts get to come to their end as well
GRACE_SECONDS = 5.0  # between SIGTERM and SIGKILL for ranks that hang; a rank that waits in C++ ends at once by either


@dataclass(frozen=True)
class Launch:
    """What to start: a script with options for torch's own agent, or `command`, any other launcher's command line."""

    argv: tuple[str, ...]
    options: tuple[str, ...] = ()
    script: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    strategy: str = ""


@dataclass(frozen=True)
class RunOptions:
    """How to go about it. `on_hang` is report, abort or wait; `probe` says what is recorded."""

    folder: Path
    on_hang: str = "report"
    hang_after: float | None = None  # seconds after which a standstill is a hang though nothing proves it; None: never
    probe: ProbeSettings = ProbeSettings()  # noqa: RUF009 - frozen
    ignored: frozenset[str] = frozenset()
    tell: Callable[[Finding, Diagnosis], None] = lambda finding, diagnosis: None
    notice: Callable[[str], None] = lambda words: None
    closer: Callable[[], Recording | None] | None = None  # a recording with the stacks of all ranks, while they run
    stop_on: frozenset[str] = frozenset()  # codes of findings that end the job once they are certain
    lines: Callable[[], Mapping[int, SourceLine]] = dict  # the user's line at which each rank is, while they run
    hosts: int = 0  # how many launchers the job has, one a host or one a task of a step; 0: not known
    watches: bool = (
        True  # False where another launcher of the job, in the same folder, looks at all ranks while they run
    )
    leave: Callable[[Outcome], None] | None = None  # report and end this process: torch's agent does not come back
    afterwards: Callable[[], None] = lambda: None  # called when every rank has ended, before the recording is read


@dataclass(frozen=True)
class Outcome:
    """What came of it. `interrupted` is the signal that ended the job from outside, on any host, 0 for none. `trouble`: what
    ended torch's agent itself, "" where it came back in order."""

    recording: Recording
    diagnosis: Diagnosis
    hung: bool
    interrupted: int
    trouble: str = ""
    withdrawn: tuple[tuple[Finding, float], ...] = ()  # said and taken back, with the seconds that it had stood


@dataclass
class _State:
    """What the threads share while the job runs."""

    world_size: int = 0
    attempt: int = 0
    over: bool = False
    aborting: bool = False
    begun: bool = False  # torch's agent has started ranks: until then our folder holds those of earlier runs at most
    signal: int = 0  # from outside
    signal_ns: int = 0  # when it came, monotonic
    exit_codes: dict[int, Callable[[int], int | None]] = field(default_factory=dict)
    starts: dict[int, Attempt] = field(
        default_factory=dict
    )  # those before the current one, and this one once it is over


class RunningJob:
    """The launch, its watcher and its ranks' ends, put together; `run` is called once, in the main thread."""

    def __init__(self, launch: Launch, orders: RunOptions, plugins: Plugins) -> None:
        self.launch, self.orders, self.plugins = launch, orders, plugins
        self.state = _State()
        self.launcher_pid = self.launcher_began = 0  # of another launcher than torch's agent
        self._of_other_launchers: set[int] = set()  # ranks on this host that another task of our step has started
        self._disk_refused = False
        self._first_unused = 0  # start that the folder did not hold when we came
        self._lost_hosts: tuple[LostHost, ...] = ()  # when the job was over
        self.ends = Ends()
        self.rendezvous = Rendezvous(orders.notice, lambda: unused_attempt(orders.folder))
        self.exchange = Exchange(self.rendezvous)
        self.presence = Presence(self.rendezvous, this_process(), self._hosts_changed)
        self._finishing = threading.Lock()
        self._writing = threading.Lock()
        self._end: AgentEnd | None = None
        self.host = HostFile(
            this_process(),
            tuple(redacted_arguments(launch.argv)),
            launch.command[0] if launch.command else "torch elastic",
            launch.strategy,
            orders.probe.noted_streams,
            orders.hosts,
        )
        self.last_lines = LastLines(self.ends.memory_left, orders.lines)
        checks = [check for code, check in plugins.checks.items() if not is_named(code, check.slug, orders.ignored)]
        self.watcher = Watcher(
            orders.folder,
            self.job,
            checks,
            plugins.remedies,
            tell=self._tell,
            hung=self._hung,
            still=self._still,
            withdrawn=self._withdrawn,
            hang_after=orders.hang_after,
            new_trace=self._new_trace if launch.command else None,
            closer=orders.closer,
            ignored=orders.ignored,
            with_others=self._with_other_hosts,
            moving=self._ranks_move,
            resting=self.presence.rests,
            has_begun=lambda: bool(launch.command) or self.state.begun,
        )

    def job(self) -> Job:
        """The job as it is known at this moment, on this host."""
        return Job(
            argv=self.host.argv,
            world_size=self.state.world_size,
            ends=self.ends.seen() if not self.state.over else self.state.starts[self.state.attempt].ends,
            running=not self.state.over,
            launcher=self.host.launcher,
            strategy=self.launch.strategy,
            attempt=self.state.attempt,
            hosts=self.rendezvous.hosts or self.orders.hosts,
            lost=self._lost_hosts if self.state.over else self.presence.lost(),
        )

    @property
    def exit_code(self) -> int | None:
        """That of the job; None while it runs."""
        return self._end.exit_code if self._end is not None else None

    def run(self) -> Outcome:
        """Start the job, come back when every rank has ended and has been examined."""
        self._first_unused = unused_attempt(self.orders.folder)
        self._write()
        if self.orders.watches:
            self.watcher.start()
        self.last_lines.start()
        end = AgentEnd(1)
        try:
            with SignalsHeard(self._heard):
                end = self._launch()
                with finishing():
                    return self._finish(end)
        except BaseException:
            if self._end is None:
                self._over(end)
                self.presence.end()
            raise

    def _finish(self, end: AgentEnd) -> Outcome:
        """The job is over: who comes here first examines it, whoever comes second waits for the process to end."""
        self._finishing.acquire()
        self._end = end
        job = self._over(end)
        self.orders.afterwards()
        return self._examined(job, end)

    def _over(self, end: AgentEnd) -> Job:
        """Nobody of ours runs any more, and how each rank ended is written down."""
        self._lost_hosts = self.presence.lost()
        self.presence.ending()
        self._end_leftovers()
        self.watcher.stop(succeeded=end.exit_code == 0)
        self.state.over = True
        self.state.signal = 0 if self.state.aborting else end.signal or self.state.signal
        self._keep_start(self._ends_for_good(end))
        self._write(running=False, exit_code=end.exit_code, digests=seals_of(self.orders.folder))
        self._remove_sockets()
        return replace(self.job(), exit_code=end.exit_code, interrupted=self.state.signal)

    # What the agent tells (Observer).

    def starting(self, attempt: int) -> dict[str, str]:
        return self._hand_over(replace(self.orders.probe, attempt=attempt))

    def started(
        self, attempt: int, pids: dict[int, int], world_size: int, exit_code_of: Callable[[int], int | None]
    ) -> None:
        if self.state.exit_codes:  # a restart: how the ranks of the start before ended is kept
            self._keep_start(self._corrected())
            self.watcher.start_again()
        self.state.world_size, self.state.attempt = world_size, attempt
        self.state.exit_codes = dict.fromkeys(pids, exit_code_of)
        self.watcher.closing = False
        self.ends.watch(pids, anew=True)
        self._keep_start({})
        self._write()
        self.state.begun = True
        threading.Thread(target=self.exchange.connect, name="distdoctor-exchange", daemon=True).start()
        self.presence.begin(attempt, pids)

    def closing(self) -> None:
        """Look once more before the survivors are ended: what they wait for shows who is to blame. Torch's agent may restart them
        then; not where another host has ended the job because it hangs."""
        self.watcher.closing = True
        self.presence.call_all()  # they may fail because a host is gone
        self.ends.closing()
        if self.ends.alive() and not self.state.aborting:
            self.watcher.look(tell=False)
        ends_hangs = self.orders.on_hang == "abort" or self.orders.stop_on
        if ends_hangs and not (self.state.aborting or self.state.signal) and self.exchange.was_ended:
            self.orders.notice("the job hangs: another host has ended it")
            self._start_abort()

    # Inside.

    def _launch(self) -> AgentEnd:
        seam = _entry_where_autoload_is_off()
        if self.launch.command:
            handed = self._hand_over(self.orders.probe)
            return run_command(self.launch.command, {**os.environ, **seam, **handed}, self._launcher_started)
        with environment(seam):
            return run_agent(parse(self.launch.options, self.launch.script), self, self.rendezvous)

    def _hand_over(self, settings: ProbeSettings) -> dict[str, str]:
        """Write down how the ranks are to be recorded; the variable that tells them where."""
        try:
            return settings.hand_over(self.orders.folder, self.host.name.replace("host-", "probe-", 1))
        except OSError as trouble:
            self.orders.notice(f"{self.orders.folder} takes nothing ({trouble.strerror}): the ranks are not recorded")
            return {}

    def _launcher_started(self, pid: int) -> None:
        self.launcher_pid, self.launcher_began = pid, started_at(pid)

    def _new_trace(self, rank: int, path: Path) -> None:
        """A rank of another launcher has shown itself: watch its process, if it lives on this host."""
        try:
            head = read_trace(path, only=frozenset()).head
        except DoctorError:
            return
        self.state.world_size = max(self.state.world_size, head.world_size)
        if head.attempt > self.state.attempt:
            self._keep_start(self._corrected())
            self.watcher.start_again()
            self.state.attempt = head.attempt
        if head.process.lives_here:
            self.ends.watch({rank: head.pid}, started={rank: head.pid_started})
            if self.orders.hosts > 1 and not descends_from(head.pid, self.launcher_pid):
                self._of_other_launchers.add(rank)

    def _tell(self, finding: Finding, diagnosis: Diagnosis) -> None:
        if self.orders.on_hang != "wait":
            self.orders.tell(finding, diagnosis)
        self._keep_what_was_seen()
        if finding.code in self.orders.stop_on and finding.confidence == CERTAIN and not self.state.aborting:
            self.orders.notice(f"{finding.code} is certain: ending the ranks (--stop-on)")
            self._start_abort()

    def _still(self, finding: Finding, seconds: float) -> None:
        if self.orders.on_hang != "wait" and not self.state.aborting:
            self.orders.notice(f"{_named(finding)}: still so after {seconds:.0f} s; {finding.title}")

    def _withdrawn(self, finding: Finding, seconds: float) -> None:
        self._keep_what_was_seen()
        if self.orders.on_hang != "wait" and not self.state.aborting:
            self.orders.notice(f"{_named(finding)}: withdrawn, the job went on after {seconds:.0f} s")

    def _hung(self, diagnosis: Diagnosis, proven: bool) -> None:
        """`proven`: its ranks wait for ever, whatever the code that says why; a likely reason is then enough for `--stop-on`."""
        self._keep_what_was_seen()
        told = {one.code for one in diagnosis.findings if proven and one.stalls is Stalls.FOREVER}
        if self.orders.on_hang == "abort" or told & self.orders.stop_on:
            limit = "--on-hang abort" if proven else f"--hang-after {self.orders.hang_after:g}"
            why = limit if self.orders.on_hang == "abort" else f"--stop-on {min(told & self.orders.stop_on)}"
            self.orders.notice(f"the job hangs: ending its ranks ({why})")
            self._start_abort()
        elif self.orders.on_hang == "report":
            self.orders.notice("the job hangs; it is left alone (--on-hang report), Ctrl-C ends it and examines it")

    def _start_abort(self) -> None:
        """End the job from a thread of its own: the watcher goes on looking."""
        self.state.aborting = True
        threading.Thread(target=self._abort, name="distdoctor-abort", daemon=True).start()

    def _abort(self) -> None:
        """End the job as Ctrl-C would, then whoever does not listen. Torch's agent would restart ranks that only died."""
        self.exchange.say_ended()
        self.ends.closing()
        if is_alive(self.launcher_pid, self.launcher_began):
            send(self.launcher_pid, signal.SIGTERM)
        elif not self.launcher_pid and callable(
            signal.getsignal(signal.SIGTERM)
        ):  # else --signals-to-handle left it out
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            self.ends.signal(signal.SIGTERM)
        deadline = time.monotonic() + GRACE_SECONDS
        while self.ends.alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        self.ends.signal(signal.SIGKILL)
        self._leave_unless_over(AgentEnd(1))

    def _heard(self, number: int) -> None:
        """A signal from outside. Torch's agent hands it on to the ranks, unless it stands in a store that does not answer.
        Launchers on other hosts, whose ranks may lose ours before they are asked as well, read of it in our file."""
        if self.state.aborting or (self._end is not None and not self._end.exit_code):
            return
        self.state.signal = self.state.signal or number
        self.state.signal_ns = self.state.signal_ns or time.monotonic_ns()
        self._write()
        if not self.launch.command and self.state.exit_codes:
            threading.Thread(target=self._see_through, args=(number,), name="distdoctor-signal", daemon=True).start()

    def _see_through(self, number: int) -> None:
        """What the agent does not do within the grace that ranks get is done here."""
        if not self._over_within(2 * GRACE_SECONDS) and self.ends.alive():
            self.ends.closing()
            self.ends.signal(number)
            self._over_within(GRACE_SECONDS)
            self.ends.signal(signal.SIGKILL)
        self._leave_unless_over(AgentEnd(1, signal=number))

    def _leave_unless_over(self, end: AgentEnd) -> None:
        """Report from this thread, when the ranks have gone and the agent stands in a call to a host that does not answer."""
        if self.orders.leave is not None and not self._over_within(GRACE_SECONDS):
            self.orders.leave(self._finish(replace(end, trouble="torch's agent did not come back from its rendezvous")))

    def _over_within(self, seconds: float) -> bool:
        """Whether the agent comes back in time."""
        deadline = time.monotonic() + seconds
        while not self.state.over and not self._finishing.locked() and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.state.over or self._finishing.locked()

    def _end_leftovers(self) -> None:
        """The launcher is gone: a rank of its own that outlives it holds ports and devices and belongs to nobody."""
        if not self._leftovers():
            return
        self.ends.closing()
        for number, patience in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, GRACE_SECONDS)):
            self.ends.signal(number, self._leftovers())
            deadline = time.monotonic() + patience
            while self._leftovers() and time.monotonic() < deadline:
                time.sleep(0.02)

    def _leftovers(self) -> set[int]:
        return set(self.ends.alive()) - self._of_other_launchers

    def _remove_sockets(self) -> None:
        """Those of this host's ranks: nobody answers there any more, and copying a folder stumbles over them."""
        traces = trace_paths(self.orders.folder)
        for rank, path in socket_paths(self.orders.folder).items():
            with contextlib.suppress(OSError, DoctorError):
                if rank in traces and read_trace(traces[rank], only=frozenset()).head.process.is_of_this_machine:
                    path.unlink()

    def _corrected(self) -> dict[int, RankEnd]:
        """How this host's ranks ended, completed by what their parent knows."""
        for rank, code_of in self.state.exit_codes.items():
            code = code_of(rank)
            if code is not None:
                self.ends.correct(rank, exit_code=code if code >= 0 else None, signal=max(-code, 0))
        return self.ends.seen()

    def _ends_for_good(self, end: AgentEnd) -> dict[int, RankEnd]:
        self._corrected()
        lines = self.last_lines.stop()
        ends = {rank: _with_line(one, lines.get(rank)) for rank, one in self.ends.stop().items()}
        ends = _ended_by_another_launcher(ends) if self.launch.command else ends
        succeeded = bool(self.launch.command) and not end.exit_code  # then it ended its ranks itself
        if not (self.state.signal or self.state.aborting or succeeded) and asked_from_outside(ends):
            self.state.signal = signal.SIGTERM
        return self._without_the_asked(ends)

    def _without_the_asked(self, ends: Mapping[int, RankEnd]) -> dict[int, RankEnd]:
        """The ends, where somebody has ended the job from outside: no rank's own."""
        return ended_from_outside(ends, self.state.signal_ns) if self.state.signal in ASK_TO_END else dict(ends)

    def _keep_start(self, ends: Mapping[int, RankEnd]) -> None:
        """Note the current start of the ranks, as it is now."""
        number = self.state.attempt
        ranks = tuple(sorted({*self.state.exit_codes, *ends}))
        self.state.starts[number] = Attempt(number, self.state.world_size, ranks, ends)

    def _write(self, **news: Any) -> None:
        """This launcher's own file, with what is new in it: no other launcher of the job writes into it."""
        with self._writing:
            hosts, starts = self.rendezvous.hosts or self.orders.hosts, dict(self.state.starts)
            self.host = replace(self.host, starts=starts, hosts=hosts, interrupted=self.state.signal, **news)
            try:
                write_whole(self.orders.folder / self.host.name, self.host.to_json())
            except OSError as trouble:  # a full disk, a folder that has gone: the job is not to know
                if not self._disk_refused:
                    self.orders.notice(f"{self.orders.folder} takes no more ({trouble.strerror}); the job goes on")
                self._disk_refused = True

    def _examined(self, job: Job, end: AgentEnd) -> Outcome:
        self._await_other_hosts()
        recording = self._recorded() or Recording(job, {}, streams=frozenset())
        ends = _ended_after_their_work(job.ends, recording) if self.launch.command and not end.exit_code else job.ends
        here = _with_exit_events(self._without_the_asked(ends), recording, end)
        self._keep_start(here)
        self._write()
        whole = replace(
            recording.job,
            ends=merged_ends(recording.job.ends, here),
            world_size=max(recording.job.world_size, job.world_size),
            exit_code=end.exit_code or recording.job.exit_code,
            interrupted=self.state.signal or recording.job.interrupted,
            running=False,
            end_unseen=recording.job.end_unseen and not self._disk_refused,  # we saw it, and could not write it down
        )
        recording = self._with_lost_hosts(self._with_last_words(replace(recording, job=whole)))
        self.presence.end()
        seen = self._keep_what_was_seen(succeeded=end.exit_code == 0)
        others = tuple(one for one in recording.seen_live if one.name != seen.name)
        recording = replace(recording, seen_live=(*others, seen))
        diagnosis = diagnose(recording, self.plugins.checks, self.plugins.remedies, self.orders.ignored)
        withdrawn = tuple(self.watcher.standing.withdrawn)
        interrupted = recording.job.interrupted if end.exit_code else self.state.signal  # hosts may go, and a job go on
        return Outcome(recording, diagnosis, diagnosis.hung, interrupted, end.trouble, withdrawn)

    def _recorded(self) -> Recording | None:
        """What lies in our folder, None where this job has left nothing there; another one may have, earlier."""
        is_command, folder = bool(self.launch.command), self.orders.folder
        if not (is_command or self.state.begun) and unused_attempt(folder) == self._first_unused:
            return None
        try:
            return open_recording(folder)
        except NothingToInspect:
            return None

    def _keep_what_was_seen(self, *, succeeded: bool = False) -> SeenLive:
        """Write down the stacks and what was said: nobody can see or say it again when the ranks have ended."""
        watcher = self.watcher
        said = watcher.said(
            succeeded=succeeded, interrupted=bool(self.state.signal), aborting=self.state.aborting and not succeeded
        )
        seen = SeenLive(self.host.name, self.state.attempt, watcher.stacks_wall_ns, watcher.stacks, said.as_values())
        with contextlib.suppress(OSError):  # a full disk: what was written of the host says so
            write_whole(self.orders.folder / seen.name, seen.to_json())
        return seen

    def _with_other_hosts(self, recording: Recording) -> Recording:
        """The recording with what the other hosts saw, where no folder is shared: asked when this host's ranks do not move."""
        if not self.exchange.is_open or self._is_shared():
            return recording
        self.exchange.give(recording, final=False)
        return self._joined(recording, self.exchange.take())

    def _with_last_words(self, recording: Recording) -> Recording:
        """The same at the end of the job: every host gets the verdict of the whole job, or learns who kept silent."""
        if not self.exchange.is_open or self._is_shared():
            return recording
        deadline = time.monotonic() + OTHERS_SECONDS
        self.exchange.give(recording, final=True)
        others = self.exchange.take_last_words(deadline)
        self.exchange.part(deadline)
        if self.exchange.silent:
            came, hosts = self.rendezvous.hosts - len(self.exchange.silent), self.rendezvous.hosts
            here, silent = self.rendezvous.host_number, self.presence.named(self.exchange.silent)
            self.orders.notice(
                f"{came} of {hosts} hosts have answered, nothing came from {silent}; this is host {here}"
            )
        whole = self._joined(recording, others)
        return replace(whole, job=replace(whole.job, running=False))

    def _with_lost_hosts(self, recording: Recording) -> Recording:
        """The recording with the hosts that were silent before the job was over, or have not been heard since."""
        lost = still_lost((*recording.job.lost, *self._lost_hosts, *self._lost_meanwhile()), ())
        self._write(lost=lost)
        return replace(recording, job=replace(recording.job, lost=lost))

    def _lost_meanwhile(self) -> list[LostHost]:
        """Those who have not been heard since. Ours may have failed the moment a host went down: where somebody has sent nothing
        we wait until its next word would be late."""
        deadline = time.monotonic() + MISSED_SECONDS
        while True:
            hears, silent = self.presence.hears, self._sent_nothing()
            found = [one for one in self.presence.lost(LAST_SLACK_SECONDS) if not one.keeps_store]
            # The store's own host may only have come to its end before us: that is said, or its part of the job lies here.
            found += self.presence.left_without_a_word() if silent else ()
            if not hears or len(found) >= silent or time.monotonic() >= deadline:
                return found
            time.sleep(0.1)

    def _sent_nothing(self) -> int:
        """How many hosts have not told how their part ended."""
        others = (host for host in self._launchers_here() if host.name != self.host.name)
        return len(self.exchange.silent) or sum(host.still_runs for host in others)

    def _ranks_move(self) -> None:
        """Ranks of ours that had come to rest move again."""
        self.presence.moves()
        self.exchange.take_back()

    def _hosts_changed(self) -> None:
        """Another host has fallen silent, or is back: the watcher is to say so now."""
        self.watcher.hurry()

    def _joined(self, recording: Recording, others: Sequence[Recording]) -> Recording:
        try:
            return merged([recording, *others])
        except DoctorError as trouble:
            return replace(recording, troubles=(*recording.troubles, Trouble(str(trouble))))

    def _is_shared(self) -> bool:
        """Whether the other launchers write into our folder, so that it holds the whole job."""
        return len(self._launchers_here()) >= self.rendezvous.hosts

    def _launchers_here(self) -> list[HostFile]:
        """Those of this start of the job that write into our folder."""
        return [host for host in read_host_files(self.orders.folder) if host.takes_part(self.state.attempt)]

    def _await_other_hosts(self) -> None:
        """Whoever shares our folder ends about now as well: what their ranks did last belongs to the verdict."""
        deadline = time.monotonic() + OTHERS_SECONDS
        while time.monotonic() < deadline:
            if not any(host.still_runs for host in self._launchers_here() if host.name != self.host.name):
                return
            time.sleep(0.1)


def _named(finding: Finding) -> str:
    """`DD116 rank 1 train.py:57`, in one line of progress."""
    place = finding.place.short if finding.place else ""
    return " ".join(filter(None, (finding.code, finding.ranks_named if finding.ranks else "", place)))


def _with_line(end: RankEnd, seen: tuple[SourceLine, int] | None) -> RankEnd:
    """The end of a rank that was killed for lack of memory, with its line when memory ran low."""
    if seen is None or not end.killed_for_memory:
        return end
    site, at_ns = seen
    return replace(
        end, last_line=site_text(site.path, site.line, site.function), last_line_ns=max(0, end.at_ns - at_ns)
    )


def _ended_by_another_launcher(ends: Mapping[int, RankEnd]) -> dict[int, RankEnd]:
    """Ranks that got SIGTERM after another one had failed: every launcher does that, and none says so."""
    failures = [end.at_ns for end in ends.values() if (end.exit_code or end.signal) and end.signal != signal.SIGTERM]
    first = min(failures, default=None)
    return {
        rank: replace(end, ended_by_launcher=True)
        if first is not None and end.signal == signal.SIGTERM and end.at_ns >= first
        else end
        for rank, end in ends.items()
    }


def _ended_after_their_work(ends: Mapping[int, RankEnd], recording: Recording) -> dict[int, RankEnd]:
    """The ends under a command that succeeded: a rank that was in no call and noted no end of its own was ended by its parent,
    whatever code that left. Not what a process does to itself, nor what the kernel does, nor where a call of any rank failed.
    A parent that ends its ranks ends all of them: where one of them came to a good end by itself, another's code is its own."""
    found = dict(ends)
    come_to_their_end = any(log.has_noted(Exiting) for log in recording.ranks.values())
    come_to_their_end |= any(end.exit_code == 0 and not end.ended_by_launcher for end in ends.values())
    if any((log.calls["flags"] & CallFlag.FAILED).any() for log in recording.ranks.values()):
        return found
    for rank, end in ends.items():
        log = recording.ranks.get(rank)
        if log is None or log.has_noted(Exiting) or log.has_noted(UncaughtException):
            continue
        in_call = bool(len(log.calls)) and not log.calls[-1]["returned_ns"]
        sent = bool(end.signal) and end.signal not in CRASHES and not end.killed_for_memory
        if (sent or (end.exit_code and not come_to_their_end)) and not in_call:
            found[rank] = replace(end, ended_by_launcher=True)
    return found


def _with_exit_events(ends: Mapping[int, RankEnd], recording: Recording, end: AgentEnd) -> dict[int, RankEnd]:
    """The ends, completed by what the ranks themselves noted when the interpreter went down."""
    found = dict(ends)
    for rank, log in recording.ranks.items():
        known = found.get(rank)
        leaving = list(log.noted(Exiting))
        if (known is not None and (known.exit_code is not None or known.signal)) or not log.process.is_of_this_machine:
            continue
        if log.process.lives_here and is_alive(log.pid):
            continue
        if leaving:
            code = 1 if leaving[-1].after_exception else 0 if end.exit_code == 0 else None
            found[rank] = RankEnd(code, at_ns=leaving[-1].at_ns)
        elif known is None:
            found[rank] = RankEnd(None)
    return found


def _entry_where_autoload_is_off() -> dict[str, str]:
    """The probe's other entry point: torch does not open the first one under TORCH_DEVICE_BACKEND_AUTOLOAD=0."""
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") != "0":
        return {}
    door = Path(__file__).parent.parent / "probe" / "seam_path"
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(door), os.environ.get("PYTHONPATH"))))}
