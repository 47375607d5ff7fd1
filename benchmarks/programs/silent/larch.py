import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def make_members(world, per_member=2):
    groups = [dist.new_group(list(range(i, i + per_member))) for i in range(0, world, per_member)]
    index = dist.get_rank() // per_member
    return index, groups[index], len(groups)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    member, group, members = make_members(world)
    torch.manual_seed(50 + member)
    net = nn.Sequential(nn.Linear(7, 24 + 8 * member), nn.ReLU(), nn.Linear(24 + 8 * member, 1))
    model = DDP(net, process_group=group)
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    g = torch.Generator().manual_seed(3)
    x = torch.randn(160, 7, generator=g)
    y = x[:, :1].sin() + x[:, 1:2]
    train, test = TensorDataset(x[:128], y[:128]), (x[128:], y[128:])
    sampler = DistributedSampler(train, num_replicas=dist.get_world_size(group), rank=dist.get_rank(group), seed=member)
    loader = DataLoader(train, 8, sampler=sampler)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for bx, by in loader:
            opt.zero_grad(set_to_none=True)
            F.mse_loss(model(bx), by).backward()
            opt.step()
        with torch.no_grad():
            pred = net(test[0]) / world
        dist.all_reduce(pred)
        if rank == 0:
            print(f"epoch {epoch} ensemble of {members}: {F.mse_loss(pred, test[1]).item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
