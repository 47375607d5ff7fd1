"""Off-policy Q-learning with parameter-space exploration, one actor and learner per process."""
import argparse
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel as DDP

from world import ACTIONS, STATE, Drift, Replay


def q_net(width=48):
    return nn.Sequential(nn.Linear(STATE, width), nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, ACTIONS))


def plain_copy(net):
    return {name: p.detach().clone() for name, p in net.named_parameters()}


class Actor:
    """Acts with a perturbed copy of the weights. Actor 0 has scale 0: its return is the one to report."""

    def __init__(self, net, scale, seed):
        self.net, self.scale = net, scale
        self.gen = torch.Generator().manual_seed(seed)
        self.weights = {}
        self.perturb()

    def perturb(self):
        self.weights = plain_copy(self.net)
        for w in self.weights.values():
            w.add_(torch.randn(w.shape, generator=self.gen), alpha=self.scale)

    @torch.no_grad()
    def act(self, state):
        return functional_call(self.net, self.weights, (state,)).argmax(-1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iters", type=int, default=180)
    ap.add_argument("--lanes", type=int, default=8)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--gamma", type=float, default=0.9)
    ap.add_argument("--sigma", type=float, default=0.08)
    ap.add_argument("--target-every", type=int, default=20)
    ap.add_argument("--perturb-every", type=int, default=10)
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--seed", type=int, default=41)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(args.seed)
    learner = DDP(q_net())
    net = learner.module
    opt = torch.optim.Adam(learner.parameters(), lr=args.lr)

    env = Drift(args.lanes, args.seed * 100 + rank)
    memory = Replay(4000, args.seed * 200 + rank)
    actor = Actor(net, args.sigma * rank / max(world - 1, 1), args.seed * 300 + rank)
    target = plain_copy(net)

    window = []
    for it in range(1, args.iters + 1):
        for _ in range(2):
            s, a, r, n = env.step(actor.act(env.state))
            memory.add(s, a, r, n)
            window.append(r.mean().item())

        s, a, r, n = memory.sample(args.batch)
        with torch.no_grad():
            goal = r + args.gamma * functional_call(net, target, (n,)).max(-1).values
        q = learner(s).gather(1, a[:, None]).squeeze(1)
        loss = F.smooth_l1_loss(q, goal)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(learner.parameters(), 5.0)
        opt.step()

        if it % args.target_every == 0:
            target = plain_copy(net)
        if it % args.perturb_every == 0:
            actor.perturb()
        if it % 45 == 0:
            row = torch.tensor([sum(window) / len(window), loss.item()], dtype=torch.float64)
            table = [torch.zeros_like(row) for _ in range(world)]
            dist.all_gather(table, row)
            window.clear()
            if rank == 0:
                explorers = ", ".join(f"{t[0].item():.3f}" for t in table[1:])
                mean_loss = sum(t[1].item() for t in table) / world
                print(f"iter {it:4d} td {mean_loss:.4f} reward {table[0][0].item():.3f} explorers [{explorers}]", flush=True)

    if rank == 0:
        torch.save({"q": net.state_dict(), "target": target, "iters": args.iters}, os.path.join(tempfile.gettempdir(), "drift_q.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
