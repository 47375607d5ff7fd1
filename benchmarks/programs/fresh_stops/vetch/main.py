import argparse
import math

import torch
import torch.distributed as dist
import torch.nn as nn

from watch import LoadWatch


class Bytes:
    """A small made-up language: every line repeats a stem with one letter changed."""

    def __init__(self, seed, rank, length=32, vocab=28):
        self.length, self.vocab = length, vocab
        self.gen = torch.Generator().manual_seed(seed * 1000 + rank)

    def batch(self, n):
        stem = torch.randint(0, self.vocab, (n, self.length // 4), generator=self.gen)
        text = stem.repeat(1, 4)
        hit = torch.rand(text.shape, generator=self.gen) < 0.05
        text[hit] = torch.randint(0, self.vocab, (int(hit.sum()),), generator=self.gen)
        return text


class CausalConv(nn.Module):
    def __init__(self, vocab=28, width=48):
        super().__init__()
        self.emb = nn.Embedding(vocab, width)
        self.c1 = nn.Conv1d(width, width, 9)
        self.c2 = nn.Conv1d(width, width, 9)
        self.head = nn.Linear(width, vocab)

    def forward(self, t):
        h = self.emb(t).transpose(1, 2)
        for conv in (self.c1, self.c2):
            h = h + torch.relu(conv(nn.functional.pad(h, (conv.kernel_size[0] - 1, 0))))
        return self.head(h.transpose(1, 2))


@torch.no_grad()
def sync_gradients(params):
    flat = torch.cat([p.grad.reshape(-1) for p in params])
    dist.all_reduce(flat)
    flat.div_(dist.get_world_size())
    for p, piece in zip(params, flat.split([p.numel() for p in params])):
        p.grad.copy_(piece.view_as(p))


def lr_at(step, args):
    warm = min(1.0, (step + 1) / 20)
    return args.lr * warm * 0.5 * (1 + math.cos(math.pi * step / args.steps))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=6)
    parser.add_argument("--out", default="/tmp/causal_conv.pt")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    net = CausalConv()
    params = list(net.parameters())
    optim = torch.optim.AdamW(params, lr=args.lr)
    data = Bytes(args.seed, rank)
    watch = LoadWatch().start()
    for step in range(args.steps):
        for group in optim.param_groups:
            group["lr"] = lr_at(step, args)
        text = data.batch(args.batch)
        logits = net(text[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
        optim.zero_grad(set_to_none=True)
        loss.backward()
        sync_gradients(params)
        optim.step()
        if step % 40 == 0:
            shown = loss.detach().clone()
            dist.all_reduce(shown)
            if rank == 0:
                print(f"step {step} loss {shown.item() / dist.get_world_size():.4f}", flush=True)
    watch.stop()
    if rank == 0:
        print("load", watch.summary(), flush=True)
        torch.save(net.state_dict(), args.out)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
