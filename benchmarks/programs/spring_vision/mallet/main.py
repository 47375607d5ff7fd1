"""Population based tuning of a load forecaster, one trial per rank.

The first rounds are long, later ones get shorter and shorter.
"""
import argparse
import logging
import random
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

from coordinator import Population
from series import GRUForecaster, Windows, synthetic_load

log = logging.getLogger("pbt")

SPACE = {"lr": (3e-4, 2e-2), "dropout": (0.0, 0.4), "batch": (16, 64)}


class Trial:
    def __init__(self, rank, windows, seed=0):
        self.rank, self.windows = rank, windows
        self.rng = random.Random(seed * 1000 + rank)
        self.gen = torch.Generator().manual_seed(seed * 1000 + rank)
        lo, hi = SPACE["lr"]
        self.hp = {"lr": lo * (hi / lo) ** self.rng.random(),
                   "dropout": self.rng.uniform(*SPACE["dropout"]),
                   "batch": self.rng.choice([16, 32, 64])}
        torch.manual_seed(seed * 1000 + rank)
        self.model = GRUForecaster(dropout=self.hp["dropout"])
        self.opt = torch.optim.Adam(self.model.parameters(), lr=self.hp["lr"])

    def apply(self):
        self.model.drop.p = self.hp["dropout"]
        for g in self.opt.param_groups:
            g["lr"] = self.hp["lr"]

    def train(self, steps):
        self.model.train()
        for _ in range(steps):
            x, y = self.windows.batch(self.hp["batch"], self.gen)
            loss = F.l1_loss(self.model(x), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
        return loss.item()

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        x, y = self.windows.validation()
        return F.l1_loss(self.model(x), y).item()

    def explore(self, hp):
        self.hp = dict(hp)
        self.hp["lr"] = min(max(hp["lr"] * self.rng.choice([0.8, 1.25]), SPACE["lr"][0]), SPACE["lr"][1])
        self.hp["dropout"] = min(max(hp["dropout"] + self.rng.uniform(-0.05, 0.05), 0.0), SPACE["dropout"][1])
        self.apply()

    def state(self):
        return {"model": self.model.state_dict(), "opt": self.opt.state_dict()}

    def load(self, state):
        self.model.load_state_dict(state["model"])
        self.opt.load_state_dict(state["opt"])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=7)
    ap.add_argument("--steps", type=int, default=96)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")

    store = dist.PrefixStore("pbt", dist.distributed_c10d._get_default_store())
    pop = Population(store, rank, world)
    trial = Trial(rank, Windows(synthetic_load()))

    for rnd in range(args.rounds):
        t0 = time.time()
        loss = trial.train(max(4, args.steps >> (rnd // 2)))
        val = trial.evaluate()
        pop.report(rnd, {"rank": rank, "val": val, "hp": trial.hp})
        pop.put_state(rnd, trial.state())
        pop.meet()
        table = pop.ranking(rnd)
        if table[-1]["rank"] == rank:
            best = table[0]
            trial.load(pop.get_state(rnd, best["rank"]))
            trial.explore(best["hp"])
        if rnd > 0:
            pop.forget(rnd - 1)
        if rank == 0:
            log.info("round %d best %.4f worst %.4f (trial 0: loss %.4f lr %.4g) %.1fs", rnd, table[0]["val"],
                     table[-1]["val"], loss, trial.hp["lr"], time.time() - t0)

    final = torch.tensor([trial.evaluate()])
    scores = [torch.zeros(1) for _ in range(world)]
    dist.all_gather(scores, final)
    if rank == 0:
        log.info("final scores %s", [round(s.item(), 4) for s in scores])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
