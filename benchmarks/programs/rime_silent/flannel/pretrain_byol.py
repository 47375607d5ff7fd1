"""Self-supervised pretraining with a slow target, followed by a nearest neighbour check."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from nets import Momentum, Online, regression_loss


def make_images(n, seed, classes=8):
    g = torch.Generator().manual_seed(seed)
    proto = F.interpolate(torch.randn(classes, 3, 6, 6, generator=torch.Generator().manual_seed(1)), size=24)
    y = torch.randint(classes, (n,), generator=g)
    return TensorDataset(proto[y] + 0.4 * torch.randn(n, 3, 24, 24, generator=g), y)


def view(x):
    if torch.rand(()) < 0.5:
        x = x.flip(-1)
    dx, dy = torch.randint(-3, 4, (2,)).tolist()
    x = x.roll((dx, dy), (-2, -1))
    gain = 0.8 + 0.4 * torch.rand(x.size(0), 3, 1, 1)
    return x * gain + 0.1 * torch.randn_like(x)


@torch.no_grad()
def knn_accuracy(net, bank, query):
    net.eval()
    feats = F.normalize(net.trunk(bank.tensors[0]), dim=-1)
    q = F.normalize(net.trunk(query.tensors[0]), dim=-1)
    votes = bank.tensors[1][(q @ feats.T).topk(5).indices]
    net.train()
    return (votes.mode(1).values == query.tensors[1]).float().mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--images", type=int, default=2048)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--tau", type=float, default=0.99)
    ap.add_argument("--seed", type=int, default=42)
    ap.add_argument("--ckpt", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "encoder.pt"))
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(args.seed + rank)

    data = make_images(args.images, 0)
    sampler = DistributedSampler(data, seed=args.seed, drop_last=True)
    loader = DataLoader(data, args.batch, sampler=sampler, drop_last=True)

    online = Online()
    model = DDP(online)
    target = Momentum(online.encoder, args.tau)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-4)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(2)
        for x, _ in loader:
            a, b = view(x), view(x)
            pa, pb = model(a, b)
            za, zb = target(torch.cat([a, b])).chunk(2)
            loss = 0.5 * (regression_loss(pa, zb) + regression_loss(pb, za))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            target.update(online.encoder)
            total += torch.tensor([loss.item(), 1.0])
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch} loss {total[0] / total[1]:.4f}", flush=True)
            torch.save({"online": online.state_dict(), "target": target.net.state_dict()}, args.ckpt)
        dist.barrier()
    if rank == 0:
        acc = knn_accuracy(online.encoder, make_images(512, 1), make_images(256, 2))
        print(f"knn accuracy {acc:.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
