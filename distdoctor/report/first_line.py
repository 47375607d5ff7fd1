"""The answer in one line, for a job that was looked at."""

from __future__ import annotations

from distdoctor.diagnosis.diagnosis import Diagnosis
from distdoctor.diagnosis.finding import ERROR, WARNING, Finding
from distdoctor.diagnosis.hang.live.rank_activity import Activity, RankActivity
from distdoctor.diagnosis.hang.live.stall import Stall
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording
from distdoctor.report.text import shown


def answer(diagnosis: Diagnosis, recording: Recording, base: str = "", *, over_hosts: bool = False) -> str:
    """`hang: rank 1 ...`, `perhaps a hang: ...`, `nothing stuck: ...`, or what kept us from looking. `over_hosts`: somebody asked
    for all hosts of the job, so a rank that was not seen may be the one that is stuck."""
    errors = diagnosis.at_least(ERROR)
    if errors:
        word = {"environment": "could not look", "hang": "hang"}.get(errors[0].area, "trouble")
        return f"{word}: {_headline(errors[0], base)}"
    warned = [finding for finding in diagnosis.at_least(WARNING) if finding.area == "hang"]
    if warned:
        return f"perhaps a hang: {_headline(warned[0], base)}"
    failed = [one for one in diagnosis.not_examined if one.failed]
    if failed:  # it may have been the one that names the hang
        return f"could not look: {failed[0].code}: {failed[0].reason}; {_at_work(recording, base)}"
    if over_hosts and not diagnosis.is_whole and diagnosis.coverage is not None:
        return f"nothing stuck where it could be seen: {_at_work(recording, base)}; {diagnosis.coverage.sentence}"
    return f"nothing stuck: {_at_work(recording, base)}"


def _headline(finding: Finding, base: str) -> str:
    where = f", at {shown(finding.place, base)}" if finding.place else ""
    who = f"{finding.ranks_named} " if finding.ranks else ""
    return f"{who}{finding.title}{where} ({finding.code}, {finding.confidence})"


def _what(who: RankActivity, standstill: Stall) -> str:
    """What is known of the rank that the others wait for."""
    if standstill.is_moving(who):
        return "which is at work"
    makers = [one for one in who.seen.workers if one.moved or one.is_busy]
    return (
        "whose DataLoader worker is at work for it" if who.doing is Activity.DATA and makers else "which is not moving"
    )


def _at_work(recording: Recording, base: str) -> str:
    standstill = Stall.of(recording)
    ranks = len(standstill.standings)
    if not ranks:
        return "no rank has started yet"
    count = f"{ranks} {'rank' if ranks == 1 else 'ranks'}"
    waited = standstill.waited_seconds or 0.0
    slow = [s for s in standstill.others if s.doing is not Activity.GONE]
    if slow and standstill.waiting and waited >= 1:
        who = slow[0]
        return (
            f"{named([s.rank for s in standstill.waiting])} waited {waited:.0f} s for {named([s.rank for s in slow])}, "
            f"{_what(who, standstill)} at {shown(who.site, base)}"
        )
    seconds = standstill.stacks.observed_seconds
    if standstill.waiting and len(standstill.waiting) == ranks and waited >= 1:
        patience = standstill.stacks.patience_seconds
        if waited >= patience:
            return f"{count} wait for each other since {waited:.0f} s, and their stacks do not say why"
        return f"{count} wait since {waited:.0f} s, which is too early to tell ({patience:.0f} s are); run it again"
    at_work = sum(map(standstill.is_moving, standstill.standings.values()))
    return f"{count}, {at_work} of them seen moving within {seconds:.1f} s"
