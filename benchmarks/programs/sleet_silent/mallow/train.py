"""Low communication pretraining: AdamW inside each worker, Nesterov on the averaged displacement outside."""
import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

log = logging.getLogger("outer")


class ByteLM(nn.Module):
    def __init__(self, vocab=48, d=64):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.conv = nn.ModuleList(nn.Conv1d(d, 2 * d, 3) for _ in range(3))
        self.norm = nn.ModuleList(nn.LayerNorm(d) for _ in range(3))
        self.out = nn.Linear(d, vocab)

    def forward(self, ids):
        h = self.emb(ids)
        for conv, norm in zip(self.conv, self.norm):
            y = F.glu(conv(F.pad(norm(h).transpose(1, 2), (2, 0))), dim=1)
            h = h + y.transpose(1, 2)
        return self.out(h)


class OuterLoop:
    def __init__(self, model, lr, momentum):
        self.model = model
        for p in model.parameters():
            dist.broadcast(p.data, 0)
        self.anchor = [p.detach().clone() for p in model.parameters()]
        self.opt = torch.optim.SGD(self.anchor, lr=lr, momentum=momentum, nesterov=True)

    @torch.no_grad()
    def sync(self):
        world = dist.get_world_size()
        drift = 0.0
        for a, p in zip(self.anchor, self.model.parameters()):
            delta = a - p
            drift += delta.pow(2).sum().item()
            dist.all_reduce(delta)
            a.grad = delta / world
        self.opt.step()
        for a, p in zip(self.anchor, self.model.parameters()):
            p.copy_(a)
        return drift ** 0.5


def corpus(rank, vocab, n):
    g = torch.Generator().manual_seed(6)
    table = torch.randint(0, vocab, (vocab, 2), generator=g)
    g = torch.Generator().manual_seed(60 + rank)
    toks = [torch.randint(0, vocab, (1,), generator=g).item()]
    coin = torch.randint(0, 2, (n,), generator=g).tolist()
    for c in coin:
        toks.append(int(table[toks[-1], c]))
    return torch.tensor(toks)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=8)
    ap.add_argument("--inner-steps", type=int, default=10)
    ap.add_argument("--inner-lr", type=float, default=2e-3)
    ap.add_argument("--outer-lr", type=float, default=0.7)
    ap.add_argument("--outer-momentum", type=float, default=0.8)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--ctx", type=int, default=40)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(name)s %(message)s")
    torch.set_num_threads(1)
    text = corpus(rank, 48, 12000)
    gen = torch.Generator().manual_seed(500 + rank)
    torch.manual_seed(0)
    model = ByteLM()
    outer = OuterLoop(model, args.outer_lr, args.outer_momentum)
    inner = torch.optim.AdamW(model.parameters(), lr=args.inner_lr, weight_decay=0.1)
    for rnd in range(args.rounds):
        for _ in range(args.inner_steps):
            at = torch.randint(len(text) - args.ctx - 1, (args.batch,), generator=gen)
            seq = torch.stack([text[i: i + args.ctx + 1] for i in at])
            loss = F.cross_entropy(model(seq[:, :-1]).flatten(0, 1), seq[:, 1:].flatten())
            inner.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            inner.step()
        drift = outer.sync()
        log.info("round %d loss %.4f drift %.3f", rnd, loss.item(), drift)
    if rank == 0:
        torch.save(model.state_dict(), "lm.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
