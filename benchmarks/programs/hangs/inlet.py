"""Ring attention in miniature: key blocks travel around the ring."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn


class Ring:
    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.next, self.prev = (self.rank + 1) % self.world, (self.rank - 1) % self.world

    def rotate(self, *tensors):
        """Hands tensors on and takes those of the previous rank, in one batch."""
        received = [torch.empty_like(t) for t in tensors]
        ops = [dist.P2POp(dist.isend, t.contiguous(), self.next, tag=n) for n, t in enumerate(tensors)]
        ops += [dist.P2POp(dist.irecv, r, self.prev, tag=n) for n, r in enumerate(received)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return received

    def pass_token(self, token):
        """One after another; rank 0 starts the round and ends it."""
        if self.rank == 0:
            dist.send(token, self.next)
            dist.recv(token, self.prev)
        else:
            dist.recv(token, self.prev)
            token += self.rank
            dist.send(token, self.next)
        return token


class RingAttention(nn.Module):
    def __init__(self, ring, width):
        super().__init__()
        self.ring, self.scale = ring, width**-0.5
        self.qkv = nn.Linear(width, 3 * width)

    @torch.no_grad()
    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        top = torch.full(q.shape[:-1] + (1,), float("-inf"))
        total, out = torch.zeros_like(top), torch.zeros_like(q)
        for hop in range(self.ring.world):
            scores = q @ k.transpose(-1, -2) * self.scale
            peak = torch.maximum(top, scores.amax(-1, keepdim=True))
            weights = (scores - peak).exp()
            shrink = (top - peak).exp()
            total = total * shrink + weights.sum(-1, keepdim=True)
            out = out * shrink + weights @ v
            top = peak
            if hop < self.ring.world - 1:
                k, v = self.ring.rotate(k, v)
        return out / total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--width", type=int, default=16)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    ring = Ring()
    torch.manual_seed(3)
    layer = RingAttention(ring, args.width)
    for number in range(args.rounds):
        gen = torch.Generator().manual_seed(number * 10 + ring.rank)
        out = layer(torch.randn(2, 8, args.width, generator=gen))
        token = ring.pass_token(torch.zeros(1))
        if ring.rank == 0 and number % 4 == 0:
            print(f"round {number}: {out.norm():.3f}, token {token.item():.0f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
