"""What a rank in its own code waits for, by the evidence at hand: a file that the kernel names, a prompt, a lock of a thread."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field

from distdoctor.diagnosis.hang.live.rank_activity import RankActivity, is_at_prompt
from distdoctor.diagnosis.source.prompts import prompt_before
from distdoctor.diagnosis.source.source_file import FunctionNode, SourceFile, dotted, last_word, source_file
from distdoctor.diagnosis.source.store_keys import awaited_key
from distdoctor.recording.source_line import SourceLine
from distdoctor.recording.stacks import FileWait, Frame, ProcessStacks, Stacks, ThreadStack

LOCK_CALLS = ("flock", "fcntl")
KEY_OF_STORE = "key of the store"  # among the facts of an obstacle
_LONGEST_COMMAND = 60  # letters of a command line in a sentence


@dataclass(frozen=True)
class Obstacle:
    """`words` say what is waited for, "" where what the rank does says it; `change` what to do about it, `facts` are evidence.
    `also` are lines of its other threads that belong to it: (line, what is there); `of_others` those of any rank. `place`: the
    line to change, where it is not the rank's.
    """

    words: str
    change: str
    facts: Mapping[str, object] = field(default_factory=dict)
    also: tuple[tuple[SourceLine, str], ...] = ()
    place: SourceLine = field(default_factory=SourceLine)
    of_others: tuple[tuple[SourceLine, str], ...] = ()


def obstacle_of(standing: RankActivity, stacks: Stacks, sources: Mapping[str, str]) -> Obstacle | None:
    """What keeps a rank that stands still; None where the evidence does not name it."""
    process = standing.process
    if process is None:
        return None
    if is_at_prompt(process):
        return _at_prompt(standing.site, sources)
    if process.waits_for is not None and "input(" in standing.line and process.waits_for.call == "read":
        return None  # a prompt, whatever stands behind it
    if process.waits_for is not None:
        return file_obstacle(process, standing.site, stacks)
    return (
        _in_lock(process, sources)
        or _in_store(standing.site, sources)
        or _in_threading(process, standing.site, sources)
    )


# What a function of the standard library that the user's line calls waits for: (end of its file, its name, how many frames of
# that name lie on one another) -> what does not happen, and who has to see to it. Event.wait goes through Condition.wait.
_UNANSWERED = {
    ("/queue.py", "get", 1): ("nothing is put into {}", "whoever fills it"),
    ("/queue.py", "put", 1): ("{} is full, and nothing is taken out of it", "whoever empties it"),
    ("/queue.py", "join", 1): ("not all that was put into {} is marked by task_done()", "whoever empties it"),
    ("/threading.py", "wait", 1): ("nobody notifies {}", "whoever is to notify it"),
    ("/threading.py", "wait", 2): ("nobody sets {}", "whoever is to set it"),
    ("/concurrent/futures/_base.py", "result", 1): ("{} does not come to an end", "what it runs"),
}


def _in_threading(process: ProcessStacks, site: SourceLine, sources: Mapping[str, str]) -> Obstacle | None:
    """What other threads of the process, or its own program, owe a call of the standard library."""
    main = process.main.in_python if process.main is not None else None
    at = next((at for at, frame in enumerate(main.frames if main else ()) if frame.is_users), 0)
    if main is None or not at or (main.frames[at].path, main.frames[at].line) != (site.path, site.line):
        return None
    called = main.frames[at - 1]
    alike = [frame for frame in main.frames[:at] if (frame.path, frame.function) == (called.path, called.function)]
    owed = next(
        (
            one
            for (path, *rest), one in _UNANSWERED.items()
            if called.path.endswith(path) and rest == [called.function, len(alike)]
        ),
        None,
    )
    if owed is None:
        return None
    file = source_file(sources, site.path)
    calls = (node.func for node in file.nodes(ast.Call) if node.lineno == site.line) if file is not None else ()
    name = next((dotted(f.value) for f in calls if isinstance(f, ast.Attribute) and f.attr == called.function), "")
    return Obstacle(
        owed[0].format(f"`{name}`" if name else "it"),
        f"find out why {owed[1]} does not (an exception in its thread, a branch that leaves early), and give the wait at "
        f"{_short(site)} a timeout",
        {"waits in": f"{called.function} of {called.path.rpartition('/')[2]}"},
    )


def _in_store(site: SourceLine, sources: Mapping[str, str]) -> Obstacle | None:
    """A key of a store that does not come."""
    found = awaited_key(sources, site)
    if found is None:
        return None
    key, setters = found
    where = f" (as at {_short(setters[0][0])})" if setters else ""
    return Obstacle(
        f"it waits in the store for the key `{key}`, which does not come",
        f"set that key on every path of whoever answers{where}, or give the wait at {_short(site)} a timeout",
        {KEY_OF_STORE: key},
        of_others=tuple((line, f"sets keys of the store: `{text}`") for line, text in setters),
    )


def file_obstacle(process: ProcessStacks, site: SourceLine, stacks: Stacks) -> Obstacle | None:
    """The file that the kernel holds this process for, at this line; None where it holds it for none."""
    return _in_file(process.waits_for, _short(site), stacks) if process.waits_for is not None else None


def _short(site: SourceLine) -> str:
    return site.short


def _in_file(wait: FileWait, where: str, stacks: Stacks) -> Obstacle | None:
    facts: dict[str, object] = {"system call": wait.call, "file": wait.path, "kind of file": wait.kind}
    if wait.call == "open" and wait.kind == "FIFO":
        return Obstacle(
            f"open() of the FIFO {wait.path} waits for a process that opens its other end",
            f"start what opens the other end of {wait.path} before {where}, or open it there with os.O_NONBLOCK",
            facts,
        )
    if wait.call == "read" and wait.kind in ("FIFO", "terminal", "socket"):
        what = "pipe" if wait.path.startswith("pipe:") else wait.kind
        name = "" if wait.path.startswith(("pipe:", "socket:")) else f" {wait.path}"
        return Obstacle(
            f"it reads from a {what}{name} that brings nothing",
            f"bound the read at {where} (select.select, a timeout of the socket), or do it before the first collective",
            facts,
        )
    if wait.call in LOCK_CALLS:
        return _locked(wait, where, stacks, facts)
    return None


def _locked(wait: FileWait, where: str, stacks: Stacks, facts: dict[str, object]) -> Obstacle:
    holder = next((rank for rank, process in stacks.processes() if process.pid == wait.holder), None)
    command = wait.holder_command[:_LONGEST_COMMAND]
    who = "another process" if not wait.holder else f"pid {wait.holder}" + (f" ({command})" if command else "")
    if holder is not None:
        who = f"rank {holder} (pid {wait.holder})"
        change = f"let rank {holder} release {wait.path} before its next collective, which waits for {where}"
    elif wait.holder:
        change = (
            f"end pid {wait.holder}, or let it release {wait.path}; at {where} ask with LOCK_NB and a limit of time"
        )
    else:
        change = f"find who holds {wait.path} (lslocks, fuser -v {wait.path}); at {where} ask with LOCK_NB and a limit of time"
    return Obstacle(f"the lock on {wait.path} is held by {who}", change, facts | {"lock held by": who})


def lock_keepers(standings: Mapping[int, RankActivity]) -> dict[int, int]:
    """By rank that asks for a file lock, the rank at the end of the chain that holds it. Chains that close name nobody."""
    ranks = {one.process.pid: rank for rank, one in standings.items() if one.process is not None}
    asked = {rank: wait for rank, one in standings.items() if one.process and (wait := one.process.waits_for)}
    held_by = {
        rank: ranks[wait.holder] for rank, wait in asked.items() if wait.call in LOCK_CALLS and wait.holder in ranks
    }
    found = {}
    for rank in held_by:
        chain = [rank]
        while chain[-1] in held_by and chain.count(chain[-1]) == 1:
            chain.append(held_by[chain[-1]])
        if chain[-1] not in held_by:
            found[rank] = chain[-1]
    return found


def forked_lock(worker: ProcessStacks, site: SourceLine, sources: Mapping[str, str]) -> Obstacle | None:
    """The lock that a forked worker waits for, which no thread of its own has taken: it was taken when the worker was forked."""
    made, file = lock_made_at(sources, site), source_file(sources, site.path)
    if made is None or file is None or _in_lock(worker, sources) is not None:
        return None
    name = next((name for name, _, asks in _taken(file, site.line) if asks), "")
    takers = _takers(file, name, site)
    holder = f" (by a thread at {_short(takers[0])}?)" if takers else ""
    return Obstacle(
        f"`{name}` was taken when it was forked, and nobody frees the copy",
        f"start the workers without the locks of this process (multiprocessing_context='forkserver'), or take no lock in them "
        f"that is taken while they are forked{holder}",
        {"lock": name},
        (
            (made, "makes the lock, which a worker inherits as it is when it is forked"),
            *((one, f"takes `{name}` as well") for one in takers[:3]),
        ),
    )


def _takers(file: SourceFile, name: str, site: SourceLine) -> list[SourceLine]:
    """Where else the lock is taken, outside the function of a line; of an attribute, in the same class."""
    around = [one for one in file.path_to(site.line) if isinstance(one, ast.ClassDef)][-1:]
    own, found = file.function_at(site.line), dict[SourceLine, None]()
    for node in file.nodes(ast.With, ast.Expr, ast.Assign):
        function = file.function_at(node.lineno)
        inside = [one for one in file.path_to(node.lineno) if isinstance(one, ast.ClassDef)][-1:] == around
        asks = any(asked and word == name for word, _, asked in _taken(file, node.lineno))
        if asks and function is not own and (inside or not name.startswith("self.")):
            found[SourceLine(site.path, node.lineno, getattr(function, "name", "<module>"))] = None
    return list(found)


def _at_prompt(site: SourceLine, sources: Mapping[str, str]) -> Obstacle:
    asked = prompt_before(sources, site) or site
    return Obstacle(
        "",
        f"remove the breakpoint at {_short(asked)}, or debug one rank with torch.distributed.breakpoint(rank)",
        also=((asked, "opens the prompt"),) if asked != site else (),
        place=asked,
    )


@dataclass(frozen=True)
class _Locking:
    """One thread by its source: the lock that it waits for, at which line, and those that it has taken: name -> line."""

    thread: ThreadStack
    wants: str
    site: SourceLine
    holds: Mapping[str, SourceLine]

    @property
    def name(self) -> str:
        return f"thread {self.thread.name or self.thread.os_id}"


def _in_lock(process: ProcessStacks, sources: Mapping[str, str]) -> Obstacle | None:
    """The thread that has the lock which the main one waits for, and whether it waits for one of the main thread's in turn."""
    threads = [_locking(thread.in_python, sources) for thread in process.threads]
    mine = next((one for one in threads if one is not None and one.thread.os_id == process.pid), None)
    if mine is None or not mine.wants:
        return None
    if mine.wants in mine.holds:
        return _taken_twice(mine, sources)
    other = next((one for one in threads if one is not None and one is not mine and mine.wants in one.holds), None)
    if other is None:
        return None
    taken = other.holds[mine.wants]
    also = ((taken, f"{other.name} takes `{mine.wants}` here"), (other.site, f"{other.name} is here"))
    if other.wants and other.wants in mine.holds:
        return Obstacle(
            f"its threads wait for each other: it holds `{other.wants}` and waits for `{mine.wants}`, which {other.name} holds "
            f"while it waits for `{other.wants}`",
            f"take `{other.wants}` and `{mine.wants}` in one order in all threads: {_short(mine.holds[other.wants])} takes "
            f"`{other.wants}` first, {_short(taken)} takes `{mine.wants}` first",
            {"cycle of locks": [mine.wants, other.wants]},
            also,
        )
    return Obstacle(
        f"`{mine.wants}` is taken by {other.name}, which is at {_short(other.site)}",
        f"release `{mine.wants}` in {other.name} before what it does at {_short(other.site)}, or give the wait at "
        f"{_short(mine.site)} a timeout",
        {"lock": mine.wants, "taken by": other.name},
        also,
    )


