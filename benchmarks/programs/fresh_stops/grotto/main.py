"""Policy for a little grid world by cross-entropy on good episodes. Rank 0 alone plays the long examination games
and tells everybody whether to go on."""
import argparse
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

SIDE = 5
MOVES = [(0, 1), (0, -1), (1, 0), (-1, 0)]


class Grid:
    def __init__(self, rng):
        self.rng = rng

    def reset(self):
        self.me = [self.rng.randrange(SIDE), self.rng.randrange(SIDE)]
        self.goal = [self.rng.randrange(SIDE), self.rng.randrange(SIDE)]
        return self.view()

    def view(self):
        v = torch.zeros(4 * SIDE)
        for k, c in enumerate(self.me + self.goal):
            v[k * SIDE + c] = 1
        return v

    def move(self, a):
        for k in range(2):
            self.me[k] = min(SIDE - 1, max(0, self.me[k] + MOVES[a][k]))
        return self.view(), self.me == self.goal


def policy():
    return nn.Sequential(nn.Linear(4 * SIDE, 64), nn.ReLU(), nn.Linear(64, len(MOVES)))


@torch.no_grad()
def play(net, world, limit=25, greedy=False):
    seen, done, acts = world.reset(), False, []
    views = []
    for _ in range(limit):
        logits = net(seen)
        a = int(logits.argmax()) if greedy else int(torch.multinomial(logits.softmax(-1), 1))
        views.append(seen)
        acts.append(a)
        seen, done = world.move(a)
        if done:
            break
    return views, acts, done


def collect(net, world, episodes):
    games = [g for g in (play(net, world) for _ in range(episodes)) if g[2]]
    games.sort(key=lambda g: len(g[1]))
    best = games[:max(4, len(games) // 2)]
    views = torch.stack([v for g in best for v in g[0]])
    return views, torch.tensor([a for g in best for a in g[1]])


def examine(net, games):
    """Fresh worlds, greedy play; on one process only since the worlds are numbered."""
    wins = 0
    for k in range(games):
        wins += play(net, Grid(random.Random(90_000 + k)), greedy=True)[2]
    return wins / games


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rounds", type=int, default=8)
    ap.add_argument("--episodes", type=int, default=60)
    ap.add_argument("--exam-games", type=int, default=3500)
    ap.add_argument("--exam-every", type=int, default=4)
    ap.add_argument("--enough", type=float, default=0.97)
    ap.add_argument("--seed", type=int, default=4)
    ap.add_argument("--out", default="/tmp/grid_policy.pt")
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    model = DDP(policy())
    torch.manual_seed(args.seed + 50 + rank)
    world = Grid(random.Random(args.seed + 100 * rank))
    optim = torch.optim.Adam(model.parameters(), lr=1e-2)
    for round_ in range(1, args.rounds + 1):
        views, acts = collect(model.module, world, args.episodes)
        for _ in range(6):
            pick = torch.randint(0, len(acts), (64,))
            loss = nn.functional.cross_entropy(model(views[pick]), acts[pick])
            optim.zero_grad(set_to_none=True)
            loss.backward()
            optim.step()
        if round_ % args.exam_every == 0:
            verdict = torch.zeros(1)
            if rank == 0:
                verdict[0] = examine(model.module, args.exam_games)
                print(f"round {round_} loss {loss.item():.3f} solved {verdict.item():.3f}", flush=True)
                torch.save(model.module.state_dict(), args.out)
            dist.broadcast(verdict, 0)
            if verdict.item() >= args.enough:
                break
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
