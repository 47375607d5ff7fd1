"""
DD222 stale-copy: a copy of the model (moving average, target network, acting policy) lags, or differs between ranks.

What it means    The replicas agree, but a copy kept beside each of them does not: one rank never refreshes it (`if rank == 0`),
                 ranks refresh it in different steps, or it was taken before the replicas were made equal. Or all ranks
                 refresh it again and again with the weights that it has already: a snapshot that nobody renews.
Why it hurts     The copy's output enters the loss (targets, rollouts) or the metric and the checkpoint (averages): ranks learn
                 from, act by or report different models, and nothing fails.
How we know      A copy is a module with the parameter names and shapes of the trained one that no optimizer holds. One digest
                 of all its bits is compared between ranks in steps in which the trained parameters agree. A rank whose copy
                 never changes is blamed only if a forward of that copy was seen: rank 0 alone may keep the copy that is saved.
                 A refresh without effect: its tensors were written to between sampled steps (torch counts that), and its
                 bits stay those with which training began, while the trained model changes. What a copy holds is looked at
                 when it computes, where it does. Or no rank writes into it at all, and what the source does to refresh it passes
                 over names that it lacks (a wrapped model's begin with `module.`). Dictionaries by the parameters' names, and
                 lists in their order, that an object keeps are copies as well where they are as long as the weights: told
                 where every rank changes them in nearly every step, or nothing does. Or a rank
                 broadcasts from one line as many numbers as its model has, the same ones each time, while it trains (looked at
                 on the CPU). Models of another form that no optimizer holds (a larger teacher, a random target) are compared as
                 well, where every rank computes with them and none changes them: likely beside a wrapper, else possible. So are
                 tensors with which a module is called (functional_call), in the first steps and in every eighth: likely where
                 some ranks change them between two steps in which others do not, or where they began as the module's own
                 parameters on some ranks and as others elsewhere.
What to do       Refresh the copy on every rank in the same step, after the optimizer's step; take it after wrapping (from
                 model.module), or broadcast it once. DistributedDataParallel makes parameters equal, never their copies.
When it is fine  Copies that every rank changes in the same steps, with noise of its own or for a task of its own: not reported,
                 or a note, possible, where they were other models on each rank from the start.
                 Opponents or ensemble members that are meant to differ: accept it with --ignore DD222. Local training and
                 replicas that diverge themselves are other findings.
Source           ema-pytorch, timm's ModelEmaV3, torch.optim.swa_utils.AveragedModel; IMPALA on policy lag.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.facts.sources import Sources
from distdoctor.diagnosis.finding import LIKELY, NOTE, POSSIBLE, WARNING, Finding, Place, Prescription
from distdoctor.diagnosis.rank_groups import variants_of
from distdoctor.diagnosis.replicas.copy_courses import (
    BESIDE,
    FEWEST,
    CopyCourse,
    agreeing_steps,
    copy_courses,
    lives_on_beside,
    parted_steps,
)
from distdoctor.diagnosis.replicas.gradients import OBSERVED, WRAPPER, Gradients, ReplicaGroup
from distdoctor.diagnosis.replicas.reunion import weights_are_exchanged
from distdoctor.diagnosis.source.given_values import called_from
from distdoctor.diagnosis.source.rank_guard import guard_for, guards_at
from distdoctor.diagnosis.source.sent_tensor import broadcast_from
from distdoctor.diagnosis.source.writes import (
    Write,
    filtered_by_name,
    instances_made,
    last_before,
    own_test,
    writes_into,
)
from distdoctor.recording.rank_set import named
from distdoctor.recording.recording import Recording, SourceLine
from distdoctor.recording.trace.events import CalledWith, Copied, CopyUsed, SentUnchanged
from distdoctor.recording.trace.layout import TensorFlag


@check("DD222", "stale-copy", severity=WARNING, live=False)
def examine(gradients: Gradients, sources: Sources) -> Iterator[Finding]:
    for peers in gradients.peers:
        if peers.by != OBSERVED:
            for course in copy_courses(gradients, peers):
                if not course.is_module:
                    yield from _kept_by_an_object(gradients, peers, course, sources)
                    continue
                if not _matters(gradients, course) or _is_given_to_all(gradients, peers, course):
                    continue
                if len(course.apart) < FEWEST:
                    if course.refreshed_in_vain >= FEWEST:
                        yield _in_vain(gradients, course, sources)
                    elif course.never_written:
                        yield from _passed_over(gradients, peers, course, sources)
                elif course.is_explained:
                    yield _finding(gradients, course, sources)
                elif course.from_the_start:  # begun with weights of its own on each rank, or changed on purpose
                    yield replace(_finding(gradients, course, sources), severity=NOTE, confidence=POSSIBLE)
            yield from _beside(gradients, peers)
            yield from _in_dictionaries(gradients, peers)
    yield from _sent_as_they_were(gradients, sources)


def _sent_as_they_were(gradients: Gradients, sources: Sources) -> Iterator[Finding]:
    """Weights that a rank puts together once and sends again and again, while it trains the model that they were taken from."""
    for rank, own in gradients.ranks.items():
        last = {event.site: event for event in own.events(SentUnchanged)}
        steps = max((update.step for update in own.updates), default=0)
        held: dict[int, int] = defaultdict(int)
        for tensor in own.tensors.values():
            held[tensor.optimizer] += 0 if tensor.flags & TensorFlag.BUFFER else tensor.numel
        for site, event in last.items():
            if event.elements and event.elements in held.values() and steps >= event.times:
                yield _sent_finding(rank, site, event, sources)


def _sent_finding(rank: int, site: SourceLine, event: SentUnchanged, sources: Sources) -> Finding:
    name, made = broadcast_from(sources.texts, site)
    what = f"`{name}`" if name else "what it sends"
    return Finding(
        title=f"{named((rank,))} sends the weights that it began with: {what} has not changed in {event.times} broadcasts",
        ranks=(rank,),
        confidence=LIKELY,
        place=made or site,
        places=(
            *((Place(made, (rank,), f"{what} is put together, once"),) if made else ()),
            Place(site, (rank,), "sends it"),
        ),
        evidence={"elements": event.elements, "broadcasts": event.times, "step": event.step},
        why=f"it holds {event.elements} numbers, as many as the trained model has, and the same ones up to step {event.step}, "
        "while the optimizer steps in between",
        prescriptions=(
            Prescription(
                "refresh-everywhere",
                change="put the weights together anew before each broadcast: torch.nn.utils.parameters_to_vector("
                "model.parameters()) copies them as they are at that moment",
            ),
        ),
        at_ns=event.at_ns,
    )


def _kept_by_an_object(
    gradients: Gradients, peers: ReplicaGroup, course: CopyCourse, sources: Sources
) -> Iterator[Finding]:
    """A copy that is no module. What one rank alone refreshes may be what that rank saves: nobody sees it compute."""
    if len(course.apart) < FEWEST:
        if course.refreshed_in_vain >= FEWEST:
            yield _in_vain(gradients, course, sources)
        elif course.never_written:
            yield from _passed_over(gradients, peers, course, sources)
    elif course.follows and course.is_explained and not _is_given_to_all(gradients, peers, course):
        yield _finding(gradients, course, sources)


def _in_dictionaries(gradients: Gradients, peers: ReplicaGroup) -> Iterator[Finding]:
    """Copies that are no modules, with which a module is called: refreshed on some ranks between two steps, on others not; or
    begun as what the module held on some ranks, and as something else on others."""
    agreeing, parted = agreeing_steps(gradients, peers), parted_steps(gradients, peers)
    found: dict[tuple[SourceLine, str], dict[int, dict[int, CalledWith]]] = defaultdict(lambda: defaultdict(dict))
    for rank in peers.ranks if len(agreeing) >= FEWEST and not parted else ():
        own = gradients.ranks.get(rank)
        for event in own.events(CalledWith) if own is not None else ():
            found[event.site, event.module][event.step].setdefault(rank, event)
    for (site, module), by_step in found.items():
        digests = {
            step: {rank: event.value for rank, event in events.items()}
            for step, events in sorted(by_step.items())
            if len(events) == len(peers.ranks)
        }
        if not digests:
            continue
        first = min(digests)
        held = {step: {rank: event.own for rank, event in by_step[step].items()} for step in digests}
        course = CopyCourse(module, module, peers.ranks, digests, held, {}, frozenset())
        begun = len({*held[first].values()}) == 1 and course.is_explained and lives_on_beside(course)
        if len(course.apart) >= FEWEST and (course.still or course.in_turns or begun):
            yield _in_dictionary(course, site, by_step[course.apart[0]][peers.ranks[0]].at_ns)


def _in_dictionary(course: CopyCourse, site: SourceLine, at_ns: int) -> Finding:
    first, steps = course.apart[0], len(course.digests)
    refreshed = bool(course.still) or course.in_turns
    how = "change on some ranks between two steps in which they do not change on others"
    if not refreshed:
        how = f"were what {course.module} holds on {named(course.begun_alike)} alone when it was called so first"
    return Finding(
        title=f"the tensors with which {course.module} is called differ between {named(course.ranks)} from step {first} on: "
        + ("they refresh them in different steps" if refreshed else f"{named(course.odd)} began with others"),
        ranks=course.ranks if refreshed else course.odd,
        confidence=LIKELY,
        place=site,
        places=(Place(site, course.ranks, f"{course.module} computes with tensors that are handed to it"),),
        evidence={
            "copy": course.module,
            "first_step_apart": first,
            "steps_apart": len(course.apart),
            "steps_compared": steps,
            "versions": [list(variant) for variant in variants_of(course.digests[first])],
        },
        why=f"they differ in {len(course.apart)} of {steps} sampled steps, and {how}; the trained parameters are bit-identical "
        "on these ranks",
        prescriptions=(Prescription("refresh-everywhere"),),
        at_ns=at_ns,
    )


def _beside(gradients: Gradients, peers: ReplicaGroup) -> Iterator[Finding]:
    """Models of another form that nobody trains, and that every rank computes with."""
    looks: dict[tuple[str, str, int], dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for rank in peers.ranks:
        own = gradients.ranks.get(rank)
        for tensor in own.tensors.values() if own is not None else ():
            if own is not None and tensor.optimizer == peers.optimizer and tensor.flags & BESIDE == BESIDE:
                used = any(event.name == tensor.name for event in own.events(CopyUsed))
                values = {int(row["param"]) for _, row in own.rows_of(tensor.seq)} if used else set()
                looks[tensor.name, tensor.owner, tensor.numel][rank] = values
    steps = agreeing_steps(gradients, peers) if looks else set()
    for (name, owner, _), by_rank in looks.items():
        still = all(len(values) == 1 and 0 not in values for values in by_rank.values())
        versions = {rank: next(iter(values)) for rank, values in by_rank.items()} if still else {}
        if len(versions) == len(peers.ranks) and len({*versions.values()}) > 1 and len(steps) >= FEWEST:
            yield _beside_finding(gradients, peers, name, owner, versions, len(steps))


def _beside_finding(
    gradients: Gradients, peers: ReplicaGroup, name: str, owner: str, versions: Mapping[int, int], steps: int
) -> Finding:
    variants = variants_of(versions)
    odd = tuple(sorted(variants[1])) if len(variants) == 2 and len(variants[0]) > len(variants[1]) else peers.ranks
    what = f"`{name}`" + (f" ({owner})" if owner != name else "")
    event = next((e for r in odd for e in gradients.ranks[r].events(CopyUsed) if e.name == name and e.site), None)
    made = next(
        (e.site for r in odd for e in gradients.ranks[r].events(Copied) if e.name == name and e.site), SourceLine()
    )
    used = event.site if event is not None else SourceLine()
    return Finding(
        title=f"{what}, which nobody trains, has other weights on {named(odd)}"
        if odd != peers.ranks
        else f"{what}, which nobody trains, has other weights on each of {named(odd)}",
        ranks=odd,
        confidence=LIKELY if peers.by == WRAPPER else POSSIBLE,
        place=used or made,
        places=(
            *((Place(used, peers.ranks, "it computes"),) if used else ()),
            *((Place(made, peers.ranks, "it is made"),) if made else ()),
        ),
        evidence={"model": name, "versions": [list(one) for one in variants], "steps_compared": steps},
        why=f"the trained parameters are bit-identical on {named(peers.ranks)}, and each rank computes with a model beside them "
        "that no optimizer holds and no wrapper makes equal: where its output enters the loss, each rank has another aim",
        prescriptions=(
            Prescription(
                "refresh-everywhere",
                change="load it on every rank, seed all ranks alike before it is made, or broadcast its parameters from rank 0",
            ),
        ),
    )


def _matters(gradients: Gradients, course: CopyCourse) -> bool:
    """Whether the ranks keep their copies up themselves, or compute with them."""
    return all(
        any(used.name == course.name for used in gradients.ranks[rank].events(CopyUsed)) for rank in course.unchanging
    )


def _is_given_to_all(gradients: Gradients, peers: ReplicaGroup, course: CopyCourse) -> bool:
    """Whether the program's own collectives carry weights of the model's shapes between steps again and again, and the copy
    changes on every rank: one of them keeps it, and gives it to the others before it is used."""
    return not course.still and weights_are_exchanged(gradients, peers, 1)


def _finding(gradients: Gradients, course: CopyCourse, sources: Sources) -> Finding:
    odd, apart, last = course.odd, course.apart, max(course.digests)
    what, rest = _called(course), tuple(rank for rank in course.ranks if rank not in odd)
    if course.still:
        refresh, keep = ("refreshes" if len(odd) == 1 else "refresh"), ("keeps" if len(rest) == 1 else "keep")
        title = f"{named(odd)} never {refresh} {what}, while {named(rest)} {keep} changing it"
    elif course.from_the_start:
        title = f"{what} differs between {named(course.ranks)} from the start, although the replicas agree"
    else:
        title = (
            f"{what} differs between {named(course.ranks)} from step {apart[0]} on: they refresh it in different steps"
        )
    made, used = (_site(gradients, kind, course) for kind in (Copied, CopyUsed))
    writes = [] if course.from_the_start else writes_into(sources.texts, course.name, made, used)
    guarded = _guarded(sources, writes, course) if course.still else _refreshed(sources, writes, course)
    perhaps = _under_a_rank(sources, writes, course) if course.still and not guarded else ()
    asked = called_from(sources.texts, made) if made.function == "__init__" else SourceLine()
    if not course.is_module:
        asked = next(iter(instances_made(sources.texts, course.module)), SourceLine())
    return Finding(
        title=title,
        ranks=odd,
        confidence=LIKELY,
        place=guarded[0].site if guarded else used if course.still and used else asked or made or used,
        places=(
            *guarded,
            *((Place(asked, course.ranks, "asks for the copy"),) if asked else ()),
            *_places(made, used, course),
            *perhaps,
        ),
        evidence={
            "copy": course.name,
            "first_step_apart": apart[0],
            "steps_apart": len(apart),
            "steps_compared": len(course.digests),
            "versions": [list(variant) for variant in variants_of(course.digests[apart[-1]])],
        },
        why=f"the copies differ in {len(apart)} of {len(course.digests)} sampled steps, up to step {last}; the trained "
        "parameters are bit-identical on these ranks in all of them",
        prescriptions=(Prescription("refresh-everywhere"),),
    )


def _first(writes: list[Write]) -> SourceLine:
    return writes[0].site if writes else SourceLine()


def _guarded(sources: Sources, writes: list[Write], course: CopyCourse) -> tuple[Place, ...]:
    """The condition under which the source refreshes the copy, where it lets through just the ranks that do, and the line."""
    rest = tuple(rank for rank in course.ranks if rank not in course.odd)
    for write in writes:
        found = guard_for(sources.texts, write.site, rest, course.odd)
        if found is not None:
            return (
                Place(found[0], rest, f"the copy is refreshed only where `{found[1].only_if}`"),
                Place(write.site, rest, "refreshes the copy"),
            )
    return ()


def _refreshed(sources: Sources, writes: list[Write], course: CopyCourse) -> tuple[Place, ...]:
    """The condition that each rank answers for itself, and the lines that refresh the copy."""
    tests = (line for write in writes if (line := own_test(sources.texts, write)) is not None)
    return (
        *(Place(line, course.ranks, f"decides on each rank: `{text}`") for line, text in list(tests)[:1]),
        *(Place(write.site, course.ranks, "refreshes the copy") for write in writes[:4]),
    )


def _under_a_rank(sources: Sources, writes: list[Write], course: CopyCourse) -> tuple[Place, ...]:
    """The same for a condition on the rank and something else, so that nobody knows which ranks it lets through."""
    for write in writes:
        for guard in guards_at(sources.texts, write.site):
            if guard.on_rank and {guard.lets_through(rank) for rank in course.ranks} == {None}:
                line = SourceLine(write.site.path, guard.line, guard.function or write.site.function)
                return (Place(line, course.ranks, f"perhaps: refreshed only where `{guard.only_if}`"),)
    return ()


def _in_vain(gradients: Gradients, course: CopyCourse, sources: Sources) -> Finding:
    """Every rank refreshes it with what it holds already."""
    made, used = (_site(gradients, kind, course) for kind in (Copied, CopyUsed))
    last = max(course.digests)
    writes = writes_into(sources.texts, course.name, made, used)
    decides = last_before(sources.texts, writes, used) or (writes[0] if len(writes) == 1 else None)
    return Finding(
        title=f"{_called(course)} is refreshed again and again with the weights that training began with",
        ranks=course.ranks,
        confidence=LIKELY,
        place=decides.site if decides is not None else used or made or _first(writes),
        places=(
            *(Place(one.site, course.ranks, "writes into the copy") for one in writes[:4]),
            *_places(made, used, course),
        ),
        evidence={
            "copy": course.name,
            "steps_refreshed": course.refreshed_in_vain,
            "steps_compared": len(course.digests),
        },
        why=f"its tensors were written to before {course.refreshed_in_vain} of {len(course.digests)} sampled steps, and hold the "
        f"same bits up to step {last}; the trained parameters change in every step",
        prescriptions=(
            Prescription(
                "refresh-everywhere",
                change="refresh it from the model as it is now: a state_dict() that was cloned once does not follow the training",
            ),
        ),
    )


def _passed_over(gradients: Gradients, peers: ReplicaGroup, course: CopyCourse, sources: Sources) -> Iterator[Finding]:
    """A copy that the program refreshes by names, none of which it has: no rank ever wrote into it."""
    made, used = (_site(gradients, kind, course) for kind in (Copied, CopyUsed))
    steps = {update.site for updates in gradients.updates(peers).values() for update in updates}
    ran = {(site.path, site.function) for site in (*steps, used)}  # bodies that certainly ran
    writes = [w for w in writes_into(sources.texts, course.name, made, used) if (w.site.path, w.site.function) in ran]
    found = [(write, filtered_by_name(sources.texts, write)) for write in writes]
    for write, passed in found if all(passed for _, passed in found) else ():
        site, text = passed or (SourceLine(), "")
        yield Finding(
            title=f"{_called(course)} keeps the weights that training began with: what is to refresh it passes over every name",
            ranks=course.ranks,
            confidence=LIKELY,
            place=site,
            places=(
                Place(site, course.ranks, f"passes over names: `{text[:60]}`"),
                *((Place(write.site, course.ranks, "is to refresh the copy"),) if write.site != site else ()),
                *_places(made, used, course),
            ),
            evidence={"copy": course.name, "steps_compared": len(course.digests)},
            why=f"nothing was written into its tensors in {len(course.digests)} sampled steps, up to step {max(course.digests)}, "
            "in each of which the trained parameters changed",
            prescriptions=(
                Prescription(
                    "refresh-everywhere",
                    change="compare the names: those of a wrapped model begin with `module.` (hand over the state of "
                    "model.module, or of accelerator.unwrap_model(model)); and raise where a name is not known",
                ),
            ),
        )
        return


def _called(course: CopyCourse) -> str:
    return f"the copy `{course.name}`" + (f" ({course.module})" if course.module != course.name else "")


def _places(made: SourceLine, used: SourceLine, course: CopyCourse) -> tuple[Place, ...]:
    places = [Place(made, course.ranks, "the copy is made")] if made else []
    return (*places, *([Place(used, course.ranks, "the copy computes")] if used else []))


def _site(gradients: Gradients, kind: type[Copied] | type[CopyUsed], course: CopyCourse) -> SourceLine:
    for rank in (*course.odd, *course.ranks):
        for event in gradients.ranks[rank].events(kind):
            if event.name == course.name and event.site:
                return event.site
    return SourceLine()


def _job(odd: Mapping[int, int]) -> Recording:
    from distdoctor.testing.gradients import trained_job

    job = trained_job(2, buffers={"teacher": int(TensorFlag.BUFFER | TensorFlag.COPY)}).initial()
    job.note(Copied("teacher", "Linear"), site="train.py:16 main")
    for _ in range(5):
        job.step(buffers=odd)
    return job.recording()


def sick() -> Recording:
    """Each rank averages from the weights with which it began, before the wrapper made them equal."""
    return _job({1: 1})


def healthy() -> Recording:
    return _job({})
