import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class Exchange(torch.autograd.Function):
    """Row exchange with per-peer counts; the backward pass swaps the counts."""

    @staticmethod
    def forward(ctx, x, send, recv):
        ctx.send, ctx.recv = send, recv
        out = x.new_empty(sum(recv), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), recv, send)
        return out

    @staticmethod
    def backward(ctx, grad):
        out = grad.new_empty(sum(ctx.send), grad.shape[1])
        dist.all_to_all_single(out, grad.contiguous(), ctx.send, ctx.recv)
        return out, None, None


class Expert(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.up = nn.Linear(dim, hidden)
        self.down = nn.Linear(hidden, dim)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class RoutedFFN(nn.Module):
    """Each rank owns its experts alone; tokens travel to the owner and back."""

    def __init__(self, dim, hidden, per_rank, rank, world, seed, tile=256):
        super().__init__()
        self.tile = tile
        self.per_rank, self.world = per_rank, world
        self.router = nn.Linear(dim, per_rank * world, bias=False)
        state = torch.get_rng_state()
        torch.manual_seed(seed + rank)
        self.experts = nn.ModuleList(Expert(dim, hidden) for _ in range(per_rank))
        torch.set_rng_state(state)

    def forward(self, x):
        probs = self.router(x).softmax(-1)
        gate, choice = probs.max(-1)
        order = choice.argsort(stable=True)
        counts = torch.bincount(choice, minlength=self.per_rank * self.world)
        incoming = torch.empty_like(counts)
        dist.all_to_all_single(incoming, counts)
        send = counts.view(self.world, -1).sum(1).tolist()
        recv = incoming.view(self.world, -1).sum(1).tolist()
        rows = Exchange.apply(x[order], send, recv)
        owner = torch.arange(self.per_rank).repeat(self.world).repeat_interleave(incoming)
        parts, places = [], []
        for e, expert in enumerate(self.experts):
            place = (owner == e).nonzero().squeeze(1)
            spare = -len(place) % self.tile
            parts.append(expert(F.pad(rows[place], (0, 0, 0, spare)))[:len(place)])
            places.append(place)
        done = torch.cat(parts)[torch.cat(places).argsort()]
        back = Exchange.apply(done, recv, send)
        out = torch.zeros_like(x).index_copy(0, order, back)
        share = torch.bincount(choice, minlength=len(counts)).float() / len(x)
        self.aux = len(counts) * (share * probs.mean(0)).sum()
        return out * gate.unsqueeze(-1)


class Translator(nn.Module):
    def __init__(self, vocab, dim, rank, world):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.mix = nn.GRU(dim, dim, batch_first=True)
        self.norm = nn.LayerNorm(dim)
        self.ffn = RoutedFFN(dim, 4 * dim, 2, rank, world, seed=300)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        h, _ = self.mix(self.embed(ids))
        flat = self.norm(h).flatten(0, 1)
        h = h + self.ffn(flat).view_as(h)
        return self.head(h), self.ffn.aux


class Phrases:
    """The mapping source -> target depends on a topic token in front."""

    def __init__(self, rank, vocab=64, length=24):
        shared = torch.Generator().manual_seed(5)
        self.tables = torch.stack([torch.randperm(vocab, generator=shared) for _ in range(4)])
        self.g = torch.Generator().manual_seed(31 + rank)
        self.vocab, self.length = vocab, length

    def batch(self, n):
        ids = torch.randint(4, self.vocab, (n, self.length), generator=self.g)
        topic = torch.randint(0, 4, (n,), generator=self.g)
        ids[:, 0] = topic
        return ids, self.tables[topic[:, None], ids]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=90)
    ap.add_argument("--batch-size", type=int, default=64)
    ap.add_argument("--dim", type=int, default=128)
    ap.add_argument("--lr", type=float, default=0.4)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(64)
    net = Translator(64, args.dim, rank, world)
    owned = [n for n, _ in net.named_parameters() if ".experts." in n]
    DDP._set_params_and_buffers_to_ignore_for_model(net, owned)
    model = DDP(net)
    expert_params = [p for n, p in net.named_parameters() if n in set(owned)]
    opt = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9)
    data = Phrases(rank)
    for step in range(args.steps):
        ids, target = data.batch(args.batch_size)
        logits, aux = model(ids)
        ce = F.cross_entropy(logits.flatten(0, 1), target.flatten())
        opt.zero_grad(set_to_none=True)
        (ce + 0.01 * aux).backward()
        for p in expert_params:
            if p.grad is not None:
                p.grad.div_(world)
        opt.step()
        if rank == 0 and step % 15 == 0:
            print(f"step {step} ce {ce.item():.4f} aux {aux.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
