"""
DD900 not-examined: a check could not look, and why. The state of a check, never a finding: there is nothing that it accuses.

What it means    A check was not made: a stream was not recorded, the recorder of a rank fell silent, its file is damaged or
                 missing, the question does not arise in this job, or the check itself failed.
Why it hurts     What nobody looked at is not healthy: a job at which a check could not look is never called healthy.
How we know      Every check names the facts that it needs. Where this recording cannot tell them, the reason is listed beside the
                 findings: in the text with -v and by `distdoctor show`, in JSON under `not_examined`, in JUnit as skipped.
What to do       Read the reason: record the stream (leave out --streams), bring the missing file, or report a check that failed
                 to the maintainers of its plugin, with `distdoctor env --json`.
When it is fine  Where the reason says that the question does not arise: no DataLoader, one rank, a job that still runs.
Source           distdoctor's own promise: healthy is only said of what was seen whole.
"""
