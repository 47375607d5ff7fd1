import argparse
import time

import torch
import torch.distributed as dist
from torch import nn

from pool import Pool, worker_loop


def train_member(task):
    """One bagging member; a bootstrap sample with a single class is rejected."""
    g = torch.Generator().manual_seed(task["seed"] + 1000 * task.get("attempt", 0))
    x = torch.randn(200, 4, generator=g)
    y = (x[:, 0] > task["cut"]).float()
    if y.sum() < 3:
        raise ValueError(f"sample {task['seed']} has only one class")
    model = nn.Linear(4, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(task["steps"]):
        opt.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(1), y)
        loss.backward()
        opt.step()
    time.sleep(0.02 * (task["seed"] % 3))
    return {"seed": task["seed"], "loss": loss.item(), "rank": dist.get_rank()}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--members", type=int, default=40)
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--steps", type=int, default=80)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        pool = Pool()
        for r in range(args.rounds):
            tasks = [{"seed": 100 * r + i, "steps": args.steps, "cut": 5.0 if i % 7 == 3 else 0.2} for i in range(args.members)]
            results = pool.map(tasks)
            bad = [x for x in results if "error" in x]
            good = [x["loss"] for x in results if "loss" in x]
            print(f"round {r}: {len(good)} members, mean loss {sum(good) / len(good):.4f}, {len(bad)} failed", flush=True)
            if bad:
                print("   last failure:", bad[-1]["error"], flush=True)
        pool.close()
    else:
        print(f"worker {dist.get_rank()} handled {worker_loop(train_member)} tasks")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
