import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from board import Board


class Translator(nn.Module):
    def __init__(self, vocab=64, dim=96):
        super().__init__()
        self.src, self.tgt = nn.Embedding(vocab, dim), nn.Embedding(vocab + 1, dim)
        self.enc = nn.GRU(dim, dim, batch_first=True)
        self.dec = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)
        self.bos = vocab

    def forward(self, src, tgt):
        _, h = self.enc(self.src(src))
        shifted = torch.cat([torch.full_like(tgt[:, :1], self.bos), tgt[:, :-1]], 1)
        return self.out(self.dec(self.tgt(shifted), h)[0])

    @torch.no_grad()
    def beam(self, src, width, length):
        _, h = self.enc(self.src(src))
        beams = [([self.bos], 0.0, h)]
        for _ in range(length):
            grown = []
            for toks, score, h in beams:
                o, h2 = self.dec(self.tgt(torch.tensor([[toks[-1]]])), h)
                top = self.out(o[0, 0]).log_softmax(-1).topk(width)
                grown += [(toks + [t], score + s, h2) for s, t in zip(top.values.tolist(), top.indices.tolist())]
            beams = sorted(grown, key=lambda b: -b[1])[:width]
        return beams[0][0][1:]


def pairs(n, generator, vocab=64, length=10):
    start = torch.randint(0, vocab, (n, 1), generator=generator)
    stride = torch.randint(1, 4, (n, 1), generator=generator)
    src = (start + stride * torch.arange(length)) % vocab
    return src, src.flip(1)


def beam_accuracy(net, sentences):
    net.eval()
    src, ref = pairs(sentences, torch.Generator().manual_seed(99))
    hits = sum(net.beam(s[None], 4, ref.size(1)) == r.tolist() for s, r in zip(src, ref))
    net.train()
    return hits / sentences


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=120)
    p.add_argument("--eval-every", type=int, default=40)
    p.add_argument("--sentences", type=int, default=220)
    p.add_argument("--batch-size", type=int, default=128)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    board = Board()
    torch.manual_seed(0)
    model = DDP(Translator())
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, mode="max", patience=1)
    generator = torch.Generator().manual_seed(20 + rank)
    for step in range(1, args.steps + 1):
        src, tgt = pairs(args.batch_size, generator)
        opt.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(src, tgt).flatten(0, 1), tgt.flatten())
        loss.backward()
        opt.step()
        if step % args.eval_every == 0:
            key = f"beam/{step}"
            if rank == 0:
                board.post(key, beam_accuracy(model.module, args.sentences))
            score = board.poll(key)
            sched.step(score)
            if rank == 0:
                print(f"step {step} loss {loss.item():.4f} beam accuracy {score:.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
