"""One job from start to end: record it, watch it, end it where asked, and examine what it left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.finding import CERTAIN, ERROR, Finding
from distdoctor.errors import DoctorError, NothingToInspect
from distdoctor.launch.ends import Ends
from distdoctor.launch.last_lines import LastLines
from distdoctor.launch.new_run_folder import write_whole
from distdoctor.launch.observed_agent import AgentEnd, run_agent
from distdoctor.launch.other_launcher import run_command
from distdoctor.launch.post_mortem import diagnose, read_whole, with_what_was_seen_live
from distdoctor.launch.processes import is_alive
from distdoctor.launch.torchrun_arguments import parse
from distdoctor.launch.watch import Watcher
from distdoctor.plugins import Plugins
from distdoctor.recording.recording import Job, RankEnd, Recording, SourceLine
from distdoctor.recording.trace.layout import EventKind, site_text
from distdoctor.recording.trace.reader import read_trace
from distdoctor.recording.trace.run_folder import JOB_FILE, job_to_json, read_job, socket_paths, trace_paths

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
    """How to go about it. `on_hang` is report, abort or wait; `streams` None records everything."""

    folder: Path
    on_hang: str = "report"
    streams: frozenset[str] | None = None
    ignored: frozenset[str] = frozenset()
    tell: Callable[[Finding, Diagnosis], None] = lambda finding, diagnosis: None
    notice: Callable[[str], None] = lambda words: None
    closer: Callable[[], Recording | None] | None = None  # a recording with the stacks of all ranks, while they run
    stop_on: frozenset[str] = frozenset()  # codes of findings that end the job once they are certain
    lines: Callable[[], Mapping[int, SourceLine]] = dict  # the user's line at which each rank is, while they run
    afterwards: Callable[[], None] = lambda: None  # called when every rank has ended, before the recording is read


@dataclass(frozen=True)
class Outcome:
    """What came of it. `interrupted` is the signal that ended the job from outside, 0 for none."""

    recording: Recording
    diagnosis: Diagnosis
    hung: bool
    interrupted: int


@dataclass
class _State:
    """What the threads share while the job runs."""

    world_size: int = 0
    over: bool = False
    aborting: bool = False
    exit_codes: dict[int, Callable[[int], int | None]] = field(default_factory=dict)


class RunningJob:
    """The launch, its watcher and its ranks' ends, put together; `run` is called once, in the main thread."""

    def __init__(self, launch: Launch, orders: RunOptions, plugins: Plugins) -> None:
        self.launch, self.orders, self.plugins = launch, orders, plugins
        self.state = _State()
        self.launcher_pid = 0
        self.ends = Ends()
        self.last_lines = LastLines(self.ends.memory_left, orders.lines)
        checks = [check for code, check in plugins.checks.items() if not {code, check.slug} & orders.ignored]
        self.watcher = Watcher(
            orders.folder,
            self.job,
            checks,
            plugins.remedies,
            tell=self._tell,
            hung=self._hung,
            new_trace=self._new_trace if launch.command else None,
            closer=orders.closer,
            ignored=orders.ignored,
        )

    def job(self) -> Job:
        """The job as it is known at this moment."""
        return Job(
            argv=self.launch.argv,
            world_size=self.state.world_size,
            ends=self.ends.seen(),
            running=not self.state.over,
            launcher=self.launch.command[0] if self.launch.command else "torch elastic",
            strategy=self.launch.strategy,
        )

    def run(self) -> Outcome:
        """Start the job, come back when every rank has ended and has been examined."""
        self._write(self.job())
        self.watcher.start()
        self.last_lines.start()
        end = AgentEnd(1)
        try:
            end = self._launch()
        finally:
            self._end_leftovers()
            self.watcher.stop()
            self.state.over = True
            ends = self._ends_for_good(end)
            job = replace(self.job(), ends=ends, exit_code=end.exit_code)
            self._write(job)
            self._remove_sockets()
        self.orders.afterwards()
        return self._examined(job, end)

    # What the agent tells (Observer).

    def started(self, pids: dict[int, int], world_size: int, exit_code_of: Callable[[int], int | None]) -> None:
        self.state.world_size = world_size
        self.state.exit_codes = dict.fromkeys(pids, exit_code_of)
        self.watcher.closing = False
        self.ends.watch(pids)
        self._write(self.job())

    def closing(self) -> None:
        """Look once more before the survivors are ended: what they wait for shows who is to blame."""
        self.watcher.closing = True
        self.ends.closing()
        if self.ends.alive() and not self.state.aborting:
            self.watcher.look(tell=False)

    # Inside.

    def _launch(self) -> AgentEnd:
        seam = {"DISTDOCTOR_RUN": str(self.orders.folder), **_door_where_autoload_is_off()}
        if self.orders.streams is not None:
            seam["DISTDOCTOR_STREAMS"] = ",".join(sorted(self.orders.streams))
        if self.launch.command:
            return run_command(self.launch.command, {**os.environ, **seam}, self._launcher_started)
        with _environment(seam):
            return run_agent(parse(self.launch.options, self.launch.script), self)

    def _launcher_started(self, pid: int) -> None:
        self.launcher_pid = pid

    def _new_trace(self, rank: int, path: Path) -> None:
        """A rank of another launcher has shown itself: watch its process, if it lives on this host."""
        try:
            head = read_trace(path, only=frozenset()).head
        except DoctorError:
            return
        self.state.world_size = max(self.state.world_size, head.world_size)
        if head.host == socket.gethostname()[:63]:
            self.ends.watch({rank: head.pid})

    def _tell(self, finding: Finding, diagnosis: Diagnosis) -> None:
        if self.orders.on_hang != "wait":
            self.orders.tell(finding, diagnosis)
        if finding.code in self.orders.stop_on and finding.confidence == CERTAIN and not self.state.aborting:
            self.orders.notice(f"{finding.code} is certain: ending the ranks (--stop-on)")
            self._start_abort()

    def _hung(self, diagnosis: Diagnosis) -> None:
        if self.orders.on_hang == "abort":
            self.orders.notice("the job hangs: ending its ranks (--on-hang abort)")
            self._start_abort()
        elif self.orders.on_hang == "report":
            self.orders.notice("the job hangs; it is left alone (--on-hang report), Ctrl-C ends it and examines it")

    def _start_abort(self) -> None:
        """End the job from a thread of its own: the watcher goes on looking."""
        self.state.aborting = True
        threading.Thread(target=self._abort, name="distdoctor-abort", daemon=True).start()

    def _abort(self) -> None:
        """End the job as Ctrl-C would, then whoever does not listen. Torch's agent would restart ranks that only died."""
        self.ends.closing()
        if self.launcher_pid or callable(signal.getsignal(signal.SIGTERM)):  # else --signals-to-handle left SIGTERM out
            os.kill(self.launcher_pid or os.getpid(), signal.SIGTERM)
        else:
            self.ends.signal(signal.SIGTERM)
        deadline = time.monotonic() + GRACE_SECONDS
        while self.ends.alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        self.ends.signal(signal.SIGKILL)

    def _end_leftovers(self) -> None:
        """The launcher is gone: a rank that outlives it holds ports and devices and belongs to nobody."""
        if not self.ends.alive():
            return
        self.ends.closing()
        for number, patience in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, GRACE_SECONDS)):
            self.ends.signal(number)
            deadline = time.monotonic() + patience
            while self.ends.alive() and time.monotonic() < deadline:
                time.sleep(0.02)

    def _remove_sockets(self) -> None:
        """Those of this host's ranks: nobody answers there any more, and copying a folder stumbles over them."""
        traces, here = trace_paths(self.orders.folder), socket.gethostname()[:63]
        for rank, path in socket_paths(self.orders.folder).items():
            with contextlib.suppress(OSError, DoctorError):
                if rank in traces and read_trace(traces[rank], only=frozenset()).head.host == here:
                    path.unlink()

    def _ends_for_good(self, end: AgentEnd) -> dict[int, RankEnd]:
        for rank, code_of in self.state.exit_codes.items():
            code = code_of(rank)
            if code is not None:
                self.ends.correct(rank, exit_code=code if code >= 0 else None, signal=max(-code, 0))
        lines = self.last_lines.stop()
        ends = {rank: _with_line(one, lines.get(rank)) for rank, one in self.ends.stop().items()}
        return _ended_by_another_launcher(ends) if self.launch.command else ends

    def _write(self, job: Job) -> None:
        others = read_job(self.orders.folder)  # launchers of other nodes may share the folder
        if others is not None:
            code = job.exit_code or others.exit_code or job.exit_code
            job = replace(job, ends=_merged(others.ends, job.ends), exit_code=code)
        fields = json.loads(job_to_json(job))
        if self.orders.streams is not None:
            fields["streams"] = sorted(self.orders.streams)
        write_whole(self.orders.folder / JOB_FILE, json.dumps(fields, indent=1))

    def _examined(self, job: Job, end: AgentEnd) -> Outcome:
        try:
            recording = read_whole(self.orders.folder)
        except NothingToInspect:
            recording = Recording(job, {}, streams=frozenset())
        ends = _merged(recording.job.ends, _with_exit_events(job.ends, recording, end))
        recording = replace(recording, job=replace(job, ends=ends))
        self._write(recording.job)
        diagnosis = diagnose(recording, self.plugins.checks, self.plugins.remedies, self.orders.ignored)
        if self.watcher.is_hung or not diagnosis.at_least(ERROR):
            diagnosis = with_what_was_seen_live(diagnosis, self.watcher.hang or self.watcher.last)
        return Outcome(recording, diagnosis, self.watcher.is_hung, 0 if self.state.aborting else end.signal)