def _taken_twice(mine: _Locking, sources: Mapping[str, str]) -> Obstacle | None:
    """A lock that the thread itself has taken in a function above, of the same object as far as the source tells."""
    first, made = mine.holds[mine.wants], lock_made_at(sources, mine.site, ("Lock",))
    file = source_file(sources, mine.site.path)
    if file is None or made is None or first.path != mine.site.path:
        return None
    classes = [[n for n in file.path_to(line) if isinstance(n, ast.ClassDef)] for line in (first.line, mine.site.line)]
    if mine.wants.startswith("self.") and classes[0][-1:] != classes[1][-1:]:
        return None
    return Obstacle(
        f"this thread has taken `{mine.wants}` itself at {_short(first)}, and it is no RLock: it waits for itself",
        f"call what is at {_short(mine.site)} after the `with` of {_short(first)}, or make `{mine.wants}` a threading.RLock "
        f"({_short(made)})",
        {"lock": mine.wants, "taken by": "itself"},
        ((first, f"takes `{mine.wants}`"), (made, "makes the lock"), (mine.site, f"asks for `{mine.wants}` again")),
        place=first,
    )


def _locking(thread: ThreadStack, sources: Mapping[str, str]) -> _Locking | None:
    """What a thread does with locks; None where its source is not known."""
    user = thread.user_frame
    if user is None or source_file(sources, user.path) is None:
        return None
    wants, holds = "", dict[str, SourceLine]()
    for frame in thread.frames:
        file = source_file(sources, frame.path) if frame.is_users else None
        if file is None:
            continue
        for name, line, asked in _taken(file, frame.line):
            if not asked:
                holds.setdefault(name, SourceLine(frame.path, line, frame.function))
            elif _is_innermost(frame, thread):
                wants = name
    return _Locking(thread, wants, user.site, holds)


