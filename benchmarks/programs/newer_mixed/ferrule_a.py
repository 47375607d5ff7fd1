"""Joint detection-style training: every image has a class, only some have a box."""
import argparse
import collections

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class TwoHeads(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.box_head = nn.Linear(width, 4)
        self.cls_head = nn.Linear(width, 6)
        self.trunk = nn.Sequential(nn.Linear(18, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())

    def forward(self, x, with_box):
        h = self.trunk(x)
        boxes = self.box_head(h[with_box]) if with_box.any() else None
        return self.cls_head(h), boxes


class Collection:
    def __init__(self, seed, rank, box_rate):
        self.g = torch.Generator().manual_seed(seed + 1000 * rank)
        self.rate = box_rate

    def next(self, n):
        x = torch.randn(n, 18, generator=self.g)
        cls = x[:, :6].argmax(1)
        with_box = torch.rand(n, generator=self.g) < self.rate
        return x, cls, with_box, x[:, 6:10].tanh()


def average_gradients(model):
    world = dist.get_world_size()
    for p in model.parameters():
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        dist.all_reduce(p.grad)
        p.grad /= world


def train(args):
    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    model = TwoHeads()
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    data = Collection(args.seed, rank, args.box_rate)
    recent = collections.deque(maxlen=10)
    for step in range(1, args.steps + 1):
        x, cls, with_box, target = data.next(args.batch)
        logits, boxes = model(x, with_box)
        loss = F.cross_entropy(logits, cls)
        if boxes is not None:
            loss = loss + F.smooth_l1_loss(boxes, target[with_box])
        opt.zero_grad()
        loss.backward()
        average_gradients(model)
        opt.step()
        recent.append(loss.item())
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {sum(recent) / len(recent):.4f}", flush=True)
    return model


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=50)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--box-rate", type=float, default=0.3)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--seed", type=int, default=31)
    args = p.parse_args()
    dist.init_process_group("gloo")
    model = train(args)
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), "/tmp/ferrule.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
