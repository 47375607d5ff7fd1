"""How Slurm and the kernel say that the tasks of a job ended.

srun prints one line for each host and way to end. The kernel's line of whom it killed for memory names the cgroup, which Slurm
calls `task_21` for a task. Whether tasks are ranks is for the rest of the log to say (`PrintedRanks`); where several of them run
on one host, nobody starts torchrun in each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from distdoctor.recording.recording import RankEnd
from distdoctor.recording.trace.layout import ranks_of

SAYS = re.compile(r"srun: error: (\S{1,200}): tasks? ([\d,-]{1,200}): (\S.{0,80})")
_OF_TASK = re.compile(r"task_memcg=[^,\s]{0,400}/task_(\d{1,7})\b")
_CANCELLED = re.compile(r"srun: (?:Terminating|Force Terminated) |\*\*\* (?:STEP|JOB) \S{1,60} ON ")
_EXIT_CODE = re.compile(r"Exited with exit code (\d{1,3})")
_SIGNALS = {"Segmentation fault": 11, "Aborted": 6, "Bus error": 7, "Killed": 9, "Illegal instruction": 4,
            "Floating point exception": 8, "Terminated": 15}  # fmt: skip
_MOST_LINES = 20_000  # of srun's that are looked at: no job has more hosts and ways to end
_MOST_PER_HOST = 4096


@dataclass
class SlurmEnds:
    """Task -> how it ended. `by_kernel` are those whose cgroup the kernel names."""

    ends: dict[int, RankEnd] = field(default_factory=dict)
    by_kernel: set[int] = field(default_factory=set)
    several_on_a_host: bool = False

    @classmethod
    def of(cls, lines: Iterable[str]) -> SlurmEnds:
        found = cls()
        cancelled, read = False, 0
        for line in lines:
            if killed := _OF_TASK.search(line):
                found.by_kernel.update(ranks_of(killed[1]))
            elif (said := SAYS.search(line)) is not None and (read := read + 1) <= _MOST_LINES:
                found._add(ranks_of(said[2])[:_MOST_PER_HOST], said[3], cancelled)
            cancelled = cancelled or _CANCELLED.search(line) is not None
        killed_for_memory = RankEnd(None, 9, kernel_kills=1)
        found.ends |= dict.fromkeys(found.by_kernel, killed_for_memory)
        return found

    def _add(self, tasks: tuple[int, ...], how: str, cancelled: bool) -> None:
        self.several_on_a_host |= len(tasks) > 1
        end = _end(how, cancelled)
        if end is not None:
            self.ends = dict.fromkeys(tasks, end) | self.ends


def _end(how: str, cancelled: bool) -> RankEnd | None:
    """One way to end in Slurm's words, None where they say something else."""
    if how.startswith("Out Of Memory"):
        return RankEnd(None, 9, kernel_kills=1)
    if code := _EXIT_CODE.match(how):
        return RankEnd(int(code[1]))
    signal = next((number for name, number in _SIGNALS.items() if how.startswith(name)), 0)
    by_slurm = signal == 15 or (signal == 9 and cancelled)
    return RankEnd(None, signal, by_slurm) if signal else None
