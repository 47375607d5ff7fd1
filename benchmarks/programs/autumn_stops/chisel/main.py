import argparse
import datetime
import logging

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from retrieval import DualEncoder, pairs, recall_at_k

log = logging.getLogger("retrieve")

CONFIG = {
    "dist": {"backend": "gloo", "timeout": 10},
    "train": {"steps": 240, "batch_size": 64, "lr": 1e-3, "dim": 64, "emb": 64},
    "eval": {"every": 80, "corpus": 4000, "k": 10, "quick_budget": 1.0, "full_budget": 13.5},
}


def setup(cfg):
    dist.init_process_group(cfg["backend"], timeout=datetime.timedelta(minutes=cfg["timeout"]))
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s r{rank} %(message)s")
    return rank, dist.get_world_size()


class Evaluator:
    """Rank 0 scores the encoder, everybody gets the number back."""

    def __init__(self, cfg, dim, rank):
        self.cfg, self.dim, self.rank = cfg, dim, rank
        self.history = []

    def __call__(self, model, step, final):
        score = torch.zeros(1)
        if self.rank == 0:
            budget = self.cfg["full_budget"] if final else self.cfg["quick_budget"]
            score[0] = recall_at_k(model.module, self.cfg["corpus"], self.dim, self.cfg["k"], budget)
        dist.broadcast(score, src=0)
        self.history.append((step, score.item()))
        if self.rank == 0:
            log.info("step %d recall@%d %.4f%s", step, self.cfg["k"], score.item(), " (full)" if final else "")
        return score.item()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=CONFIG["train"]["steps"])
    args = p.parse_args()
    rank, world_size = setup(CONFIG["dist"])
    t = CONFIG["train"]

    torch.manual_seed(0)
    model = DDP(DualEncoder(t["dim"], t["emb"]))
    opt = torch.optim.Adam(model.parameters(), lr=t["lr"])
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.steps)
    evaluate = Evaluator(CONFIG["eval"], t["dim"], rank)

    for step in range(1, args.steps + 1):
        q, d = pairs(t["batch_size"], t["dim"], seed=step * world_size + rank)
        loss = model(q, d)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % CONFIG["eval"]["every"] == 0:
            model.eval()
            evaluate(model, step, final=step == args.steps)
            model.train()
        elif rank == 0 and step % 20 == 0:
            log.info("step %d loss %.4f", step, loss.item())

    if rank == 0:
        best = max(evaluate.history, key=lambda r: r[1])
        log.info("best recall %.4f at step %d", best[1], best[0])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
