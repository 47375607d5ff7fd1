"""Ranks own files of different size; Join lets the short ones shadow the collectives of the long ones."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset


def own_file(rank):
    """Each site measured as much as it could: 9, 13, 17, ... batches of rows."""
    gen = torch.Generator().manual_seed(300 + rank)
    shared = torch.Generator().manual_seed(1)
    weight = torch.randn(10, 1, generator=shared)
    rows = 16 * (9 + 4 * rank)
    x = torch.randn(rows, 10, generator=gen) + 0.3 * rank
    return TensorDataset(x, (x @ weight).tanh() + 0.05 * torch.randn(rows, 1, generator=gen))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    loader = DataLoader(own_file(rank), batch_size=16, shuffle=True,
                        generator=torch.Generator().manual_seed(rank))
    net = DDP(nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 1)))
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(4):
        total, count = 0.0, 0
        with Join([net]):
            for x, y in loader:
                loss = F.mse_loss(net(x), y)
                opt.zero_grad()
                loss.backward()
                opt.step()
                total += loss.item() * len(x)
                count += len(x)
        summary = torch.tensor([total, float(count)])
        dist.all_reduce(summary)
        if rank == 0:
            print(f"epoch {epoch}: {summary[0] / summary[1]:.4f} over {int(summary[1])} rows", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
