"""Two-stage pipelined sequence tagger: rank 0 embeds, rank 1 tags. Usage: torchrun --nproc-per-node 2 main.py"""
import argparse
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F

from stages import Back, Front, Pipe


def make_corpus(count, length, vocab, tags, seed):
    g = torch.Generator().manual_seed(seed)
    tokens = torch.randint(vocab, (count, length), generator=g)
    before = torch.roll(tokens, 1, dims=1)
    return tokens, (tokens + 2 * before) % tags


class FrontWorker:
    def __init__(self, args):
        torch.manual_seed(args.seed)
        self.net = Front(args.vocab, args.width)
        self.opt = torch.optim.Adam(self.net.parameters(), lr=args.lr)
        self.pipe = Pipe(1, (args.micro, args.length, args.width))

    def step(self, tokens, tags, micro):
        self.opt.zero_grad()
        kept = []
        for part in tokens.split(micro):
            h = self.net(part)
            self.pipe.push(h)
            kept.append(h)
        for h in kept:
            h.backward(self.pipe.pull())
        self.opt.step()
        return None

    @torch.no_grad()
    def judge(self, tokens, tags, micro):
        for part in tokens.split(micro):
            self.pipe.push(self.net(part))
        return None


class BackWorker:
    def __init__(self, args):
        torch.manual_seed(args.seed + 1)
        self.net = Back(args.width, args.tags)
        self.opt = torch.optim.Adam(self.net.parameters(), lr=args.lr)
        self.pipe = Pipe(0, (args.micro, args.length, args.width))

    def step(self, tokens, tags, micro):
        self.opt.zero_grad()
        parts = tags.split(micro)
        inbox = [self.pipe.pull().requires_grad_() for _ in parts]
        total = 0.0
        for h, want in zip(inbox, parts):
            loss = F.cross_entropy(self.net(h).flatten(0, 1), want.flatten()) / len(parts)
            loss.backward()
            total += loss.item()
            self.pipe.push(h.grad)
        self.opt.step()
        return total

    @torch.no_grad()
    def judge(self, tokens, tags, micro):
        good = sum((self.net(self.pipe.pull()).argmax(-1) == want).sum().item() for want in tags.split(micro))
        return good / tags.numel()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--vocab", type=int, default=24)
    ap.add_argument("--tags", type=int, default=6)
    ap.add_argument("--width", type=int, default=32)
    ap.add_argument("--length", type=int, default=10)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--micro", type=int, default=16)
    ap.add_argument("--epochs", type=int, default=3)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--seed", type=int, default=13)
    ap.add_argument("--out", default=os.path.join(tempfile.gettempdir(), "tagger"))
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if dist.get_world_size() != 2:
        raise SystemExit("this pipeline has two stages")
    worker = FrontWorker(args) if rank == 0 else BackWorker(args)
    tokens, tags = make_corpus(1280, args.length, args.vocab, args.tags, seed=1)
    held_tokens, held_tags = make_corpus(256, args.length, args.vocab, args.tags, seed=2)

    order = torch.Generator().manual_seed(args.seed)
    for epoch in range(args.epochs):
        last = None
        for pick in torch.randperm(len(tokens), generator=order).split(args.batch):
            last = worker.step(tokens[pick], tags[pick], args.micro)
        worker.net.eval()
        score = worker.judge(held_tokens, held_tags, args.micro)
        worker.net.train()
        if rank == 1:
            print(f"epoch {epoch} loss {last:.4f} accuracy {score:.3f}", flush=True)
    os.makedirs(args.out, exist_ok=True)
    torch.save({"stage": rank, "model": worker.net.state_dict(), "opt": worker.opt.state_dict()},
               os.path.join(args.out, f"stage{rank}.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
