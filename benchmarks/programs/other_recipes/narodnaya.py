"""Hyper-parameter search by successive halving; trials stay on the rank that started them."""
import argparse
import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

log = logging.getLogger("halving")


@dataclass
class Config:
    trials: int = 7
    rung_epochs: int = 2
    keep: float = 0.5
    final_epochs: int = 4
    seed: int = 51


@dataclass
class Trial:
    number: int
    lr: float
    width: int
    dropout: float
    batch_size: int


def sample_trials(cfg):
    g = torch.Generator().manual_seed(cfg.seed)
    out = []
    for n in range(cfg.trials):
        r = torch.rand(4, generator=g).tolist()
        out.append(Trial(n, round(10 ** (-3.5 + 2.5 * r[0]), 5), [16, 32, 64][int(r[1] * 3)],
                         round(0.3 * r[2], 2), [16, 32][int(r[3] * 2)]))
    return out


def table(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 6, generator=g) * 2 - 1
    y = (torch.sin(3 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.5 * x[:, 3] ** 2)[:, None]
    return TensorDataset(x, y + 0.05 * torch.randn(n, 1, generator=g))


class Run:
    """One trial: model, optimizer and data order depend on the trial number only, not on the rank."""

    def __init__(self, cfg, trial):
        self.trial = trial
        torch.manual_seed(cfg.seed * 100 + trial.number)
        self.net = nn.Sequential(nn.Linear(6, trial.width), nn.SiLU(), nn.Dropout(trial.dropout),
                                 nn.Linear(trial.width, trial.width), nn.SiLU(), nn.Linear(trial.width, 1))
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=trial.lr)
        self.loader = DataLoader(table(256, 1), trial.batch_size, shuffle=True,
                                 generator=torch.Generator().manual_seed(trial.number))
        self.val = table(128, 2).tensors
        self.rng = torch.get_rng_state()

    def train(self, epochs):
        torch.set_rng_state(self.rng)
        self.net.train()
        for _ in range(epochs):
            for x, y in self.loader:
                loss = nn.functional.mse_loss(self.net(x), y)
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
        self.rng = torch.get_rng_state()
        return self.score()

    @torch.no_grad()
    def score(self):
        self.net.eval()
        return nn.functional.mse_loss(self.net(self.val[0]), self.val[1]).item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--trials", type=int, default=Config.trials)
    p.add_argument("--final-epochs", type=int, default=Config.final_epochs)
    a = p.parse_args()
    cfg = Config(trials=a.trials, final_epochs=a.final_epochs)
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    trials = sample_trials(cfg)
    mine = {t.number: Run(cfg, t) for t in trials[rank::world]}
    alive, rung, history = len(trials), 0, []
    while alive > 1:
        scores = {n: run.train(cfg.rung_epochs) for n, run in sorted(mine.items())}
        boards = [None] * world
        dist.all_gather_object(boards, scores)
        ranking = sorted((s, n) for board in boards for n, s in board.items())
        alive = max(1, int(len(ranking) * cfg.keep))
        survivors = {n for _, n in ranking[:alive]}
        mine = {n: run for n, run in mine.items() if n in survivors}
        history.append({"rung": rung, "best": ranking[0][0], "survivors": sorted(survivors)})
        if rank == 0:
            log.info("rung %d best %.4f (trial %d), %d left", rung, *ranking[0], alive)
        rung += 1
    # from here on nothing is shared any more: the owner of the winner finishes alone
    dist.barrier()
    dist.destroy_process_group()
    for number, run in mine.items():
        final = run.train(cfg.final_epochs)
        out = Path("runs") / Path(__file__).stem
        out.mkdir(parents=True, exist_ok=True)
        torch.save(run.net.state_dict(), out / "best.pt")
        (out / "search.json").write_text(json.dumps({"trial": asdict(run.trial), "val": final, "rungs": history}))
        log.info("rank %d finished trial %d: val %.4f", rank, number, final)


if __name__ == "__main__":
    main()
