import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from trainer import Trainer


def corpus(n=768, d=24):
    g = torch.Generator().manual_seed(4)
    x = torch.randn(n, d, generator=g)
    w = torch.randn(d, generator=g)
    return TensorDataset(x, (x @ w).sin() * 3 + 0.1 * torch.randn(n, generator=g))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(8)
    net = torch.nn.Sequential(
        torch.nn.Linear(24, 48), torch.nn.SiLU(), torch.nn.Linear(48, 48), torch.nn.SiLU(), torch.nn.Linear(48, 1)
    )
    data = corpus()
    sampler = DistributedSampler(data, shuffle=True, seed=1)
    loader = DataLoader(data, batch_size=32, sampler=sampler, drop_last=True)
    model = DDP(net)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    Trainer(model, opt, loader, max_norm=0.5).fit(epochs=4)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
