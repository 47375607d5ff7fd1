import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from model import Net
from saver import Saver
from topology import Topology

logger = logging.getLogger("islands")


def synthetic(n=8192, dim=64, classes=8, seed=5):
    g = torch.Generator().manual_seed(seed)
    centers = torch.randn(classes, dim, generator=g)
    y = torch.randint(0, classes, (n,), generator=g)
    return TensorDataset(centers[y] + 2.0 * torch.randn(n, dim, generator=g), y)


def sync_running_stats(topo, net):
    """Average the running statistics of the islands through their leaders."""
    buffers = [b for _, b in sorted(net.named_buffers())]
    flat = torch.cat([b.flatten() for b in buffers])
    if topo.is_leader:
        dist.all_reduce(flat, group=topo.leader_group)
        flat /= len(topo.leaders)
    dist.broadcast(flat, src=topo.members[0], group=topo.island_group)
    for b, chunk in zip(buffers, flat.split([b.numel() for b in buffers])):
        b.copy_(chunk.view_as(b))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--island-size", type=int, default=2)
    p.add_argument("--epochs", type=int, default=5)
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--checkpoint", default="islands.pt")
    args = p.parse_args()

    dist.init_process_group("gloo")
    logging.basicConfig(level=logging.INFO if dist.get_rank() == 0 else logging.ERROR)
    torch.manual_seed(1)
    topo = Topology(args.island_size)
    net = Net(topo)
    ddp = DDP(net, broadcast_buffers=False)
    opt = torch.optim.AdamW(ddp.parameters(), lr=args.lr)
    saver = Saver(args.checkpoint)
    data = synthetic()
    sampler = DistributedSampler(data, seed=1, drop_last=True)
    loader = DataLoader(data, args.batch_size, sampler=sampler, drop_last=True)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        ddp.train()
        meter = torch.zeros(3)
        for x, y in loader:
            out = ddp(x)
            loss = F.cross_entropy(out, y, label_smoothing=0.05)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            hits = (out.detach().argmax(1) == y).sum()
            meter += torch.tensor([loss.item() * len(y), hits.item(), len(y)])
        sync_running_stats(topo, net)
        dist.all_reduce(meter)
        logger.info("epoch %d loss %.4f acc %.4f", epoch, meter[0] / meter[2], meter[1] / meter[2])
        saver.save(epoch, net, opt)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
