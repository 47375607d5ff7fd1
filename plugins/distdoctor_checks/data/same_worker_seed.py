"""
DD308 same-worker-seed: workers, epochs or ranks draw the same random numbers.

What it means    The samples draw random numbers, and two workers begin an epoch with the same generator state, so both flip and
                 crop alike. Or a worker begins each epoch as it began the previous one. Or the workers of all ranks do, because
                 the ranks use the same seed.
Why it hurts     The augmentation repeats and has a fraction of its variety. Nothing else shows it.
How we know      Digests of the generators' states before a worker's first batch, for the generators that changed while samples
                 were read: torch's, Python's and NumPy's own, and generators that the dataset or its transforms hold (every
                 worker gets a copy).
What to do       Let torch seed the workers (it seeds all three differently in each worker and epoch), drop the worker_init_fn
                 that seeds them alike, create generators in worker_init_fn from get_worker_info().seed, and seed each rank
                 differently.
When it is fine  Samples that draw nothing are never blamed, nor a generator that each sample seeds anew. Ranks
                 alike but workers different is a note: different samples get the same draws, which costs little. Where the
                 dataset does not read the index that it is asked for, random numbers choose the samples: then it is a warning,
                 likely, that ranks with the same data train on the same samples, unless their losses differ.
Source           torch.utils.data._utils.worker._worker_loop (torch 2.15): base_seed + worker_id; "NumPy's random in workers".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from distdoctor.diagnosis.check import check
from distdoctor.diagnosis.data.samples import LoaderPass, SampleOrders
from distdoctor.diagnosis.data.sharing import one_content
from distdoctor.diagnosis.data.worker_rng import Worker, WorkerRng
from distdoctor.diagnosis.facts.replicas import Replicas
from distdoctor.diagnosis.facts.sources import Sources
from distdoctor.diagnosis.finding import CERTAIN, LIKELY, NOTE, WARNING, Finding, Place, Prescription
from distdoctor.diagnosis.replicas.gradients import Gradients
from distdoctor.diagnosis.replicas.used_factor import losses_differ
from distdoctor.diagnosis.source.stream_seeds import worker_seed
from distdoctor.diagnosis.source.unread_index import unread_index
from distdoctor.recording.rank_set import compress, named
from distdoctor.recording.recording import Recording, SourceLine

_OWN_SEED = {"random": "random.seed(seed + rank)", "numpy": "numpy.random.seed(seed + rank)"}


@check("DD308", "same-worker-seed", severity=WARNING)
def examine(
    orders: SampleOrders, noise: WorkerRng, replicas: Replicas, sources: Sources, gradients: Gradients | None
) -> Iterator[Finding]:
    told: set[str] = set()
    for alike, found in (
        ("workers", _by_worker(orders, noise)),
        ("epochs", _by_epoch(orders, noise)),
        ("ranks", _by_rank(orders, noise, replicas)),
    ):
        for passes, workers in found:
            line = str(next(iter(passes.values())).made_line)
            if line not in told:
                told.add(line)
                finding = _finding(alike, passes, workers, sources)
                chosen = alike == "ranks" and _samples_are_drawn_alike(passes, noise, gradients)
                unread = unread_index(sources.texts, next(iter(passes.values())).data.name) if chosen else SourceLine()
                yield _same_samples(finding, unread) if unread else finding


Found = tuple[dict[int, LoaderPass], list[Worker]]


def _by_worker(orders: SampleOrders, noise: WorkerRng) -> Iterator[Found]:
    """Training passes in which several workers of one rank began alike, with all ranks in which they did."""
    found: dict[str, dict[int, tuple[LoaderPass, list[Worker]]]] = defaultdict(dict)
    for rank, passes in orders.by_rank.items():
        for one in passes:
            alike = _alike(noise.workers(rank, one.seq)) if one.trains else []
            if alike:
                found[str(one.made_line)].setdefault(rank, (one, alike))
    for by_rank in found.values():
        yield {rank: one for rank, (one, _) in by_rank.items()}, next(iter(by_rank.values()))[1]


def _alike(workers: list[Worker]) -> list[Worker]:
    """The largest set of workers that share a state."""
    by_state: dict[tuple[str, int], list[Worker]] = defaultdict(list)
    for worker in workers:
        for state in worker.states.items():
            by_state[state].append(worker.only(state[0]))
    largest = max(by_state.values(), key=len, default=[])
    return largest if len(largest) > 1 else []


def _by_epoch(orders: SampleOrders, noise: WorkerRng) -> Iterator[Found]:
    """A loader whose workers begin an epoch as they began the one before."""
    found: dict[str, dict[int, tuple[LoaderPass, list[Worker]]]] = defaultdict(dict)
    for rank in orders.by_rank:
        for passes in orders.by_loader(rank).values():
            training = [one for one in passes if one.trains and noise.workers(rank, one.seq)]
            for earlier, later in pairwise(training):
                again = _again(noise.workers(rank, earlier.seq), noise.workers(rank, later.seq))
                if again and earlier.optimizer == later.optimizer:
                    found[str(later.made_line)].setdefault(rank, (later, again))
    for by_rank in found.values():
        yield {rank: one for rank, (one, _) in by_rank.items()}, next(iter(by_rank.values()))[1]


def _again(earlier: list[Worker], later: list[Worker]) -> list[Worker]:
    pairs = zip(earlier, later, strict=False)
    same = [
        (one, next((n for n, state in one.states.items() if before.states.get(n) == state), ""))
        for before, one in pairs
    ]
    return [one.only(name) for one, name in same if name]


def _by_rank(orders: SampleOrders, noise: WorkerRng, replicas: Replicas) -> Iterator[Found]:
    """Replicas whose first workers begin an epoch alike."""
    for together in orders.together():
        for known in replicas.sets:
            passes = dict(together.among(known.ranks).passes)
            first = [noise.workers(rank, one.seq)[:1] for rank, one in passes.items()]
            if not together.trains or len(passes) < 2 or not all(first):
                continue
            states = [set(workers[0].states.items()) for workers in first]
            shared = set.intersection(*states)
            if shared:
                yield passes, [first[0][0].only(min(shared)[0])]


def _finding(alike: str, passes: dict[int, LoaderPass], workers: list[Worker], sources: Sources) -> Finding:
    one, ranks = next(iter(passes.values())), tuple(passes)
    source = next(iter(workers[0].states))
    seeds = worker_seed(sources.texts, one.data.name, own=source == "dataset")
    numbers = [worker.number for worker in workers]
    what = {
        "workers": f"workers {compress(numbers)} of {named(ranks)} draw the same random numbers",
        "epochs": f"the workers of {named(ranks)} repeat the random numbers of the previous epoch",
        "ranks": f"{named(ranks)} draw the same random numbers",
    }[alike]
    severity = NOTE if alike == "ranks" else WARNING
    return Finding(
        title=f"{what}: {_words(source)} starts from the same RNG state",
        ranks=ranks,
        severity=severity,
        confidence=CERTAIN,
        place=seeds[0][0] if seeds else one.made_line or one.loop_line,
        places=(
            *(Place(line, ranks, f"seeds in each worker: `{text}`") for line, text in seeds),
            Place(one.made_line, ranks, f"the loader is created, {one.workers} workers"),
            Place(one.loop_line, ranks, "iterates it for training"),
        ),
        evidence={"generator": source, "workers": numbers, "epoch": one.number - 1, "dataset": one.data.name},
        why=f"the RNG state before the first batch is equal, and reading {one.data.name} draws from it",
        prescriptions=(_seeded(source, one) if alike == "ranks" else Prescription("seed-workers"),),
        at_ns=one.started_ns,
    )


def _seeded(source: str, one: LoaderPass) -> Prescription:
    """Without workers each generator has the seed that the script gave it; workers get all of theirs from torch's."""
    own = _OWN_SEED.get(source, "") if not one.workers else ""
    return Prescription("seed-by-rank", change=f"{own}  # after the model is built" if own else "")


