import argparse
import logging
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from lora import Net, adapt, adapter_names


def text(n, length, hop, seed):
    g = torch.Generator().manual_seed(seed)
    start = torch.randint(0, 64, (n, 1), generator=g)
    ids = (start + hop * torch.arange(length + 1)) % 64
    noise = torch.rand(ids.shape, generator=g) < 0.1
    return torch.where(noise, torch.randint(0, 64, ids.shape, generator=g), ids)


def pretrained():
    """A short plain training on the source domain, the same on every rank."""
    torch.manual_seed(0)
    net = Net()
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
    for s in range(25):
        ids = text(16, 24, 3, 1000 + s)
        loss = F.cross_entropy(net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
    return net


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--global-batch", type=int, default=32)
    ap.add_argument("--lr", type=float, default=1e-2)
    ap.add_argument("--out", default=None)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    net = adapt(pretrained())
    names = adapter_names(net)
    frozen = {n: p.detach().clone() for n, p in net.named_parameters() if n not in names}
    mesh = init_device_mesh("cpu", (world,))
    for b in net.blocks:
        fully_shard(b, mesh=mesh)
    fully_shard(net, mesh=mesh)
    train = [p for p in net.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(train, lr=args.lr, weight_decay=0.0)
    logging.info("training %d of %d tensors", len(train), len(list(net.parameters())))

    for step in range(args.steps):
        ids = text(args.global_batch, 24, 5, step).chunk(world)[rank]
        loss = F.cross_entropy(net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0 or step == args.steps - 1:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            logging.info("step %d loss %.5f", step, mean.item() / world)

    full = {n: p.full_tensor() if isinstance(p, DTensor) else p for n, p in net.named_parameters()}
    moved = max((full[n].detach() - frozen[n]).abs().max().item() for n in frozen)
    if rank == 0:
        out = args.out or tempfile.mkdtemp(prefix="adapter-")
        os.makedirs(out, exist_ok=True)
        torch.save({n: full[n].detach().clone() for n in names}, os.path.join(out, "adapter.pt"))
        logging.info("saved %d adapter tensors, base moved by %.3g, adapter norm %.6f", len(names), moved,
                     torch.stack([full[n].detach().norm() for n in names]).norm())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
