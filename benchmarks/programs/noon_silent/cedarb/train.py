"""Pipeline-parallel decoder with shared input and output word table."""
from dataclasses import dataclass

import torch
import torch.distributed as dist

from schedule import GPipe
from stages import Stage


@dataclass
class Config:
    vocab: int = 256
    dim: int = 96
    heads: int = 4
    layers: tuple = (2, 2, 1)
    seq_len: int = 48
    micro_batch: int = 8
    micro_count: int = 4
    steps: int = 60
    lr: float = 2e-3
    seed: int = 19


class PhraseStream:
    """Sentences made of fixed phrases; every stage draws the same stream."""

    def __init__(self, cfg):
        g = torch.Generator().manual_seed(77)
        self.phrases = torch.randint(0, cfg.vocab, (64, 6), generator=g)
        self.gen = torch.Generator().manual_seed(78)
        self.cfg = cfg

    def next(self):
        n = self.cfg.micro_batch * self.cfg.micro_count
        need = self.cfg.seq_len // 6 + 1
        pick = torch.randint(0, 64, (n, need), generator=self.gen)
        ids = self.phrases[pick].flatten(1)[:, :self.cfg.seq_len + 1]
        return ids[:, :-1].split(self.cfg.micro_batch), ids[:, 1:].split(self.cfg.micro_batch)


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(cfg.seed + self.rank)
        self.stage = Stage(self.rank, self.world, cfg)
        self.ends = dist.new_group([0, self.world - 1])
        self.pipe = GPipe(self.stage, (cfg.micro_batch, cfg.seq_len, cfg.dim))
        self.opt = torch.optim.Adam(self.stage.parameters(), lr=cfg.lr, betas=(0.9, 0.98))
        self.stream = PhraseStream(cfg)

    def clip(self, limit):
        square = torch.zeros(())
        for name, p in self.stage.named_parameters():
            if name == "word" and self.stage.last:
                continue
            square += p.grad.pow(2).sum()
        dist.all_reduce(square)
        coef = (limit / (square.sqrt() + 1e-6)).clamp(max=1.0)
        for p in self.stage.parameters():
            p.grad.mul_(coef)

    def train(self):
        for step in range(self.cfg.steps):
            for g in self.opt.param_groups:
                g["lr"] = self.cfg.lr * min(1.0, (step + 1) / 10)
            self.opt.zero_grad()
            loss = self.pipe.step(*self.stream.next())
            if self.stage.first or self.stage.last:
                dist.all_reduce(self.stage.word.grad, group=self.ends)
            self.clip(1.0)
            self.opt.step()
            if self.stage.last and (step % 10 == 0 or step == self.cfg.steps - 1):
                print(f"step {step} loss {loss:.4f}", flush=True)


def main():
    dist.init_process_group("gloo")
    trainer = Trainer(Config())
    trainer.train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
