import argparse
import os
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn

from sparse import TopKMomentum


class Tower(nn.Module):
    def __init__(self, d, h, c):
        super().__init__()
        self.a = nn.Linear(d, h)
        self.b = nn.Linear(h, h)
        self.c = nn.Linear(h, c)

    def forward(self, x):
        x = torch.relu(self.a(x))
        x = x + torch.relu(self.b(x))
        return self.c(x)


class Stream:
    def __init__(self, rank, d, c):
        self.rank, self.d = rank, d
        self.teacher = torch.randn(d, c, generator=torch.Generator().manual_seed(1))

    def at(self, step, n):
        g = torch.Generator().manual_seed(step * 64 + self.rank)
        x = torch.randn(n, self.d, generator=g)
        return x, (x @ self.teacher).argmax(1)


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--dim", type=int, default=48)
    p.add_argument("--hidden", type=int, default=160)
    p.add_argument("--classes", type=int, default=12)
    p.add_argument("--batch", type=int, default=96)
    p.add_argument("--lr", type=float, default=0.02)
    p.add_argument("--steps", type=int, default=300)
    p.add_argument("--save-every", type=int, default=75)
    return p.parse_args()


def leg(args, path, stream, until):
    torch.manual_seed(8)
    net = Tower(args.dim, args.hidden, args.classes)
    opt = TopKMomentum(net.named_parameters(), args.lr)
    first = 0
    if os.path.exists(path):
        ck = torch.load(path, weights_only=True)
        net.load_state_dict(ck["net"])
        for k, v in ck["mom"].items():
            opt.mom[k].copy_(v)
        first = ck["step"]
    hits = seen = 0
    for step in range(first, until):
        x, y = stream.at(step, args.batch)
        logits = net(x)
        loss = nn.functional.cross_entropy(logits, y)
        loss.backward()
        opt.step()
        hits += (logits.argmax(1) == y).sum().item()
        seen += len(y)
        if step % 25 == 24:
            t = torch.tensor([hits, seen], dtype=torch.float64)
            dist.all_reduce(t)
            if dist.get_rank() == 0:
                print(f"step {step + 1} loss {loss.item():.3f} acc {(t[0] / t[1]).item():.3f}", flush=True)
            hits = seen = 0
    opt.flush()
    if dist.get_rank() == 0:
        torch.save(dict(net=net.state_dict(), mom=opt.mom, step=until), path)
    dist.barrier()


def main():
    args = parse()
    dist.init_process_group("gloo")
    box = [tempfile.mkdtemp(prefix="tower-") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box, src=0)
    stream = Stream(dist.get_rank(), args.dim, args.classes)
    for until in range(args.save_every, args.steps + 1, args.save_every):
        leg(args, os.path.join(box[0], "tower.pt"), stream, until)
    if dist.get_rank() == 0:
        shutil.rmtree(box[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
