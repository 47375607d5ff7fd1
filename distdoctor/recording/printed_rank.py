"""Which rank printed a line of a log: the prefixes of torch, torchrun, srun and mpirun, by what they mean in this log.

`[rank11]:` of torch is the rank. `[default3]:` of torchrun counts on one node. `3: ` of srun counts tasks, which are ranks where
each rank is a task, and nodes where torchrun is. Lines that have two prefixes show what the weaker one means; where no line has,
the first node is taken for the only one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from distdoctor.recording.trace.layout import MOST_RANKS

LONGEST_PREFIX = 300  # letters: time stamps, pods and actors stand before the rank
_OF_TORCH = re.compile(r"(?:\[|^)rank(\d{1,7})\]?:")  # without brackets where rich has taken them for markup
_LOCAL = re.compile(r"(?:^|\s)\[(?!rank)[A-Za-z_]{1,40}(\d{1,7})\]:")  # the role, `default` where none is given
_LABEL = re.compile(r"^\s{0,40}(\d{1,7}): |^\[\d{1,7},(\d{1,7})\]<std")
_LOGGED = re.compile(r"(?<!\[TC\])\[rank\s?(\d{1,7})\]", re.IGNORECASE)
_OF_ALL = re.compile(r"default_pg\) Rank (\d{1,7})\]")  # everybody's group counts as the job does
_IN_GROUP = re.compile(r"\[Rank (\d{1,7})\] Watchdog")
_NODE = re.compile(
    r"^\s{0,40}(\d{1,7}): |^\[\d{1,7},(\d{1,7})\]<std|^\[(pod/[^\]\s]{1,200})\] |^([A-Za-z][\w.-]{0,100}): "
)
_IN_TABLE = re.compile(r"^\s{0,20}rank\s{0,20}:\s{0,4}(\d{1,7}) \(local_rank: (\d{1,7})\)")

# What launchers, schedulers and containers put before a line: everything up to the rank, else Ray's actor, a time stamp or a
# rank's number.
_ACTOR = r"(?:\([\w.]{1,80} pid=\d{1,9}[^()]{0,80}\)\s)"
_OF_VLLM = r"(?:(?:DEBUG|INFO|WARNING|ERROR) \d\d-\d\d \d\d:\d\d:\d\d \[[\w.]{1,80}:\d{1,6}\] ?)"
_PREFIX = r"(?:(?!Error|Exception|Warning)[^\"'()]){0,120}?"  # nothing of a message, which may name ranks as well
_STRIPPED = re.compile(
    rf"^(?:{_PREFIX}{_ACTOR})?{_PREFIX}(?:(?<!\[TC\])\[rank\s?\d+\]:?\s?|\[[A-Za-z_]{{1,40}}\d{{1,7}}\]:\s?|"
    r"\[\d+,\d+\]<std\w+>:\s?)+|"
    rf"^{_ACTOR}|^{_OF_VLLM}|^\s{{0,40}}\d+: |^\[?\d{{4}}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S{{0,20}}\s(?:std(?:out|err) [FP] )?|"
    r"^rank\d{1,7}: |^\[pod/[^\]\s]{1,200}\] |^[a-z][\w.-]{0,100}\s{1,20}\| |^[a-z][a-z.-]{0,60}\d{1,6}[\w.-]{0,60}: "
)
_MOST_PREFIXES = 5  # a time stamp, a pod, another time stamp, an actor, a rank
BRACKETED = r"\[[A-Za-z_]{1,40}\d{1,7}\]:"  # of torch and torchrun
_MOMENT = re.compile(r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S{0,20}\s?")


def without_prefixes(line: str) -> str:
    """What the program itself has printed."""
    for _ in range(_MOST_PREFIXES):
        shorter = _STRIPPED.sub("", line, count=1)
        if len(shorter) == len(line):
            break
        line = shorter
    return line


def printer_of(line: str, words: str) -> str:
    """Who printed a line, as its prefixes call it: all that stands before the `words` but for the time."""
    return _MOMENT.sub("", line[: len(line) - len(words)]).strip()


class PrintedRanks:
    """What the prefixes of one log mean, learnt from all of its lines."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._offsets: dict[str, set[int]] = defaultdict(set)  # node -> rank minus local rank
        self._labels_agree = self._labels_differ = self._several_nodes = False
        self._labelled: set[str] = set()  # nodes whose launchers print local ranks
        for line in lines:
            self._learn(line[:LONGEST_PREFIX])

    def _learn(self, line: str) -> None:
        if table := _IN_TABLE.match(line):
            self._offsets[""].add(int(table[1]) - int(table[2]))
            return
        rank, local, label = _sure_rank(line), _number(_LOCAL, line), _number(_LABEL, line)
        if local >= 0:
            self._labelled.add(_node(line))
            in_group = _number(_IN_GROUP, line)
            if rank >= 0:
                self._offsets[_node(line)].add(rank - local)
            elif in_group > local:  # nobody's number in a group is larger than its rank
                self._several_nodes = True
        if label >= 0 and max(rank, local) >= 0:
            same = label == (rank if rank >= 0 else local)
            self._labels_agree, self._labels_differ = self._labels_agree or same, self._labels_differ or not same

    @property
    def tasks_are_ranks(self) -> bool | None:
        """Whether srun's numbers are ranks; None where no line shows it."""
        return False if self._labels_differ else True if self._labels_agree else None

    def of(self, line: str) -> int:
        """The rank that printed this line, -1 where nothing tells."""
        line = line[:LONGEST_PREFIX]
        found = _sure_rank(line)
        if found < 0 and (local := _number(_LOCAL, line)) >= 0:
            found = self._from_local(local, _node(line))
        elif found < 0 and (label := _number(_LABEL, line)) >= 0:
            found = -1 if self._labels_differ else label
        elif found < 0:
            found = _number(_LOGGED, line)
        return found if 0 <= found < MOST_RANKS else -1

    def _from_local(self, local: int, node: str) -> int:
        offsets = self._offsets.get(node) or self._offsets.get("", set())
        if len(offsets) == 1:
            return local + next(iter(offsets))
        unknown = offsets or self._several_nodes or len(self._labelled) > 1
        return -1 if unknown else local


def _sure_rank(line: str) -> int:
    """The rank by a prefix that means nothing else, -1 without one."""
    found = _number(_OF_TORCH, line)
    return found if found >= 0 else _number(_OF_ALL, line)


def _node(line: str) -> str:
    """What the launcher, the pod or srun calls the node of a line, "" where it says nothing."""
    match = _NODE.match(line)
    return next((name for name in match.groups() if name), "") if match else ""


def _number(pattern: re.Pattern[str], line: str) -> int:
    match = pattern.search(line)
    return int(next(group for group in match.groups() if group)) if match else -1
