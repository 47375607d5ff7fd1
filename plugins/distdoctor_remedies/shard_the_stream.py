"""Let each rank and worker yield its own part of an iterable data set."""

from __future__ import annotations

from distdoctor.diagnosis.remedy import Remedy

SHARD_THE_STREAM = Remedy(
    slug="shard-the-stream",
    what="Let each worker of each rank take its own part of the stream.",
    how="""def __iter__(self):
    info = get_worker_info()
    workers, worker = (info.num_workers, info.id) if info else (1, 0)
    part = dist.get_rank() * workers + worker  # take the rank before the workers start, and hand it to the data set
    yield from itertools.islice(self.samples(), part, None, dist.get_world_size() * workers)""",
    effect="Every sample comes once per epoch, over all ranks and workers.",
    safety="ranks may get a sample more or less than others: drop the surplus, or use join",
    source="torch.utils.data.IterableDataset, examples 1 and 2",
)
