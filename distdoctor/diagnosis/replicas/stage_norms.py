"""Stages of a pipeline that clip each by the norm of its own parameters alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from distdoctor.diagnosis.replicas.gradients import Gradients
from distdoctor.diagnosis.replicas.pipeline_stages import pipeline_stages
from distdoctor.recording.recording import SourceLine
from distdoctor.recording.trace.events import ClipNorm

APART = 1e-4  # relative; a norm over all stages is the same on each to the last bit
SEEN = 3  # steps


@dataclass(frozen=True)
class StageNorms:
    """The first step in which the stages clip by different norms, and how many such steps there are."""

    site: SourceLine
    step: int
    norms: Mapping[int, float]  # of each rank
    steps: int
    at_ns: int


def stage_norms(gradients: Gradients) -> StageNorms | None:
    """None where there is no pipeline, stages clip by one norm, or no limit is exceeded."""
    stages = pipeline_stages(gradients)
    found: dict[tuple[SourceLine, int, int], dict[int, ClipNorm]] = defaultdict(dict)
    for rank in stages:
        seen: Counter[tuple[SourceLine, int]] = Counter()
        for clipped in gradients.ranks[rank].events(ClipNorm):
            if not clipped.whole:
                seen[clipped.site, clipped.step] += 1
                found[clipped.site, clipped.step, seen[clipped.site, clipped.step]][rank] = clipped
    whole = {key: one for key, one in found.items() if len(stages) > 1 and _is_one_recipe(one, stages)}
    for line in dict.fromkeys(site for site, _, _ in whole):
        steps = sorted((step, number) for site, step, number in whole if site == line)
        apart = [key for key in steps if _differ([one.norm for one in whole[line, *key].values()])]
        scaled = [key for key in apart if any(one.norm > one.limit for one in whole[line, *key].values())]
        if len(scaled) >= SEEN and len(apart) == len(steps):
            first = whole[line, *scaled[0]]
            norms = {rank: one.norm for rank, one in first.items()}
            return StageNorms(line, scaled[0][0], norms, len(scaled), min(one.at_ns for one in first.values()))
    return None


def _is_one_recipe(clipped: Mapping[int, ClipNorm], stages: list[int]) -> bool:
    """Whether all stages clip, by one limit: models of several owners, as in split learning, have limits of their own."""
    return len(clipped) == len(stages) and len({one.limit for one in clipped.values()}) == 1


def _differ(norms: list[float]) -> bool:
    return max(norms) - min(norms) > APART * max(norms)
