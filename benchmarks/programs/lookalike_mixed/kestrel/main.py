import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CLINICS = [210, 300, 165]


class Site:
    def __init__(self, number):
        g = torch.Generator().manual_seed(500 + number)
        n = CLINICS[number]
        x = torch.randn(n, 11, generator=g) + 0.2 * number
        self.data = TensorDataset(x, (x[:, 0] - x[:, 5] > 0).float())
        self.sampler = DistributedSampler(self.data, num_replicas=1, rank=0, seed=number)
        self.loader = DataLoader(self.data, batch_size=15, sampler=self.sampler)


def train_round(model, opt, site, index):
    site.sampler.set_epoch(index)
    total = torch.zeros(2)
    with Join([model]):
        for x, y in site.loader:
            opt.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(1), y)
            loss.backward()
            opt.step()
            total += torch.stack([loss.detach(), torch.tensor(1.0)])
    return total


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(33)
    model = DDP(nn.Sequential(nn.Linear(11, 30), nn.ReLU(), nn.Linear(30, 1)))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    site = Site(dist.get_rank())
    for index in range(4):
        total = train_round(model, opt, site, index)
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(f"round {index} loss {float(total[0] / total[1]):.4f} batches {int(total[1])}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
