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
        effect="Each of W ranks draws 1/W of the dataset per epoch; an epoch takes 1/W of the steps.",
        safety="changes the steps per epoch, and with them schedules that count steps",
        source="torch.utils.data.distributed.DistributedSampler",
    ),
    Remedy(
        slug="even-shards",
        what="Shard the data with DistributedSampler, drop the surplus of the larger shards, or wrap the "
        "loop in `with model.join():`.",
        how="with model.join():\n    for batch in loader:\n        ...",
        effect="All ranks run the same number of steps, or ranks that are done shadow the collectives of the others.",
        safety="join divides by the number of remaining ranks in the last steps; dropping skips some samples each epoch",
        source="torch.nn.parallel.DistributedDataParallel.join",
    ),
    Remedy(
        slug="leave-padding-out",
        what="Drop DistributedSampler's padding of the last round before computing the metric "
        "(accelerate: gather_for_metrics).",
        how="""real = len(range(rank, len(dataset), world_size))  # this rank's samples without the padding
outputs, targets = torch.cat(outputs)[:real], torch.cat(targets)[:real]""",
        effect="Each sample counts once.",
        source="torch.utils.data.distributed.DistributedSampler.__iter__",
    ),
    Remedy(
        slug="sum-then-divide",
        what="Add up the sum and the count of what was evaluated over all ranks with all_reduce, and divide once.",
        how="""both = torch.tensor([right, count], dtype=torch.float64)
dist.all_reduce(both)
score = (both[0] / both[1]).item()""",
        effect="Each sample counts once, whatever rank it was on.",
        safety="the score changes: compare with earlier ones only where they were counted in the same way",
        source="torch.distributed.all_reduce",
    ),
    Remedy(
        slug="restore-the-position",
        what="Save the epoch and the steps done in it; on resume call sampler.set_epoch(epoch) and skip the "
        "samples already drawn, or use StatefulDataLoader.",
        how="""checkpoint = {"model": ..., "epoch": epoch, "steps_done": step_in_epoch}
# resumed: the same order, from where the job stopped; the skipped samples are not read
sampler.set_epoch(epoch)
rest = list(sampler)[steps_done * batch_size :]
loader = DataLoader(dataset, batch_size=batch_size, sampler=rest if steps_done else sampler)""",
        effect="No sample of the current epoch repeats or is lost.",
        safety="the order stays that of the uninterrupted job",
        source="torchdata StatefulDataLoader (state_dict, load_state_dict) does the same for any loader",
    ),
    Remedy(
        slug="same-seed-and-epoch",
        what="Pass the same seed, epoch, length and shuffle to DistributedSampler on every rank, and each rank "
        "its own rank number.",
        how="sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank, seed=0)  # seed: equal on all ranks",
        effect="The shards of an epoch are disjoint and cover the dataset.",
        safety="changes the order of the samples, and with it the losses",
        source="torch.utils.data.distributed.DistributedSampler: `seed` should be identical across all processes",
    ),
    Remedy(
        slug="same-split-everywhere",
        what="Split with random_split and a generator that has the same seed on all ranks, and sort file "
        "lists from os.listdir or glob.",
        how="train, test = random_split(dataset, [0.9, 0.1], generator=torch.Generator().manual_seed(0))",
        effect="No rank trains on samples that another evaluates; the score is that of unseen samples.",
        safety="changes the training samples; scores before and after are not comparable",
        source="torch.utils.data.random_split",
    ),
    Remedy(
        slug="same-order-everywhere",
        what="Sort the list of samples (file names, set elements, dictionary keys) before the dataset keeps it; shuffle it, if "
        "at all, with a seed that is equal on all ranks.",
        how="self.names = sorted(names)  # not list(set), os.listdir or glob: their order is each process's own",
        effect="Sample number k is the same one on every rank, so the sampler's shares are disjoint.",
        safety="changes the order of the samples, and with it the losses",
        source='PYTHONHASHSEED in the Python documentation; os.listdir: "the list is in arbitrary order"',
    ),
    Remedy(
        slug="same-order-before-sharding",
        what="Shuffle the shards or samples of a stream with a generator whose seed is equal on all ranks, and let each rank "
        "take its share of that common order.",
        how="""order = list(range(shards))
random.Random(1009 * seed + epoch).shuffle(order)  # seed: without the rank in it
order = order[dist.get_rank() :: dist.get_world_size()]""",
        effect="Every sample arrives once per epoch, on one rank.",
        safety="changes the order of the samples, and with it the losses; seeds of augmentation may still differ by rank",
        source="datasets.distributed.split_dataset_by_node; torch.utils.data.IterableDataset",
    ),
    Remedy(
        slug="sampler-of-this-world",
        what="Omit num_replicas and rank in DistributedSampler, or pass the size and rank of the group that "
        "averages gradients.",
        how="""sampler = DistributedSampler(dataset)
# beside tensor parallel: DistributedSampler(dataset, num_replicas=dp_mesh.size(), rank=dp_mesh.get_local_rank())""",
        effect="Exactly one rank draws each shard.",
        safety="the steps per epoch may change",
        source="torch.utils.data.distributed.DistributedSampler.__init__",
    ),
    Remedy(
        slug="share-out-once",
        what="Share the data out once: by the sampler over the whole dataset, or by rank and then with an ordinary sampler.",
        how="""loader = DataLoader(dataset, sampler=DistributedSampler(dataset))      # the whole dataset on every rank
# or keep each rank's part, and no DistributedSampler: Lightning's Trainer(use_distributed_sampler=False),
# accelerate's loader without prepare()""",
        effect="Every sample is drawn once in an epoch.",
        safety="the steps per epoch grow by the number of ranks",
        source="torch.utils.data.distributed.DistributedSampler; Lightning's Trainer, use_distributed_sampler",
    ),
    Remedy(
        slug="seed-workers",
        what="Seed random, numpy and the dataset's generators from torch.initial_seed() in a worker_init_fn.",
        how="""def seed_worker(worker: int) -> None:
    seed = torch.initial_seed() % 2**32        # base_seed + worker, different in each epoch
    random.seed(seed)
    numpy.random.seed(seed)
    get_worker_info().dataset.rng = numpy.random.default_rng(seed)  # a generator that the dataset holds
loader = DataLoader(dataset, ..., worker_init_fn=seed_worker)""",
        effect="Every worker, epoch and (with its own seed) rank draws a different augmentation.",
        safety="the augmentation draws different numbers than before; runs stay reproducible from torch's seed",
        source="PyTorch notes on randomness, DataLoader; torch.utils.data._utils.worker (torch 2.15)",
    ),
    Remedy(
        slug="set-epoch",
        what="Call set_epoch(epoch) on the sampler at the top of the epoch loop, before iterating the loader.",
        how="""for epoch in range(epochs):
    sampler.set_epoch(epoch)
    for batch in loader:
        ...""",
        effect="Each epoch has a different order, the same on all ranks, so that their shards stay disjoint.",
        safety="changes the order of the samples from the second epoch on, and with it the losses",
        source="torch.utils.data.distributed.DistributedSampler, warning on set_epoch",
    ),
    Remedy(
        slug="shard-the-stream",
        what="Give each worker of each rank its own part of the stream, by rank and get_worker_info().",
        how="""def __iter__(self):
    info = get_worker_info()
    workers, worker = (info.num_workers, info.id) if info else (1, 0)
    part = dist.get_rank() * workers + worker  # get the rank before the workers start, and pass it to the dataset
    yield from itertools.islice(self.samples(), part, None, dist.get_world_size() * workers)""",
        effect="Every sample arrives once per epoch, over all ranks and workers.",
        safety="some ranks may get one sample more than others: drop the surplus, or use join",
        source="torch.utils.data.IterableDataset, examples 1 and 2",
    ),
    Remedy(
        slug="seed-by-rank-and-worker",
        what="Seed each stream with the number of the worker among those of all ranks: rank * num_workers + worker id.",
        how="""def __iter__(self):
    info = get_worker_info()
    workers, worker = (info.num_workers, info.id) if info else (1, 0)
    rng = random.Random(self.seed + self.rank * workers + worker)  # not rank + worker: two of them have the same sum""",
        effect="No two workers yield the same stream.",
        safety="changes the order of the samples, and with it the losses",
        source="torch.utils.data.IterableDataset, get_worker_info",
    ),
    Remedy(
        slug="shuffle-in-the-sampler",
        what="Use DistributedSampler(shuffle=True) with set_epoch(epoch), and drop shuffle= from the DataLoader.",
        how="""sampler = DistributedSampler(dataset, shuffle=True)
loader = DataLoader(dataset, batch_size=32, sampler=sampler)   # no shuffle= together with sampler=
for epoch in range(epochs):
    sampler.set_epoch(epoch)""",
        effect="Every epoch has a different order, the same on all ranks, and each rank draws its shard of it.",
        safety="changes the order of the samples, and with it the losses",
        source="torch.utils.data.DataLoader; torch.utils.data.distributed.DistributedSampler",
    ),
)
