"""One translation-like trunk, a head for each language; each rank draws a language for every step."""
import argparse
import logging
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


@dataclass
class Options:
    steps: int = 160
    batch: int = 32
    lr: float = 3e-3
    vocab: int = 24
    length: int = 8
    languages: int = 4
    seed: int = 44
    eval_every: int = 40


class Language:
    """Words are mapped by a secret permutation, and every language has its own word order."""

    def __init__(self, index, opts):
        g = torch.Generator().manual_seed(700 + index)
        self.perm = torch.randperm(opts.vocab, generator=g)
        self.order = torch.randperm(opts.length, generator=g)
        self.opts = opts

    def batch(self, n, gen):
        src = torch.randint(0, self.opts.vocab, (n, self.opts.length), generator=gen)
        return src, self.perm[src][:, self.order]


class Translator(nn.Module):
    def __init__(self, opts, dim=64):
        super().__init__()
        self.emb = nn.Embedding(opts.vocab, dim)
        self.pos = nn.Parameter(torch.randn(opts.length, dim) * 0.1)
        self.trunk = nn.TransformerEncoderLayer(dim, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
        self.mixers = nn.ModuleList(nn.Linear(opts.length, opts.length) for _ in range(opts.languages))
        self.heads = nn.ModuleList(nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, opts.vocab))
                                   for _ in range(opts.languages))

    def forward(self, src, language):
        h = self.trunk(self.emb(src) + self.pos)
        h = h + self.mixers[language](h.transpose(1, 2)).transpose(1, 2)
        return self.heads[language](h)


class LanguagePicker:
    """Temperature-sampled language per step; each rank follows its own stream."""

    def __init__(self, sizes, temperature, seed):
        p = torch.tensor(sizes).float() ** (1 / temperature)
        self.p = p / p.sum()
        self.gen = torch.Generator().manual_seed(seed)

    def __call__(self):
        return int(torch.multinomial(self.p, 1, generator=self.gen))


@torch.no_grad()
def evaluate(net, languages, opts, rank, world):
    net.eval()
    acc = torch.zeros(len(languages))
    for i, lang in enumerate(languages):
        if i % world == rank:
            src, tgt = lang.batch(128, torch.Generator().manual_seed(5000 + i))
            acc[i] = (net(src, i).argmax(-1) == tgt).float().mean()
    dist.all_reduce(acc)
    net.train()
    return acc


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=Options.steps)
    ap.add_argument("--temperature", type=float, default=2.0)
    a = ap.parse_args()
    opts = Options(steps=a.steps)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.ERROR, format="%(levelname)s %(message)s")
    torch.manual_seed(opts.seed)
    languages = [Language(i, opts) for i in range(opts.languages)]
    model = DDP(Translator(opts), find_unused_parameters=True)
    opt = torch.optim.Adam(model.parameters(), lr=opts.lr)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, opts.lr, total_steps=opts.steps)
    picker = LanguagePicker([900, 500, 300, 150], a.temperature, opts.seed * 31 + rank)
    gen = torch.Generator().manual_seed(opts.seed * 57 + rank)
    seen = torch.zeros(opts.languages)
    sums, counts = torch.zeros(opts.languages), torch.zeros(opts.languages)

    for step in range(1, opts.steps + 1):
        k = picker()
        src, tgt = languages[k].batch(opts.batch, gen)
        loss = F.cross_entropy(model(src, k).flatten(0, 1), tgt.flatten())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        seen[k] += opts.batch
        sums[k] += loss.item()
        counts[k] += 1
        if step % opts.eval_every == 0:
            both = torch.stack([sums, counts])
            dist.all_reduce(both)
            mean = both[0] / both[1].clamp(min=1)
            acc = evaluate(model.module, languages, opts, rank, world)
            log = " ".join(f"L{i}:{mean[i]:.3f}/{acc[i]:.2f}" for i in range(opts.languages))
            logging.info("step %d (loss/accuracy) %s", step, log)
            sums.zero_()
            counts.zero_()
    dist.all_reduce(seen)
    if rank == 0:
        logging.info("sentences per language %s", seen.long().tolist())
        os.makedirs("runs/rosemary", exist_ok=True)
        torch.save(model.module.state_dict(), "runs/rosemary/translator.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
