import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from evaluate import Strided, evaluate

EPOCHS, BATCH = 3, 20


def rows(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 16, generator=g)
    return TensorDataset(x, (x[:, 0] + x[:, 1] * x[:, 2] + 0.6 * torch.randn(n, generator=g) > 0).float())


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(33)
    net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
    model = DDP(net)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    train, test = rows(400, 1), rows(151, 2)
    sampler = DistributedSampler(train, seed=6)
    loader = DataLoader(train, batch_size=BATCH, sampler=sampler, drop_last=True)
    held_out = DataLoader(test, batch_size=17, sampler=Strided(len(test), rank, world))
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.binary_cross_entropy_with_logits(model(x).squeeze(1), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        auc, n = evaluate(net, held_out)
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f} auc {auc:.3f} over {n}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
