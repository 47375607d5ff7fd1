"""What became of the starts of a job's ranks before the last one, in a sentence."""

from __future__ import annotations

import signal

from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Attempt, Job, RankEnd


def story(job: Job) -> str:
    """`attempt 1 was ended by rank 3 (SIGKILL); attempt 2 finished`; "" where the ranks were started once, or where no failure
    made the launcher start them again: hosts may come and go."""
    failed = [(number, words) for number, start in enumerate(job.earlier, 1) if (words := how_it_ended(start))]
    if not failed:
        return ""
    last = len(job.earlier) + 1
    ended = how_it_ended(Attempt(job.attempt, ends=job.ends))
    now = (
        "is running" if job.running else f"was ended by {ended}" if ended else "failed" if job.exit_code else "finished"
    )
    return "; ".join([*(f"attempt {number} was ended by {words}" for number, words in failed), f"attempt {last} {now}"])


def how_it_ended(start: Attempt) -> str:
    """`rank 3 (SIGKILL)`: who failed first, by itself; "" where nobody did."""
    failed = {
        rank: end for rank, end in start.ends.items() if not end.ended_by_launcher and (end.signal or end.exit_code)
    }
    if not failed:
        return ""
    first = min(end.at_ns for end in failed.values())
    ranks = tuple(sorted(rank for rank, end in failed.items() if end.at_ns == first))
    return f"{named(ranks)} ({_words(failed[ranks[0]])})"


def _words(end: RankEnd) -> str:
    if not end.signal:
        return f"exit code {end.exit_code}"
    try:
        return signal.Signals(end.signal).name
    except ValueError:
        return f"signal {end.signal}"