def _merged(known: Mapping[int, RankEnd], news: Mapping[int, RankEnd]) -> dict[int, RankEnd]:
    """The ends from two sources; who saw how a rank ended wins over who only saw that it did."""
    unseen = {rank for rank, end in news.items() if end.exit_code is None and not end.signal and rank in known}
    return {**known, **{rank: end for rank, end in news.items() if rank not in unseen}}


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


def _with_exit_events(ends: Mapping[int, RankEnd], recording: Recording, end: AgentEnd) -> dict[int, RankEnd]:
    """The ends, completed by what the ranks themselves noted when the interpreter went down."""
    found = dict(ends)
    for rank, log in recording.ranks.items():
        known = found.get(rank)
        leaving = log.events[log.events["kind"] == EventKind.EXITING]
        if (known is not None and (known.exit_code is not None or known.signal)) or is_alive(log.pid):
            continue
        if len(leaving):
            failed = bool(leaving["a"][-1])
            code = 1 if failed else 0 if end.exit_code == 0 else None
            found[rank] = RankEnd(code, at_ns=int(leaving["at_ns"][-1]))
        elif known is None and log.host == socket.gethostname()[:63]:
            found[rank] = RankEnd(None)
    return found


def _door_where_autoload_is_off() -> dict[str, str]:
    """The probe's other door: torch does not open the first one under TORCH_DEVICE_BACKEND_AUTOLOAD=0."""
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") != "0":
        return {}
    door = Path(__file__).parent.parent / "probe" / "seam_path"
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(door), os.environ.get("PYTHONPATH"))))}


class _environment:
    """Variables for the ranks: torch's agent hands its own environment on to them."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables
        self._before: dict[str, str | None] = {}

    def __enter__(self) -> None:
        self._before = {name: os.environ.get(name) for name in self._variables}
        os.environ.update(self._variables)

    def __exit__(self, *_: object) -> None:
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
