"""Remedies for data and samplers."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

REMEDIES = (
    Remedy(
        slug="distributed-sampler",
        what="Pass DistributedSampler(dataset) to the DataLoader instead of shuffle=True, and call "
        "sampler.set_epoch(epoch) every epoch.",
        how="""sampler = DistributedSampler(dataset)  # shuffles; shuffle=False for evaluation
loader = DataLoader(dataset, batch_size=batch_size, sampler=sampler)
for epoch in range(epochs):
    sampler.set_epoch(epoch)""",
        effect="With W ranks each draws 1/W of the data set per epoch; an epoch takes 1/W of the steps.",
        safety="the steps per epoch change, and with them schedules that count steps",
        source="torch.utils.data.distributed.DistributedSampler",
    ),
    Remedy(
        slug="even-shards",
        what="Split the data with DistributedSampler, drop the surplus of the larger shards, or wrap the "
        "loop in `with model.join():`.",
        how="with model.join():\n    for batch in loader:\n        ...",
        effect="All ranks make the same number of steps, or those that are done stand in for the missing ones.",
        safety="join divides by the ranks that are left in the last steps; dropping leaves some samples out of an epoch",
        source="torch.nn.parallel.DistributedDataParallel.join",
    ),
    Remedy(
        slug="leave-padding-out",
        what="Drop the samples that DistributedSampler adds to fill the last round before the metric is "
        "computed (accelerate: gather_for_metrics).",
        how="""real = len(range(rank, len(dataset), world_size))  # this rank's samples without the padding
outputs, targets = torch.cat(outputs)[:real], torch.cat(targets)[:real]""",
        effect="Each sample counts once.",
        source="torch.utils.data.distributed.DistributedSampler.__iter__",
    ),
    Remedy(
        slug="restore-the-position",
        what="Save the epoch and the steps done in it; on resume call sampler.set_epoch(epoch) and skip the "
        "samples already drawn, or use StatefulDataLoader.",
        how="""checkpoint = {"model": ..., "epoch": epoch, "steps_done": step_in_epoch}
# resumed: the same order, from where it had stopped; the skipped samples are not read
sampler.set_epoch(epoch)
rest = list(sampler)[steps_done * batch_size :]
loader = DataLoader(dataset, batch_size=batch_size, sampler=rest if steps_done else sampler)""",
        effect="No sample of the epoch under way repeats, none is lost.",
        safety="the order stays that of the uninterrupted job",
        source="torchdata StatefulDataLoader (state_dict, load_state_dict) does the same for any loader",
    ),
    Remedy(
        slug="same-seed-and-epoch",
        what="Pass the same seed, epoch, length and shuffle to DistributedSampler on every rank, and to each "
        "its own rank.",
        how="sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank, seed=0)  # seed: equal on all ranks",
        effect="The shares of an epoch are disjoint and cover the data set.",
        safety="changes the order of the samples, and with it the losses",
        source="torch.utils.data.distributed.DistributedSampler: `seed` should be identical across all processes",
    ),
    Remedy(
        slug="same-split-everywhere",
        what="Split with random_split and a generator that has the same seed on all ranks, and sort file "
        "lists from os.listdir or glob.",
        how="train, test = random_split(dataset, [0.9, 0.1], generator=torch.Generator().manual_seed(0))",
        effect="No rank trains on what another evaluates; the score is that of unseen samples.",
        safety="changes which samples are trained on; scores before and after do not compare",
        source="torch.utils.data.random_split",
    ),
    Remedy(
        slug="sampler-of-this-world",
        what="Omit num_replicas and rank in DistributedSampler, or pass the size and rank of the group that "
        "averages gradients.",
        how="""sampler = DistributedSampler(dataset)
# beside tensor parallel: DistributedSampler(dataset, num_replicas=dp_mesh.size(), rank=dp_mesh.get_local_rank())""",
        effect="Every share is drawn by exactly one rank.",
        safety="the steps per epoch may change",
        source="torch.utils.data.distributed.DistributedSampler.__init__",
    ),
    Remedy(
        slug="seed-workers",
        what="Seed random, numpy and the data set's generators from torch.initial_seed() in a worker_init_fn.",
        how="""def seed_worker(worker: int) -> None:
    seed = torch.initial_seed() % 2**32        # base_seed + worker, other in each epoch
    random.seed(seed)
    numpy.random.seed(seed)
    get_worker_info().dataset.rng = numpy.random.default_rng(seed)  # a generator that the data set holds
loader = DataLoader(dataset, ..., worker_init_fn=seed_worker)""",
        effect="Every worker, epoch and (with a seed of its own) rank draws an augmentation of its own.",
        safety="the augmentation draws other numbers than before; runs stay reproducible from torch's seed",
        source="PyTorch notes on randomness, DataLoader; torch.utils.data._utils.worker (torch 2.15)",
    ),
    Remedy(
        slug="set-epoch",
        what="Call set_epoch(epoch) on the sampler at the top of the epoch loop, before the loader is iterated.",
        how="""for epoch in range(epochs):
    sampler.set_epoch(epoch)
    for batch in loader:
        ...""",
        effect="Each epoch has an order of its own, the same on all ranks, so that their shares stay disjoint.",
        safety="changes the order of the samples from the second epoch on, and with it the losses",
        source="torch.utils.data.distributed.DistributedSampler, warning on set_epoch",
    ),
    Remedy(
        slug="shard-the-stream",
        what="Give each worker of each rank its own part of the stream, by rank and get_worker_info().",
        how="""def __iter__(self):
    info = get_worker_info()
    workers, worker = (info.num_workers, info.id) if info else (1, 0)
    part = dist.get_rank() * workers + worker  # take the rank before the workers start, and hand it to the data set
    yield from itertools.islice(self.samples(), part, None, dist.get_world_size() * workers)""",
        effect="Every sample comes once per epoch, over all ranks and workers.",
        safety="ranks may get a sample more or less than others: drop the surplus, or use join",
        source="torch.utils.data.IterableDataset, examples 1 and 2",
    ),
    Remedy(
        slug="shuffle-in-the-sampler",
        what="Use DistributedSampler(shuffle=True) with set_epoch(epoch), and drop shuffle= from the DataLoader.",
        how="""sampler = DistributedSampler(dataset, shuffle=True)
loader = DataLoader(dataset, batch_size=32, sampler=sampler)   # no shuffle= beside sampler=
for epoch in range(epochs):
    sampler.set_epoch(epoch)""",
        effect="Every epoch has an order of its own, the same one on all ranks, each rank its share of it.",
        safety="changes the order of the samples, and with it the losses",
        source="torch.utils.data.DataLoader; torch.utils.data.distributed.DistributedSampler",
    ),
)