_LOCKS = ("Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore")


def lock_made_at(sources: Mapping[str, str], site: SourceLine, kinds: Container[str] = _LOCKS) -> SourceLine | None:
    """Where the lock is made that is asked for in a line, if it is one of these kinds, and of threads."""
    file = source_file(sources, site.path)
    if file is None:
        return None
    asked = [name for name, _, asks in _taken(file, site.line) if asks]
    for one in file.nodes(ast.Assign) if asked else ():
        names = {last_word(target) for target in one.targets}
        if (
            asked[-1].rpartition(".")[2] in names
            and isinstance(one.value, ast.Call)
            and last_word(one.value.func) in kinds
            and "multiprocessing" not in file.imports.get(dotted(one.value.func).partition(".")[0], "")
        ):
            function = file.function_at(one.lineno)
            return SourceLine(site.path, one.lineno, getattr(function, "name", "<module>"))
    return None


def _is_innermost(frame: Frame, thread: ThreadStack) -> bool:
    """Whether nothing of Python runs below: what a lock waits in is C."""
    return frame is thread.frames[0]


def _taken(file: SourceFile, line: int) -> Iterator[tuple[str, int, bool]]:
    """(name, line, whether it is being asked for) of every lock around a line: `with lock:`, and `lock.acquire()` at the line."""
    path = file.path_to(line)
    functions = [at for at, node in enumerate(path) if isinstance(node, FunctionNode | ast.Lambda)]
    for node in path[functions[-1] if functions else 0 :]:
        if isinstance(node, ast.With):
            idle = not any(isinstance(inner, ast.Call) for one in node.body for inner in ast.walk(one))
            asked = line < node.body[0].lineno or (idle and line == node.lineno)  # `with lock: pass`
            yield from (
                (dotted(one.context_expr), node.lineno, asked) for one in node.items if dotted(one.context_expr)
            )
        elif isinstance(node, ast.Expr | ast.Assign) and isinstance(node.value, ast.Call):
            function = node.value.func
            if last_word(function) == "acquire" and isinstance(function, ast.Attribute):
                yield dotted(function.value), node.lineno, True
