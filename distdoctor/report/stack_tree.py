"""The stacks of all ranks as one tree, from the outermost frame inwards: where they are together, and where they part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from distdoctor.diagnosis.hang.live.rank_activity import telling_thread
from distdoctor.recording.rank_set import named
from distdoctor.recording.stacks import Frame, Stacks, ThreadStack, is_users_path

Key = tuple[str, str, int]  # path, function, line; the path of a folded run of library frames is ""
LINES = 24
_OUR_SERVER = "pt_workerserver"  # of ranks that distdoctor started; waits for questions
_INNERMOST = 4  # functions shown of a C++ thread


@dataclass
class Node:
    """A frame at which some ranks are; `under` are the frames that they have called from there."""

    key: Key
    ranks: list[int] = field(default_factory=list)
    under: dict[Key, Node] = field(default_factory=dict)


def tree_of(stacks: Stacks) -> Node:
    """The prefix tree of the ranks' telling threads."""
    root = Node(("", "", 0))
    for rank, process in stacks.processes():
        thread = telling_thread(process)
        at = root
        at.ranks.append(rank)
        native = [f for t in process.threads if thread and t.os_id == thread.os_id for f in t.frames if f.is_native]
        inside = [("", f"{frame.function} ({frame.path.rpartition('/')[2]})", 0) for frame in reversed(native[:3])]
        for key in [*folded(thread.frames if thread else ()), *inside]:
            at = at.under.setdefault(key, Node(key))
            at.ranks.append(rank)
    return root


def folded(frames: Sequence[Frame]) -> list[Key]:
    """The frames from the outermost in; of each run of library frames only the function that the user called is kept.

    Library frames outside the first line of the user's are how the process was started, and are left out.
    """
    keys: list[Key] = []
    in_library = False
    for frame in reversed(frames):
        users = is_users_path(frame.path)
        if users:
            keys.append((frame.path, frame.function, frame.line))
        elif keys and not in_library and _says_something(frame):
            keys.append(("", f"{_package(frame.path)} {frame.function}", 0))
        in_library = not users and (in_library or (bool(keys) and _says_something(frame)))
    if not keys:
        return [("", f"{_package(frame.path)} {frame.function}", 0) for frame in reversed(frames)][-3:]
    return keys


def _says_something(frame: Frame) -> bool:
    """Not a wrapper that stands before the function the user called."""
    return (
        "c10d_logger" not in frame.path and "contextlib.py" not in frame.path and frame.function != "decorate_context"
    )


def _package(path: str) -> str:
    """`torch`, `threading`: where a library frame belongs."""
    for folder in ("/site-packages/", "/dist-packages/"):
        if folder in path:
            return path.partition(folder)[2].partition("/")[0].removesuffix(".py")
    return path.rpartition("/")[2].removesuffix(".py")


def render(stacks: Stacks, base: str = "") -> list[str]:
    """The tree as lines: frames that the same ranks share stand on one line, the first fork is marked."""
    root = tree_of(stacks)
    if not root.under:
        return []
    lines = _lines(root, 0, base, [False])
    return (
        lines
        if len(lines) <= LINES
        else [*lines[: LINES - 1], f"  and {len(lines) - LINES + 1} more lines (--json has all)"]
    )


def _lines(node: Node, depth: int, base: str, forked: list[bool]) -> list[str]:
    chain: list[Node] = []
    at = node
    while len(at.under) == 1 and len(next(iter(at.under.values())).ranks) == len(at.ranks):
        at = next(iter(at.under.values()))
        chain.append(at)
    lines = []
    inner = depth
    if chain:
        mark = ""
        if len(at.under) > 1 and not forked[0]:
            forked[0], mark = True, "   <- here they part"
        lines.append(f"  {'  ' * depth}{named(at.ranks)}  {' > '.join(_words(n.key, base) for n in chain)}{mark}")
        inner += 1
    stay = [rank for rank in at.ranks if not any(rank in child.ranks for child in at.under.values())]
    if at.under and stay and chain:
        lines.append(f"  {'  ' * inner}{named(stay)}  here")
    children: Iterable[Node] = sorted(at.under.values(), key=lambda child: (-len(child.ranks), child.ranks))
    for child in children:
        lines += _lines(Node(("", "", 0), child.ranks, {child.key: child}), inner, base, forked)
    return lines


def _words(key: Key, base: str) -> str:
    path, function, line = key
    if not path:
        return function
    below = base.rstrip("/") + "/"
    short = path.removeprefix(below) if base and path.startswith(below) else path.rpartition("/")[2]
    return f"{short}:{line} {function}"


def cpp_threads(stacks: Stacks) -> list[str]:
    """The threads without Python, those of the same name in the same functions on one line; [] when nobody looked at them."""
    rows: dict[tuple[str, str], list[int]] = {}
    for rank, process in stacks.processes():
        for thread in process.cpp_threads:
            if thread.name == _OUR_SERVER:
                continue
            words = [frame.function for frame in reversed(thread.frames) if not frame.is_machinery]
            at = " > ".join(words[-_INNERMOST:]) or thread.frames[0].function
            rows.setdefault((thread.name or "thread", at), []).append(rank)
    lines = []
    for (name, at), ranks in sorted(rows.items(), key=lambda row: (row[1], row[0])):
        each = {ranks.count(rank) for rank in ranks}
        times = f" x {each.pop()}" if each != {1} and len(each) == 1 else ""
        lines.append(f"  {named(sorted(set(ranks)))}  {name}{times}  {at}")
    more = len(lines) - LINES
    return lines if more <= 0 else [*lines[:LINES], f"  and {more} more lines (--json has all)"]


def as_json(stacks: Stacks) -> list[Mapping[str, object]]:
    """Every process of every rank for programs: state, CPU, stacks."""
    found: list[Mapping[str, object]] = []
    for rank, seen in stacks.ranks.items():
        for role, process in (
            ("rank", seen.process),
            *(("worker", w) for w in seen.workers),
            *(("child", c) for c in seen.children),
        ):
            if process is None:
                found.append({"rank": rank, "role": role, "pid": None})
                continue
            found.append(
                {
                    "rank": rank,
                    "role": role,
                    "worker": process.worker if role == "worker" else None,
                    "pid": process.pid,
                    "command": process.command,
                    "state": process.state,
                    "moved": process.moved,
                    "cpu_share": round(process.cpu_share, 3),
                    "still_seconds": None if process.still_seconds is None else round(process.still_seconds, 2),
                    "wchan": process.wchan,
                    "syscall": process.syscall,
                    "held_gil": process.held_gil,
                    "trouble": process.trouble,
                    "threads": [_thread(thread) for thread in process.threads],
                    "cpp_threads": [_thread(thread) for thread in process.cpp_threads],
                }
            )
    return found


def _thread(thread: ThreadStack) -> Mapping[str, object]:
    frames = [
        {
            "function": frame.function,
            "path": frame.path,
            "line": frame.line,
            **({"arguments": dict(frame.arguments)} if frame.arguments else {}),
        }
        for frame in thread.frames
    ]
    return {"id": thread.os_id, "name": thread.name, "holds_gil": thread.holds_gil, "frames": frames}
