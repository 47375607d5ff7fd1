"""How each rank ended, and whether by itself: the first one to go is the cause, those that fail for lack of a peer are not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from distdoctor.diagnosis.facts.collectives import Collectives
from distdoctor.diagnosis.facts.timeline import Timeline
from distdoctor.recording.clue import Clue, ClueKind
from distdoctor.recording.job_log import TORCHS_KINDS
from distdoctor.recording.recording import ASK_TO_END, RankEnd, Recording, SourceLine
from distdoctor.recording.trace.events import Exiting, GroupDestroyed, UncaughtException
from distdoctor.recording.trace.layout import CallFlag

# Words of exceptions that ranks raise because another rank is gone or late (gloo, NCCL, c10d's store; torch 2.11-2.15).
_FOR_LACK_OF_A_PEER = re.compile(
    r"""
    Connection\ (closed|reset)\ by\ (remote\ )?peer | Connection\ refused | Broken\ pipe | Software\ caused\ connection\ abort
    | Timed\ out\ waiting | Application\ timeout | wait\ timeout | Socket\ Timeout | timed\ out\ after
    | Watchdog\ caught\ collective | NCCL\ (error|communicator\ was\ aborted) | ncclRemoteError | ncclSystemError
    | DistBackendError | DistNetworkError | DistStoreError | monitoredBarrier | failed\ to\ pass\ monitored
    | gloo::(IoException|TimeoutException) | \[.*gloo/transport/ | op\.preamble\.length | sendBytes\ failed | recvValue\ failed
    | Rank\ \d+\ (successfully\ reached|failed\ to)
    """,
    re.VERBOSE | re.IGNORECASE,
)
# What NCCL or the store refuses to the caller itself, although torch raises it as it raises a lost peer.
_REFUSED = re.compile(r"ncclInvalid(Usage|Argument)|Duplicate GPU detected|EADDRINUSE|address already in use")
_TIMED_OUT = re.compile(r"Timed out|timed out|timeout|Timeout|failed to pass monitored|Watchdog caught")
_BY_THE_USER = ("KeyboardInterrupt", "SystemExit", "SignalException")
# What torch's backends and its store raise (torch 2.11-2.15), as opposed to Python's ConnectionError or an HTTP library's.
# Python's own error of a pipe that nobody reads any more (stdout, a logger, a worker): torch's backends raise other kinds.
_OWN_PIPE = "BrokenPipeError"
GRACE_NS = 1_000_000_000  # between the interpreter's last words and the moment at which the launcher knows how it ended
ASKED_NS = 10_000_000_000  # within which a rank leaves that was asked to; a scheduler goes host by host
SIGABRT, SIGKILL = 6, 9
CRASHES = frozenset({4, SIGABRT, 7, 8, 11})  # what a process does to itself: SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV

_WITHOUT_A_PEER = (ClueKind.PEER_GONE, ClueKind.TIMED_OUT, ClueKind.WAITED)

RAISED, SIGNALLED, LEFT, EXITED, ENDED, VANISHED = "raised", "signalled", "left", "exited", "was ended", "vanished"


_END_OF = "end of rank"


def end_of(rank: int) -> str:
    """The key of an incident that is the end of a rank, for findings that explain it."""
    return f"{_END_OF} {rank}"


def is_end(key: str) -> bool:
    """Whether this is the key of an incident that is the end of a rank."""
    return key.startswith(_END_OF)


@dataclass(frozen=True)
class Ending:
    """How a rank ended. `how`: it RAISED, was SIGNALLED, LEFT in order (0), EXITED with another code, WAS ENDED by the launcher,
    or VANISHED: nobody saw its end, its log stops, and others lost it. A rank that LEFT with a `signal` crashed after that.

    `words` are the exception's; `victim`: it failed because of another rank, as far as its own words go, or those of an exception
    that it was handling. `at_ns` is wall time.
    """

    rank: int
    how: str
    at_ns: int
    words: str = ""
    site: SourceLine = field(default_factory=SourceLine)
    exit_code: int | None = None
    signal: int = 0
    victim: bool = False
    traceback: str = ""
    gave_up: bool = False  # one that exited without words waited for long enough: nobody had gone before it
    printed: bool = False  # a log says so, and nothing else
    after: tuple[str, ...] = ()  # the words of the exceptions that were being handled when it was raised

    @property
    def is_failure(self) -> bool:
        """It failed by itself, and nobody asked it to."""
        return self.how in (RAISED, SIGNALLED, EXITED, VANISHED) and not self.victim

    @property
    def timed_out(self) -> bool:
        """It gave up waiting for a peer, which need not have been gone."""
        return self.gave_up or (self.victim and any(map(_TIMED_OUT.search, (self.words, *self.after))))

    @property
    def kind(self) -> str:
        """`ValueError`; "" without an exception."""
        return self.words.partition(":")[0].rpartition(".")[2]


def endings(facts: Collectives) -> dict[int, Ending]:
    """How those ranks ended whose end is certain."""
    recording = facts.recording
    found = {}
    trouble_ns = _first_trouble_ns(facts)
    for rank in sorted(recording.ranks.keys() | recording.job.ends.keys() | raised_in_log(recording).keys()):
        ending = _ending(facts, rank, facts.timelines.get(rank), trouble_ns)
        if ending is not None:
            found[rank] = replace(ending, printed=bool(recording.clues) and rank not in recording.ranks)
    unexplained = not (recording.job.running or recording.job.interrupted or recording.missing)
    if unexplained and any(ending.victim for ending in found.values()):
        silent = [rank for rank in recording.ranks if rank not in found]
        first = min((e for e in found.values() if e.victim), key=lambda e: e.at_ns)
        if len(silent) == 1 and not first.timed_out and not any(ending.is_failure for ending in found.values()):
            timeline = facts.timelines[silent[0]]
            found[silent[0]] = Ending(silent[0], VANISHED, timeline.wall(timeline.last_ns))
    return found


def _says_so(recording: Recording, rank: int) -> bool:
    """Whether a rank of which there is no trace may have ended for lack of a peer: a log beside dumps has its words, if any."""
    if not (recording.clues and recording.ranks):
        return True
    mine = [one for one in recording.clues if one.rank == rank]
    return any(one.kind in _WITHOUT_A_PEER or lacks_a_peer(one.words) for one in mine)


def raised_in_log(recording: Recording) -> dict[int, Clue]:
    """By rank the exception with which it ended, as a log beside dumps says of ranks that left none."""
    raised = (one for one in recording.clues if one.kind is ClueKind.EXCEPTION and recording.ranks)
    return {one.rank: one for one in raised if one.rank >= 0 and one.rank not in recording.ranks}


def _first_trouble_ns(facts: Collectives) -> int:
    """When the first rank failed, on the wall clock; 0 when none did."""
    ends = facts.recording.job.ends
    times = []
    for rank, timeline in facts.timelines.items():
        times += [timeline.wall(raised.at_ns) for raised in timeline.log.noted(UncaughtException)]
        end = ends.get(rank)
        if end is not None and end.at_ns and not end.ended_by_launcher and (end.exit_code or end.signal):
            times.append(timeline.wall(end.at_ns))
    return min(times, default=0)


def lacks_a_peer(words: str) -> bool:
    """Whether an exception `Type: message` says that another rank is gone or late."""
    return bool(_FOR_LACK_OF_A_PEER.search(words)) and not (words.startswith(_OWN_PIPE) or _REFUSED.search(words))


def _is_torchs(words: str) -> bool:
    """Whether an exception that a program turned into one of its own is torch's about a lost peer, and no other connection's."""
    return words.partition(":")[0] in TORCHS_KINDS and lacks_a_peer(words)


def _ending(facts: Collectives, rank: int, timeline: Timeline | None, trouble_ns: int) -> Ending | None:
    recording = facts.recording
    end = recording.job.ends.get(rank)
    exiting = next(timeline.log.noted(Exiting), None) if timeline else None
    raised = next(timeline.log.noted(UncaughtException), None) if timeline else None
    # Without a log the clock of the only host there is; on several hosts its time stays unknown.
    clock = timeline or (next(iter(facts.timelines.values()), None) if facts.one_host else None)
    offset = clock.log.monotonic_to_wall_ns if clock else 0
    at_ns = end.at_ns + offset if end is not None and end.at_ns and offset else 0
    moments = [one.at_ns for one in (raised, exiting) if one is not None]
    asked_ns = recording.job.interrupted_ns if facts.one_host else 0
    if moments and 0 < asked_ns <= min(moments):  # with whom the others have then lost a peer
        return Ending(rank, ENDED, at_ns, exit_code=end.exit_code if end else None, signal=end.signal if end else 0)
    if raised is not None and timeline is not None:
        words, at_wall_ns = raised.words, timeline.wall(raised.at_ns)
        victim = (lacks_a_peer(words) or any(map(_is_torchs, raised.errors[1:]))) and _was_waiting(timeline)
        code = end.exit_code if end else None
        if words.startswith(_BY_THE_USER) and not _of_its_own(facts, rank):
            return Ending(rank, ENDED, at_wall_ns, words, raised.site, code)
        kept = raised.traceback_file
        after = raised.errors[1:]
        return Ending(rank, RAISED, at_wall_ns, words, raised.site, code, victim=victim, traceback=kept, after=after)
    # The interpreter takes a while to go down: the launcher's signal may meet a rank that has left before anything else happened.
    if (
        exiting is not None
        and timeline is not None
        and not exiting.after_exception
        and _left_at(timeline, exiting.at_ns) < trouble_ns
        and not _was_asked_to_leave(facts, timeline, end, exiting)
    ):
        mine = end if end is not None and not end.ended_by_launcher else None
        code = mine.exit_code if mine is not None else None
        if not code:
            died_of = mine.signal if mine is not None and mine.signal in CRASHES else 0
            return Ending(rank, LEFT, timeline.wall(exiting.at_ns), exit_code=code, signal=died_of)
    if timeline is None and rank in raised_in_log(recording):  # it died before it could dump
        clue = raised_in_log(recording)[rank]
        code = end.exit_code if end else None
        return Ending(rank, RAISED, at_ns, clue.words, clue.site, code, victim=lacks_a_peer(clue.words))
    if end is not None:
        asked = bool(recording.job.interrupted) and end.signal in ASK_TO_END  # by whoever asked another host's launcher
        if asked or end.ended_by_launcher or (exiting is None and _may_be_its_parents_doing(facts, rank, end)):
            return Ending(rank, ENDED, at_ns, exit_code=end.exit_code, signal=end.signal)
        if end.signal:
            aborted = end.signal == SIGABRT and timeline is not None and timeline.failed_call is not None
            return Ending(rank, SIGNALLED, at_ns, exit_code=end.exit_code, signal=end.signal, victim=aborted)
        if end.exit_code:
            # What it said last is lost with its log: it may as well have failed for lack of a peer.
            lacked = _says_so(recording, rank) if timeline is None else _lacked_a_peer(facts, timeline)
            gave_up = lacked and timeline is not None and not _others_had_ended(facts, rank, at_ns)
            return Ending(rank, EXITED, at_ns, exit_code=end.exit_code, victim=lacked, gave_up=gave_up)
        if end.exit_code == 0:
            return Ending(rank, LEFT, at_ns, exit_code=0)
    if exiting is not None and timeline is not None:
        patience = GRACE_NS if recording.job.running and rank not in recording.job.ends else 0
        if recording.job.read_at_ns - exiting.at_ns >= patience or not recording.job.running:
            return Ending(rank, EXITED if exiting.after_exception else LEFT, timeline.wall(exiting.at_ns))
    if end is not None:
        return Ending(rank, ENDED, at_ns)
    return None


def _lacked_a_peer(facts: Collectives, timeline: Timeline) -> bool:
    """Whether a rank that exited did so out of a call: an exception came out of its last one and was caught (`sys.exit(1)`), or
    it was still inside (a watchdog of its own ended it) and others have never come there."""
    call = timeline.failed_call
    group = facts.group_of(call) if call is not None else None
    if call is None or call.flags & CallFlag.FAILED:
        return call is not None
    return group is not None and any(track.count < call.number for track in group.tracks.values())


def _others_had_ended(facts: Collectives, rank: int, at_ns: int) -> bool:
    """Whether another rank had ended, or was going down, before that moment of wall time."""
    for other, timeline in facts.timelines.items():
        end = facts.recording.job.ends.get(other)
        gone = [one.at_ns for kind in (UncaughtException, Exiting) for one in timeline.log.noted(kind)]
        gone += [end.at_ns] if end is not None and end.at_ns else []
        if other != rank and any(timeline.wall(moment) < at_ns for moment in gone):
            return True
    return False


def _was_asked_to_leave(facts: Collectives, timeline: Timeline, end: RankEnd | None, exiting: Exiting) -> bool:
    """Whether a rank left in order because the job was ended from outside: a handler of its own hears SIGTERM and leaves, and
    peers that have not been asked yet fail for lack of it. Who had left long before did so unasked."""
    if not facts.recording.job.interrupted or end is None or not end.ended_by_launcher:
        return False
    return timeline.wall(end.at_ns) - _left_at(timeline, exiting.at_ns) < ASKED_NS


def _may_be_its_parents_doing(facts: Collectives, rank: int, end: RankEnd) -> bool:
    """Whether a launcher other than ours may have ended a rank whose work was done: the job still runs, so that its own exit code
    does not tell yet, the rank noted no end of its own in Python, and nobody is in a call or has had one fail."""
    job, timeline = facts.recording.job, facts.timelines.get(rank)
    if not job.running or job.launcher == "torchrun" or timeline is None:
        return False
    if end.signal in CRASHES or end.killed_for_memory or not (end.exit_code or end.signal):
        return False
    calls = [one.last_call for one in facts.timelines.values()]
    failed = any(one.failed_call is not None for one in facts.timelines.values())
    return not failed and all(call is None or bool(call.returned_ns) for call in calls)


def _of_its_own(facts: Collectives, rank: int) -> bool:
    """Whether only this rank was interrupted, and not because somebody ended the job: then nobody but it knows why."""
    job, logs = facts.recording.job, facts.recording.ranks
    end = job.ends.get(rank)
    if job.interrupted or job.running or end is None or end.ended_by_launcher or len(logs) < 2:
        return False
    said = (raised.words for other, log in logs.items() if other != rank for raised in log.noted(UncaughtException))
    return not any(words.startswith(_BY_THE_USER) for words in said)


def _left_at(timeline: Timeline, exiting_ns: int) -> int:
    """When a rank that went down in order had said goodbye to its groups, on the wall clock."""
    last = timeline.last_call.entered_ns if timeline.last_call else 0
    farewells = [one.at_ns for one in timeline.log.noted(GroupDestroyed) if one.at_ns > last and not one.key]
    return timeline.wall(min([exiting_ns, *farewells]))


def _was_waiting(timeline: Timeline) -> bool:
    """Whether the exception can have come out of a communication: a rank that has issued no call fails for its own reasons."""
    return timeline.last_call is not None or bool(len(timeline.log.events))


def failures(found: dict[int, Ending]) -> Iterator[Ending]:
    """The ranks that failed by themselves, the first one first."""
    yield from sorted((e for e in found.values() if e.is_failure), key=lambda e: (e.at_ns or 1 << 63, e.rank))
