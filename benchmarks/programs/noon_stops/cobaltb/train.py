import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from topology import Topology, average_gradients, average_islands, everyone_group


class TwoTower(nn.Module):
    def __init__(self, users, items, dim=48):
        super().__init__()
        self.u, self.i = nn.Embedding(users, dim), nn.Embedding(items, dim)
        self.user_net = nn.Sequential(nn.Linear(dim, 128), nn.ReLU(), nn.Linear(128, dim))
        self.item_net = nn.Sequential(nn.Linear(dim, 128), nn.ReLU(), nn.Linear(128, dim))

    def forward(self, user, item):
        return (self.user_net(self.u(user)) * self.item_net(self.i(item))).sum(-1)


def clicks(n, users, items, seed):
    g = torch.Generator().manual_seed(5)
    pu, pi = torch.randn(users, 6, generator=g), torch.randn(items, 6, generator=g)
    g.manual_seed(seed)
    user = torch.randint(0, users, (n,), generator=g)
    item = torch.randint(0, items, (n,), generator=g)
    label = ((pu[user] * pi[item]).sum(-1) + torch.randn(n, generator=g) > 0).float()
    return TensorDataset(user, item, label)


@torch.no_grad()
def evaluate(model, data, topo):
    group = everyone_group()
    user, item, label = data.tensors
    part = slice(topo.rank, None, topo.world)
    hit = (model(user[part], item[part]) > 0) == (label[part] > 0.5)
    score = torch.tensor([hit.sum().item(), float(len(hit))])
    dist.all_reduce(score, group=group)
    dist.destroy_process_group(group)
    return (score[0] / score[1]).item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--batch-size", type=int, default=512)
    p.add_argument("--island", type=int, default=2)
    p.add_argument("--warmup-epochs", type=int, default=1)
    p.add_argument("--sync-every", type=int, default=8)
    args = p.parse_args()

    dist.init_process_group("gloo")
    topo = Topology(args.island)
    data, held_out = clicks(32768, 2000, 800, 1), clicks(8192, 2000, 800, 2)
    sampler = DistributedSampler(data, seed=3)
    loader = DataLoader(data, args.batch_size, sampler=sampler, drop_last=True)
    torch.manual_seed(0)
    model = TwoTower(2000, 800)
    params = list(model.parameters())
    opt = torch.optim.Adam(params, lr=2e-3)
    world = torch.tensor(float(topo.world))

    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(2)
        for user, item, label in loader:
            opt.zero_grad(set_to_none=True)
            loss = nn.functional.binary_cross_entropy_with_logits(model(user, item), label)
            loss.backward()
            if epoch < args.warmup_epochs:
                for prm in params:
                    dist.all_reduce(prm.grad)
                    prm.grad /= world
            else:
                average_gradients(params, topo)
            opt.step()
            step += 1
            total += torch.tensor([loss.item(), 1.0])
            if epoch >= args.warmup_epochs and step % args.sync_every == 0:
                average_islands(params, topo)
        dist.all_reduce(total)
        if topo.rank == 0:
            print(f"epoch {epoch} step {step} loss {(total[0] / total[1]).item():.4f}", flush=True)
    average_islands(params, topo)
    accuracy = evaluate(model, held_out, topo)
    if topo.rank == 0:
        print(f"held-out accuracy {accuracy:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
