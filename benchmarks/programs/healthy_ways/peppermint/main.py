"""A self-play league: every rank trains its own poker player against past players of all ranks."""
import argparse
import json
import os
import random

import torch
import torch.distributed as dist
import torch.nn as nn

from kuhn import CARDS, DEALS, NODES, exploitability, info, match, terminal


class Player(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(len(NODES) + CARDS, width), nn.Tanh(), nn.Linear(width, 1))
        x = torch.zeros(len(NODES) * CARDS, len(NODES) + CARDS)
        for n, h in enumerate(NODES):
            for c in range(CARDS):
                x[info(c, h), n] = 1
                x[info(c, h), len(NODES) + c] = 1
        self.register_buffer("inputs", x, persistent=False)

    def forward(self):
        return 0.01 + 0.98 * self.net(self.inputs).squeeze(1).sigmoid()


class Agent:
    def __init__(self, args, rank):
        self.args, self.rank = args, rank
        torch.manual_seed(args.seed * 100 + rank)
        self.r = random.Random(args.seed * 200 + rank)
        self.player = Player()
        self.opt = torch.optim.Adam(self.player.parameters(), lr=args.lr)
        self.baseline = [0.0, 0.0]

    def table(self):
        with torch.no_grad():
            return self.player().tolist()

    def game(self, mine, other, seat):
        """One game; returns own decisions and the own result."""
        cards, h, moves = self.r.choice(DEALS), "", []
        while True:
            t = terminal(h, cards)
            if t is not None:
                return moves, t if seat == 0 else -t
            who = len(h) % 2
            i = info(cards[who], h)
            p = mine[i] if who == seat else other[i]
            bet = self.r.random() < p
            if who == seat:
                moves.append((i, bet))
            h += "b" if bet else "p"

    def learn(self, pool):
        total = 0.0
        for _ in range(self.args.updates):
            chance = self.player()
            mine = chance.tolist()
            counts = torch.zeros(2, len(mine))
            for g in range(self.args.games):
                seat = g % 2
                moves, result = self.game(mine, self.r.choice(pool), seat)
                self.baseline[seat] += 0.01 * (result - self.baseline[seat])
                total += result
                for i, bet in moves:
                    counts[int(bet), i] += (result - self.baseline[seat]) / self.args.games
            entropy = -(chance * chance.log() + (1 - chance) * (1 - chance).log()).mean()
            loss = -(counts[1] * chance.log() + counts[0] * (1 - chance).log()).sum() - self.args.entropy * entropy
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            self.opt.step()
        return total / (self.args.updates * self.args.games)


def pair_results(tables, rank, world):
    """The games of the cross table are dealt out over the ranks and put together afterwards."""
    n = len(tables)
    cross = torch.zeros(n, n)
    pairs = [(i, j) for i in range(n) for j in range(i)]
    for k, (i, j) in enumerate(pairs):
        if k % world == rank:
            cross[i, j] = match(tables[i], tables[j])
            cross[j, i] = -cross[i, j]
    dist.all_reduce(cross)
    return cross


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--generations", type=int, default=8)
    ap.add_argument("--updates", type=int, default=16)
    ap.add_argument("--games", type=int, default=60)
    ap.add_argument("--window", type=int, default=12)
    ap.add_argument("--lr", type=float, default=0.03)
    ap.add_argument("--entropy", type=float, default=0.1)
    ap.add_argument("--seed", type=int, default=63)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    agent = Agent(args, rank)
    pool, story = [], []
    for gen in range(args.generations):
        tables = [None] * world
        dist.all_gather_object(tables, agent.table())
        pool = (pool + tables)[-args.window:]
        result = agent.learn(pool)
        average = [sum(col) / len(pool) for col in zip(*pool)]
        rows = [None] * world
        dist.all_gather_object(rows, {"result": round(result, 3), "exploitable": round(exploitability(agent.table()), 3)})
        cross = pair_results(tables, rank, world)
        if rank == 0:
            league = exploitability(average)
            story.append({"generation": gen, "rows": rows, "league": league, "cross": cross.tolist()})
            print(f"generation {gen} pool {len(pool)} {rows} league average exploitable {league:.3f} "
                  f"cross {cross[0].tolist()}", flush=True)
    os.makedirs("runs/peppermint", exist_ok=True)
    torch.save(agent.player.state_dict(), f"runs/peppermint/agent{rank}.pt")
    if rank == 0:
        with open("runs/peppermint/story.json", "w") as f:
            json.dump(story, f)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
