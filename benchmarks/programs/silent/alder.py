import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class LocalSGDTrainer:
    """Trains without gradient synchronisation and averages the parameters every few steps."""

    def __init__(self, model, data, period=4, warmup=6, lr=0.05):
        self.model = DDP(model)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=lr)
        self.period, self.warmup, self.step_no = period, warmup, 0
        self.sampler = DistributedSampler(data)
        self.loader = DataLoader(data, batch_size=8, sampler=self.sampler)

    @torch.no_grad()
    def average_parameters(self):
        world = dist.get_world_size()
        flat = nn.utils.parameters_to_vector(self.model.parameters())
        dist.all_reduce(flat)
        nn.utils.vector_to_parameters(flat / world, self.model.parameters())

    def train_step(self, x, y):
        local = self.step_no >= self.warmup
        self.opt.zero_grad(set_to_none=True)
        if local:
            with self.model.no_sync():
                loss = F.cross_entropy(self.model(x), y)
                loss.backward()
        else:
            loss = F.cross_entropy(self.model(x), y)
            loss.backward()
        self.opt.step()
        self.step_no += 1
        if local and (self.step_no - self.warmup) % self.period == 0:
            self.average_parameters()
        return loss.detach()

    def fit(self, epochs):
        for epoch in range(epochs):
            self.sampler.set_epoch(epoch)
            losses = [self.train_step(x, y) for x, y in self.loader]
            self.average_parameters()
            mean = torch.stack(losses).mean()
            dist.all_reduce(mean)
            if dist.get_rank() == 0:
                print(f"epoch {epoch} {mean.item() / dist.get_world_size():.4f}", flush=True)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    x = torch.randn(240, 10, generator=g)
    data = TensorDataset(x, (x @ torch.randn(10, 4, generator=g)).argmax(1))
    LocalSGDTrainer(nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 4)), data).fit(3)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
