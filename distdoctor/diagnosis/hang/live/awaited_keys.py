"""What is said of ranks that wait for a key of a store, where the record tells who has not set it, or set another one."""

from __future__ import annotations

from collections.abc import Sequence

from distdoctor.diagnosis.finding import Finding, Place, Prescription
from distdoctor.diagnosis.hang.live.rank_activity import RankActivity
from distdoctor.diagnosis.hang.live.stall import Stall, evidence_of
from distdoctor.diagnosis.hang.live.unset_keys import OtherName, UnsetKey, key_of_other_name, unset_key
from distdoctor.diagnosis.source.store_keys import key_made_of
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import SourceLine


def of_awaited_key(standings: Sequence[RankActivity], standstill: Stall, why: str) -> Finding | None:
    """None where the ranks wait for no key, or the record does not tell what became of it."""
    first = standings[0]
    unset = unset_key(standstill.recording, first.rank, first.site)
    if unset is not None and all(
        standstill.standings[one].waits_for_ranks for one in unset.ranks if one in standstill.standings
    ):
        return _left_out_key(unset, standings, standstill, why)
    other = key_of_other_name(standstill.recording, first.rank, first.site)
    return _other_name(other, standings, standstill, why) if other is not None else None


def _left_out_key(unset: UnsetKey, standings: Sequence[RankActivity], standstill: Stall, why: str) -> Finding:
    """Ranks that wait for a key of a store, and those that have set such keys before and not this one."""
    first, waiting = standings[0], tuple(one.rank for one in standings)
    has, wait = "has" if len(unset.ranks) == 1 else "have", "waits" if len(waiting) == 1 else "wait"
    last = f"; the last one was `{unset.last}`" if unset.last else ""
    return Finding(
        title=f"{has} not set the key `{unset.key}` of the store, for which {named(waiting)} {wait} at {first.site.short}"
        f"{standstill.how_long(first)}",
        ranks=unset.ranks,
        confidence=standstill.confidence(*standings),
        place=unset.set_at,
        places=(
            Place(unset.set_at, unset.ranks if unset.last else (), f"sets such keys{last}"),
            *standstill.places(*standings),
        ),
        evidence=evidence_of(first.process) | {"key of the store": unset.key},
        why=why,
        prescriptions=(
            Prescription(
                "bound-the-wait",
                change=f"set that key on every path that passes {unset.set_at.short}, also where there is nothing to tell, or "
                f"give the wait at {first.site.short} a timeout",
            ),
        ),
    )


def _other_name(other: OtherName, standings: Sequence[RankActivity], standstill: Stall, why: str) -> Finding:
    """Ranks that wait for a key of a store which others have set under another name."""
    first, waiting = standings[0], tuple(one.rank for one in standings)
    made = key_made_of(standstill.recording.sources, first.site)
    last = made[-1] if made else None
    what = f"`{last.text}` ({last.path.rpartition('/')[2]}:{last.line})" if last else "what its name is made of"
    salted = ": hash() gives a text another number in every process, zlib.crc32 and hashlib do not"
    wait = "waits" if len(waiting) == 1 else "wait"
    mine, *others = standstill.places(*standings)
    return Finding(
        title=f"{wait}{standstill.how_long(first)} for the key `{other.key}` of the store, and {named(other.ranks)} set "
        f"`{other.instead}` instead",
        ranks=waiting,
        confidence=standstill.confidence(*standings),
        place=first.site,
        places=(
            mine,
            Place(other.set_at, other.ranks, f"sets `{other.instead}`, for which nobody waits"),
            *(
                Place(SourceLine(hop.path, hop.line, hop.function), (), f"its name is made of `{hop.text}`")
                for hop in made
            ),
            *others,
        ),
        evidence=evidence_of(first.process) | {"key of the store": other.key, "key that was set": other.instead},
        why=why,
        prescriptions=(
            Prescription(
                "bound-the-wait",
                change=f"let every rank make the same name, or broadcast rank 0's: {what} differs between processes"
                + (salted if last is not None and "hash(" in last.text else ""),
            ),
        ),
    )
