import argparse

import torch
import torch.distributed as dist
from torch.nn import functional as F

from stages import GPipe, build_stage


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=40)
    p.add_argument("--micro-batches", type=int, default=4)
    p.add_argument("--micro-size", type=int, default=8)
    p.add_argument("--seq", type=int, default=16)
    p.add_argument("--width", type=int, default=32)
    p.add_argument("--vocab", type=int, default=48)
    p.add_argument("--lr", type=float, default=0.3)
    p.add_argument("--max-grad-norm", type=float, default=0.1)
    p.add_argument("--label-noise", type=float, default=0.4)
    p.add_argument("--log-every", type=int, default=8)
    return p.parse_args()


def batches(args):
    """Every stage draws the same stream; only the ends of the pipe use it."""
    g = torch.Generator().manual_seed(2024)
    table = torch.randperm(args.vocab, generator=g)
    while True:
        x = torch.randint(0, args.vocab, (args.micro_batches, args.micro_size, args.seq), generator=g)
        other = torch.randint(0, args.vocab, x.shape, generator=g)
        noisy = torch.rand(x.shape, generator=g) < args.label_noise
        yield x, torch.where(noisy, other, table[x])


def clip_gradients(stage, max_norm):
    params = list(stage.parameters())
    total = torch.nn.utils.get_total_norm([p.grad for p in params]) ** 2
    dist.all_reduce(total)
    total = total.sqrt()
    torch.nn.utils.clip_grads_with_norm_(params, max_norm, total)
    return total


def token_loss(logits, target):
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def main():
    args = get_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    stage = build_stage(rank, world, args.vocab, args.width)
    pipe = GPipe(stage, rank, world, (args.micro_size, args.seq, args.width), args.micro_batches)
    opt = torch.optim.SGD(stage.parameters(), lr=args.lr, momentum=0.9)

    stream = batches(args)
    for step in range(args.steps):
        x, y = next(stream)
        opt.zero_grad(set_to_none=True)
        loss = pipe.run(x, y, token_loss)
        norm = clip_gradients(stage, args.max_grad_norm)
        opt.step()
        if pipe.last and step % args.log_every == 0:
            print(f"step {step} loss {loss:.4f} grad norm {norm:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
