"""One job from start to end: record it, watch it, end it where asked, and have examined what it left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from distdoctor.errors import DoctorError
from distdoctor.launch.corrected_ends import ended_by_another_launcher, with_line, without_the_asked
from distdoctor.launch.ends import Ends, asked_from_outside
from distdoctor.launch.environment import entry_where_autoload_is_off, environment
from distdoctor.launch.exchange import Exchange
from distdoctor.launch.finished_job import FinishedJob
from distdoctor.launch.forced_end import ForcedEnd, end_leftovers
from distdoctor.launch.job_state import JobState
from distdoctor.launch.last_lines import LastLines
from distdoctor.launch.live_findings import LiveFindings
from distdoctor.launch.observed_agent import AgentEnd, run_agent
from distdoctor.launch.other_hosts import OtherHosts
from distdoctor.launch.other_launcher import run_command
from distdoctor.launch.own_record import OwnRecord
from distdoctor.launch.own_traces import OwnTraces
from distdoctor.launch.presence import Presence
from distdoctor.launch.processes import descends_from, this_process
from distdoctor.launch.rendezvous import Rendezvous
from distdoctor.launch.run_options import Launch, Outcome, RunOptions
from distdoctor.launch.signals_heard import SignalsHeard, finishing
from distdoctor.launch.suppressions import is_named
from distdoctor.launch.torchrun_arguments import parse
from distdoctor.launch.watch import OtherHostsSeen, Watcher
from distdoctor.plugins import Plugins
from distdoctor.recording.recording import Job, RankEnd
from distdoctor.recording.trace.host_file import TORCH_ELASTIC, HostFile
from distdoctor.recording.trace.probe_settings import ProbeSettings
from distdoctor.recording.trace.process_key import started_at
from distdoctor.recording.trace.reader import TraceHead, read_head
from distdoctor.recording.trace.redaction import redacted_arguments
from distdoctor.recording.trace.run_folder import seals_of, socket_paths, trace_paths, unused_attempt


class RunningJob:
    """The launch, its watcher and its ranks' ends, put together; `run` is called once, in the main thread."""

    def __init__(self, launch: Launch, options: RunOptions, plugins: Plugins) -> None:
        self.launch, self.options, self.plugins = launch, options, plugins
        self.state = JobState()
        self._of_other_launchers: set[int] = set()  # ranks on this host that another task of our step has started
        self._first_unused = 0  # start that the folder did not hold when we came
        self._finishing = threading.Lock()
        self._end: AgentEnd | None = None
        self.ends = Ends()
        self.rendezvous = Rendezvous(options.notice, lambda: unused_attempt(options.folder))
        self.exchange = Exchange(self.rendezvous)
        self.presence = Presence(self.rendezvous, this_process(), self._hosts_changed)
        self.record = OwnRecord(options.folder, self._host_file(), self.state, self.rendezvous, options.notice)
        self.others = OtherHosts(
            self.rendezvous,
            self.exchange,
            self.presence,
            self.state,
            options.folder,
            self.record.host.name,
            options.notice,
        )
        self.forced_end = ForcedEnd(
            self.ends,
            self.state,
            self.exchange,
            lambda: self.state.over or self._finishing.locked(),
            self._leave if options.leave is not None else None,
        )
        self.last_lines = LastLines(self.ends.memory_left, options.lines)
        self.watcher = self._watcher()
        self.own_traces = OwnTraces(options.folder, self._is_ours, self._new_trace)

    def _host_file(self) -> HostFile:
        return HostFile(
            this_process(),
            tuple(redacted_arguments(self.launch.argv)),
            self.launch.command[0] if self.launch.command else TORCH_ELASTIC,
            self.launch.strategy,
            self.options.probe.noted_streams,
            self.options.hosts,
            task=self.options.task,
        )

    def _watcher(self) -> Watcher:
        options, plugins = self.options, self.plugins
        checks = [check for code, check in plugins.checks.items() if not is_named(code, check.slug, options.ignored)]
        live = LiveFindings(options, self.state, self._keep_what_was_seen, self.forced_end.start)
        return Watcher(
            options.folder,
            self.job,
            checks,
            plugins.remedies,
            tell=live.tell,
            hung=live.hung,
            still=live.still,
            withdrawn=live.withdrawn,
            hang_after=options.hang_after,
            new_trace=self._new_trace if self.launch.command else None,
            closer=options.closer,
            ignored=options.ignored,
            has_begun=lambda: bool(self.launch.command) or self.state.begun,
            hosts=OtherHostsSeen(
                seen=self.others.with_what_they_see,
                moving=self.others.take_back,
                resting=self.presence.rests,
                agreed=self.others.agreed,
                share=self.others.share,
                ranks=lambda: self.others.ranks_to_read,
            ),
        )

    def job(self) -> Job:
        """The job as it is known at this moment, on this host."""
        over = self.state.over
        now = without_the_asked(self.ends.seen(), self.state.signal, self.state.signal_ns) if not over else {}
        return Job(
            argv=self.record.host.argv,
            world_size=self.state.world_size,
            ends=self.state.starts[self.state.attempt].ends if over else now,
            running=not over,
            launcher=self.record.host.launcher,
            strategy=self.launch.strategy,
            attempt=self.state.attempt,
            hosts=self.record.hosts,
            interrupted=self.state.signal,
            interrupted_ns=self.state.signal_ns,
            lost=self.state.lost if over else self.presence.lost(),
        )

    @property
    def exit_code(self) -> int | None:
        """That of the job; None while it runs."""
        return self._end.exit_code if self._end is not None else None

    def run(self) -> Outcome:
        """Start the job, come back when every rank has ended and has been examined."""
        self._first_unused = unused_attempt(self.options.folder)
        self.record.write()
        if self.options.task > 0:
            self.own_traces.start()
        else:
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
        self.options.afterwards()
        finished = FinishedJob(
            self.launch,
            self.options,
            self.plugins,
            self.state,
            self.record,
            self.watcher,
            self.others,
            self.presence,
            self._first_unused,
        )
        return finished.examine(job, end)

    def _over(self, end: AgentEnd) -> Job:
        """Nobody of ours runs any more, and how each rank ended is written down."""
        self.state.lost = self.presence.lost()
        self.presence.ending()
        end_leftovers(self.ends, self._of_other_launchers)
        self.own_traces.stop()
        self.watcher.stop(succeeded=end.exit_code == 0)
        self.state.over = True
        self.state.signal = 0 if self.state.aborting else end.signal or self.state.signal
        self.state.keep_start(self._ends_for_good(end))
        self.record.write(running=False, exit_code=end.exit_code, digests=seals_of(self.options.folder))
        _remove_sockets(self.options.folder)
        return replace(self.job(), exit_code=end.exit_code, interrupted=self.state.signal)

    def _leave(self, end: AgentEnd) -> None:
        """Report from a thread that is not the main one, and end this process."""
        assert self.options.leave is not None
        self.options.leave(self._finish(end))

    # What the agent tells (AgentObserver).

    def starting(self, attempt: int) -> dict[str, str]:
        return self._hand_over(replace(self.options.probe, attempt=attempt))

    def started(
        self, attempt: int, pids: dict[int, int], world_size: int, exit_code_of: Callable[[int], int | None]
    ) -> None:
        if self.state.exit_codes:  # a restart: how the ranks of the start before ended is kept
            self.state.keep_start(self._corrected())
            self.watcher.start_again()
        self.state.world_size, self.state.attempt = world_size, attempt
        self.state.exit_codes = dict.fromkeys(pids, exit_code_of)
        self.watcher.closing = False
        self.ends.watch(pids, anew=True)
        self.state.keep_start({})
        self.record.write()
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
        ends_hangs = self.options.on_hang == "abort" or self.options.stop_on
        if ends_hangs and not (self.state.aborting or self.state.signal) and self.exchange.was_ended:
            self.options.notice("the job hangs: another host has ended it")
            self.forced_end.start()

    # Inside.

    def _launch(self) -> AgentEnd:
        seam = entry_where_autoload_is_off()
        if self.launch.command:
            handed = self._hand_over(self.options.probe)
            return run_command(self.launch.command, {**os.environ, **seam, **handed}, self._launcher_started)
        with environment(seam):
            return run_agent(parse(self.launch.options, self.launch.script), self, self.rendezvous)

    def _hand_over(self, settings: ProbeSettings) -> dict[str, str]:
        """Write down how the ranks are to be recorded; the variable that tells them where."""
        try:
            return settings.hand_over(self.options.folder, self.record.host.name.replace("host-", "probe-", 1))
        except OSError as trouble:
            self.options.notice(f"{self.options.folder} takes nothing ({trouble.strerror}): the ranks are not recorded")
            return {}

    def _launcher_started(self, pid: int) -> None:
        self.state.launcher_pid, self.state.launcher_began = pid, started_at(pid)

    def _new_trace(self, rank: int, path: Path) -> bool:
        """A rank of another launcher has shown itself: watch its process, if it lives on this host. False: its trace is not whole
        yet."""
        try:
            head = read_head(path)
        except DoctorError:
            return False
        self.state.world_size = max(self.state.world_size, head.world_size)
        if head.attempt > self.state.attempt:
            self.state.keep_start(self._corrected())
            self.watcher.start_again()
            self.state.attempt = head.attempt
        if head.process.lives_here:
            self.ends.watch({rank: head.pid}, started={rank: head.pid_started})
            if self.options.hosts > 1 and not self._is_ours(head):
                self._of_other_launchers.add(rank)
        return True

    def _is_ours(self, head: TraceHead) -> bool:
        """Whether our launcher has started the process that writes a trace."""
        return head.process.lives_here and descends_from(head.pid, self.state.launcher_pid)

    def _heard(self, number: int) -> None:
        """A signal from outside. Torch's agent hands it on to the ranks, unless it stands in a store that does not answer.
        Launchers on other hosts, whose ranks may lose ours before they are asked as well, read of it in our file."""
        if self.state.aborting or (self._end is not None and not self._end.exit_code):
            return
        self.state.signal = self.state.signal or number
        self.state.signal_ns = self.state.signal_ns or time.monotonic_ns()
        self.record.write()
        if not self.launch.command and self.state.exit_codes:
            self.forced_end.see_through(number)

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
        ends = {rank: with_line(one, lines.get(rank)) for rank, one in self.ends.stop().items()}
        ends = ended_by_another_launcher(ends) if self.launch.command else ends
        succeeded = bool(self.launch.command) and not end.exit_code  # then it ended its ranks itself
        if not (self.state.signal or self.state.aborting or succeeded) and asked_from_outside(ends):
            self.state.signal = signal.SIGTERM
        return without_the_asked(ends, self.state.signal, self.state.signal_ns)

    def _keep_what_was_seen(self) -> None:
        self.record.keep_what_was_seen(self.watcher)

    def _hosts_changed(self) -> None:
        """Another host has fallen silent, or is back: the watcher is to say so now."""
        self.watcher.hurry()


def _remove_sockets(folder: Path) -> None:
    """Those of this host's ranks: nobody answers there any more, and copying a folder stumbles over them."""
    traces = trace_paths(folder)
    for rank, path in socket_paths(folder).items():
        with contextlib.suppress(OSError, DoctorError):
            if rank in traces and read_head(traces[rank]).process.is_of_this_machine:
                path.unlink()
