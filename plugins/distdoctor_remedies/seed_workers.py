"""Let every worker draw from a state of its own, in every epoch."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

SEED_WORKERS = Remedy(
    slug="seed-workers",
    what="Seed what the samples draw from by the seed that torch gives each worker, other in each worker and epoch.",
    how="""def seed_worker(worker: int) -> None:
    seed = torch.initial_seed() % 2**32        # base_seed + worker, other in each epoch
    random.seed(seed)
    numpy.random.seed(seed)
    get_worker_info().dataset.rng = numpy.random.default_rng(seed)  # a generator that the data set holds
loader = DataLoader(dataset, ..., worker_init_fn=seed_worker)""",
    effect="Every worker, epoch and (with a seed of its own) rank draws an augmentation of its own.",
    safety="the augmentation draws other numbers than before; runs stay reproducible from torch's seed",
    source="PyTorch notes on randomness, DataLoader; torch.utils.data._utils.worker (torch 2.15)",
)
