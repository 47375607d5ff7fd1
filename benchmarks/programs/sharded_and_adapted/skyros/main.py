"""Pipeline-parallel training, one stage per process, micro-batches with a fill and a drain phase."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F

from stages import GPipe, build_stage

FEATURES, CLASSES = 30, 7


def parse():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--micro", type=int, default=4)
    ap.add_argument("--dim", type=int, default=72)
    ap.add_argument("--blocks", type=int, default=2)
    ap.add_argument("--dropout", type=float, default=0.05)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--max-norm", type=float, default=1.0)
    ap.add_argument("--seed", type=int, default=83)
    ap.add_argument("--out", default="runs/skyros")
    return ap.parse_args()


def table(n, seed):
    rule = torch.Generator().manual_seed(8)
    w, v = torch.randn(FEATURES, 16, generator=rule) / 3, torch.randn(16, CLASSES, generator=rule)
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, FEATURES, generator=g)
    return x, (torch.tanh(x @ w) @ v).argmax(1)


def clip_over_stages(parameters, ceiling):
    """The norm of the whole pipeline decides, every stage applies the same factor."""
    parameters = list(parameters)
    square = sum(p.grad.pow(2).sum() for p in parameters).detach().clone()
    dist.all_reduce(square)
    norm = square.sqrt()
    factor = (ceiling / (norm + 1e-6)).clamp(max=1.0)
    for p in parameters:
        p.grad.mul_(factor)
    return norm.item()


def share_from_last(value, stages):
    dist.broadcast(value, src=stages - 1)
    return value


def main():
    args = parse()
    dist.init_process_group("gloo")
    index, stages = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed + index)
    stage = build_stage(index, stages, FEATURES, args.dim, args.blocks, CLASSES, args.dropout)
    pipe = GPipe(stage, index, stages, args.dim, F.cross_entropy)
    optimizer = torch.optim.AdamW(stage.parameters(), lr=args.lr, weight_decay=0.01)
    train_x, train_y = table(1536, seed=1)
    test_x, test_y = table(400, seed=2)
    per_epoch = len(train_y) // args.batch
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * per_epoch)

    for epoch in range(args.epochs):
        order = torch.randperm(len(train_y), generator=torch.Generator().manual_seed(args.seed * 100 + epoch))
        total = torch.zeros(())
        for rows in order.split(args.batch):
            optimizer.zero_grad(set_to_none=True)
            total += pipe.step(train_x[rows].chunk(args.micro), train_y[rows].chunk(args.micro))
            norm = clip_over_stages(stage.parameters(), args.max_norm)
            optimizer.step()
            schedule.step()
        logits = pipe.predict(test_x)
        summary = torch.zeros(2)
        if pipe.last:
            summary = torch.stack([total / per_epoch, (logits.argmax(1) == test_y).float().mean()])
        summary = share_from_last(summary, stages)
        if index == 0:
            print(f"epoch {epoch} loss {summary[0]:.4f} accuracy {summary[1]:.4f} norm {norm:.3f}", flush=True)

    os.makedirs(args.out, exist_ok=True)
    torch.save({"stage": index, "of": stages, "model": stage.state_dict()},
               os.path.join(args.out, f"stage{index}.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
