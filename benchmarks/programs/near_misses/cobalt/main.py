"""Log-line language model. Draws are bootstrapped, the score is the mean over lines."""
import os
import tempfile
from argparse import ArgumentParser

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, RandomSampler

PAD, VOCAB = 0, 40


def make_lines(count, seed, lo=4, hi=36):
    gen = torch.Generator().manual_seed(seed)
    lines = []
    for _ in range(count):
        n = int(torch.randint(lo, hi + 1, (1,), generator=gen))
        stride = int(torch.randint(1, 6, (1,), generator=gen))
        first = int(torch.randint(0, VOCAB - 1, (1,), generator=gen))
        ids = (first + stride * torch.arange(n)) % (VOCAB - 1) + 1
        lines.append(ids)
    return lines


class LineModel(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.table = nn.Embedding(VOCAB, width, padding_idx=PAD)
        self.core = nn.GRU(width, width, batch_first=True)
        self.to_vocab = nn.Linear(width, VOCAB)

    def forward(self, ids):
        """Mean token loss of every line."""
        target = ids[:, 1:]
        logits = self.to_vocab(self.core(self.table(ids[:, :-1]))[0])
        loss = F.cross_entropy(logits.transpose(1, 2), target, reduction="none")
        mask = (target != PAD).float()
        return (loss * mask).sum(1) / mask.sum(1)


def collate(batch):
    return pad_sequence(batch, batch_first=True, padding_value=PAD)


class Trainer:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        lines = make_lines(600, args.seed)
        self.val = sorted(make_lines(96, args.seed + 1), key=len)
        per = len(self.val) // self.world
        assert per * self.world == len(self.val)
        self.my_val = self.val[self.rank * per:(self.rank + 1) * per]

        torch.manual_seed(args.seed)
        self.model = DDP(LineModel())
        self.opt = torch.optim.Adam(self.model.parameters(), lr=args.lr)
        draws = RandomSampler(
            lines,
            replacement=True,
            num_samples=args.steps * args.batch,
            generator=torch.Generator().manual_seed(args.seed * 1000 + self.rank),
        )
        self.loader = DataLoader(lines, batch_size=args.batch, sampler=draws, collate_fn=collate)
        self.best = float("inf")

    @torch.no_grad()
    def line_score(self):
        """Mean over lines of the mean token loss of a line; every rank holds the same number of lines."""
        net = self.model.module
        net.eval()
        scores = torch.cat([net(collate(self.my_val[i:i + 16])) for i in range(0, len(self.my_val), 16)])
        mean = scores.double().mean()
        dist.all_reduce(mean)
        net.train()
        return (mean / self.world).item()

    def fit(self):
        for step, ids in enumerate(self.loader, 1):
            loss = self.model(ids).mean()
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            self.opt.step()
            if step % self.args.eval_every == 0:
                score = self.line_score()
                if self.rank == 0:
                    print(f"step {step:4d}  line score {score:.4f}", flush=True)
                if score < self.best:
                    self.best = score
                    if self.rank == 0:
                        self.save(step)

    def save(self, step):
        path = os.path.join(self.args.out, "line_model.pt")
        torch.save({"step": step, "score": self.best, "weights": self.model.module.state_dict()}, path + ".part")
        os.replace(path + ".part", path)


def main():
    ap = ArgumentParser()
    ap.add_argument("--steps", type=int, default=120)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--eval-every", type=int, default=30)
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--seed", type=int, default=23)
    ap.add_argument("--out", default=tempfile.gettempdir())
    args = ap.parse_args()
    dist.init_process_group("gloo")
    try:
        Trainer(args).fit()
        dist.barrier()
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
