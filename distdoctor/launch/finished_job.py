"""What is done once every rank has ended: what all hosts recorded is put together, and examined."""

from __future__ import annotations

from dataclasses import dataclass, replace

from distdoctor.errors import NothingToInspect
from distdoctor.launch.corrected_ends import ended_after_their_work, with_exit_events, without_the_asked
from distdoctor.launch.job_state import JobState
from distdoctor.launch.observed_agent import AgentEnd
from distdoctor.launch.other_hosts import OtherHosts
from distdoctor.launch.own_record import OwnRecord
from distdoctor.launch.post_mortem import diagnose, open_recording
from distdoctor.launch.presence import Presence
from distdoctor.launch.run_options import Launch, Outcome, RunOptions
from distdoctor.launch.watch import Watcher
from distdoctor.plugins import Plugins
from distdoctor.recording.open import open_run
from distdoctor.recording.recording import Job, Recording
from distdoctor.recording.trace.host_file import merged_ends
from distdoctor.recording.trace.run_folder import unused_attempt


@dataclass(frozen=True)
class FinishedJob:
    """A job that is over, with what its launcher saw and said of it."""

    launch: Launch
    options: RunOptions
    plugins: Plugins
    state: JobState
    record: OwnRecord
    watcher: Watcher
    others: OtherHosts
    presence: Presence
    first_unused: int  # start that the folder did not hold when the launcher came

    def examine(self, job: Job, end: AgentEnd) -> Outcome:
        """The diagnosis of the whole job. `job` is what we know of our own part of it."""
        self.others.await_ends()
        recording = self._recorded() or Recording(job, {}, streams=frozenset())
        recording = self.others.with_last_words(self._with_ends(recording, job, end))
        if self.others.takes_over:
            self.others.await_survivors()
            recording = self._with_ends(open_recording(self.options.folder), job, end)
        if self.others.verdict is None:
            recording = self.others.with_lost(recording)
        self.others.part()
        self.record.write(lost=recording.job.lost)
        self.presence.end()
        seen = self.record.keep_what_was_seen(self.watcher, succeeded=end.exit_code == 0)
        others = tuple(one for one in recording.seen_live if one.name != seen.name)
        recording = replace(recording, seen_live=(*others, seen))
        plugins, ignored = self.plugins, self.options.ignored
        diagnosis = self.others.settled(
            recording, plugins.checks, lambda: diagnose(recording, plugins.checks, plugins.remedies, ignored)
        )
        withdrawn = tuple(self.watcher.standing.withdrawn)
        interrupted = recording.job.interrupted if end.exit_code else self.state.signal  # hosts may go, and a job go on
        return Outcome(recording, diagnosis, diagnosis.hung, interrupted, end.trouble, withdrawn)

    def _with_ends(self, recording: Recording, job: Job, end: AgentEnd) -> Recording:
        """The recording with how our ranks ended, which is written down as well."""
        succeeded = bool(self.launch.command) and not end.exit_code
        ends = ended_after_their_work(job.ends, recording) if succeeded else job.ends
        asked = without_the_asked(ends, self.state.signal, self.state.signal_ns)
        here = with_exit_events(asked, recording, end)
        self.state.keep_start(here)
        self.record.write()
        whole = replace(
            recording.job,
            ends=merged_ends(recording.job.ends, here),
            world_size=max(recording.job.world_size, job.world_size),
            exit_code=end.exit_code or recording.job.exit_code,
            interrupted=self.state.signal or recording.job.interrupted,
            interrupted_ns=self.state.signal_ns,
            running=False,
            end_unseen=recording.job.end_unseen
            and not self.record.is_refused,  # we saw it, and could not write it down
        )
        return replace(recording, job=whole)

    def _recorded(self) -> Recording | None:
        """What lies in our folder, None where this job has left nothing there; another one may have, earlier."""
        is_command, folder = bool(self.launch.command), self.options.folder
        if not (is_command or self.state.begun) and unused_attempt(folder) == self.first_unused:
            return None
        try:
            mine = self.others.ranks_to_read
            return open_recording(folder) if mine is None else open_run(folder, ranks=mine)
        except NothingToInspect:
            return None
