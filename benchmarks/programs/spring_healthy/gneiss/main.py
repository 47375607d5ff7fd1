import argparse
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from batching import collate, deal, micro_batches


class Tagger(nn.Module):
    def __init__(self, vocab, dim=96):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim, padding_idx=0)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, x):
        return self.out(self.rnn(self.emb(x))[0])


def sentences(n, vocab, seed=0):
    g = torch.Generator().manual_seed(seed)
    nxt = torch.randint(1, vocab, (vocab, 4), generator=g)
    out = []
    for _ in range(n):
        length = int(6 + 90 * torch.rand(1, generator=g).item() ** 3)
        hop = torch.randint(0, 4, (length,), generator=g).tolist()
        s = [int(torch.randint(1, vocab, (1,), generator=g))]
        for h in hop:
            s.append(int(nxt[s[-1], h]))
        out.append(torch.tensor(s))
    return out


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--sentences-per-step", type=int, default=48)
    ap.add_argument("--budget", type=int, default=640)
    ap.add_argument("--lr", type=float, default=4e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s")
    data = sentences(1777, 120)
    lengths = [len(s) for s in data]
    torch.manual_seed(4)
    model = Tagger(120)
    params = list(model.parameters())
    opt = torch.optim.Adam(params, lr=args.lr)

    step = 0
    for epoch in range(args.epochs):
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(60 + epoch)).tolist()
        for at in range(0, len(order), args.sentences_per_step):
            chosen = order[at:at + args.sentences_per_step]
            hands = deal([lengths[i] for i in chosen], world)
            plan = micro_batches([chosen[k] for k in hands[rank]], lengths, args.budget)
            tokens = torch.tensor(float(sum(lengths[i] - 1 for b in plan for i in b)))
            total = tokens.clone()
            dist.all_reduce(total)
            opt.zero_grad(set_to_none=True)
            loss_sum = torch.zeros(())
            for batch in plan:
                x, y = collate([data[i] for i in batch])
                loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=-100, reduction="sum")
                (loss / total).backward()
                loss_sum += loss.detach()
            flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in params] + [loss_sum.reshape(1)])
            dist.all_reduce(flat)        # parts of one sum, nothing left to divide
            for p, c in zip(params, flat[:-1].split([p.numel() for p in params])):
                p.grad = c.view_as(p)
            nn.utils.clip_grad_norm_(params, 1.0)
            opt.step()
            step += 1
            if step % 12 == 0 or len(chosen) < args.sentences_per_step:
                logging.info("step %d micro-batches here %d tokens here %d of %d loss %.6f", step, len(plan), tokens, total, flat[-1] / total)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
