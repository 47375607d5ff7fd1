"""A thin layer that prepares model, optimizer, loader and scheduler for several processes."""
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


class PreparedScheduler:
    """Advances once per sample batch of the unsharded loader, that is once per process at each step."""

    def __init__(self, scheduler, num_processes, split_batches=False):
        self.scheduler, self.num_processes, self.split_batches = scheduler, num_processes, split_batches

    def step(self):
        for _ in range(1 if self.split_batches else self.num_processes):
            self.scheduler.step()

    def get_last_lr(self):
        return self.scheduler.get_last_lr()


class Launcher:
    def __init__(self):
        dist.init_process_group("gloo")
        self.rank, self.num_processes = dist.get_rank(), dist.get_world_size()
        self.is_main = self.rank == 0

    def prepare_loader(self, loader):
        sampler = DistributedSampler(loader.dataset, shuffle=True, drop_last=True)
        return DataLoader(loader.dataset, batch_size=loader.batch_size, sampler=sampler, drop_last=True)

    def prepare(self, model, optimizer, loader, scheduler):
        return (DistributedDataParallel(model), optimizer, self.prepare_loader(loader),
                PreparedScheduler(scheduler, self.num_processes))

    def mean(self, tensor):
        out = tensor.detach().clone()
        dist.all_reduce(out)
        return out / self.num_processes

    def end(self):
        dist.destroy_process_group()