def _samples_are_drawn_alike(passes: dict[int, LoaderPass], noise: WorkerRng, gradients: Gradients | None) -> bool:
    """Whether ranks with the same data begin with the same states of all that they draw from."""
    states = [[worker.states for worker in noise.workers(rank, one.seq)] for rank, one in passes.items()]
    same = one_content(list(passes.values())) and all(one.data.pieces for one in passes.values())
    apart = losses_differ(gradients, passes) if gradients is not None else None
    return same and apart is not True and all(own == states[0] for own in states)


def _same_samples(finding: Finding, unread: SourceLine) -> Finding:
    """What random numbers choose are the samples themselves."""
    name = finding.evidence["dataset"]
    return replace(
        finding,
        title=finding.title.replace("the same random numbers", f"the same samples of {name}"),
        severity=WARNING,
        confidence=LIKELY,
        places=(Place(unread, finding.ranks, "does not read the index that it is given"), *finding.places),
        why=f"{name} chooses its samples by random numbers, not by the index that the sampler asks for; {finding.why}",
    )


def _words(source: str) -> str:
    return "a generator of the dataset" if source == "dataset" else f"{source}'s generator"


def _job(numpy: dict[int, tuple[int, int]], drawn_from: int = 4) -> Recording:
    """Two workers a rank. `numpy`: the state of NumPy's generator in each; the others begin apart."""
    from distdoctor.testing.samples import sampled_job

    job = sampled_job(ranks=2, length=100).train(workers=2)
    for rank, states in numpy.items():
        for worker, state in enumerate(states):
            own = 10 * rank + worker + 1
            job.logs[rank].worker(1, worker, drawn_from, torch=own, random=own + 5, numpy=state)
    return job.recording()


def sick() -> Recording:
    """A worker_init_fn that seeds NumPy with a constant."""
    return _job({0: (5, 5), 1: (5, 5)})


def healthy() -> Recording:
    """NumPy begins alike in both workers, but the samples draw from torch alone."""
    return _job({0: (5, 5), 1: (5, 5)}, drawn_from=1)
