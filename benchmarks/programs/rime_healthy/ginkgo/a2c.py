"""Synchronous actor-learner: rank 0 learns, the others play."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters


class ActorCritic(nn.Module):
    def __init__(self, obs, acts, hidden=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.pi, self.v = nn.Linear(hidden, acts), nn.Linear(hidden, 1)

    def forward(self, o):
        h = self.body(o)
        return self.pi(h), self.v(h).squeeze(-1)


class GridWorld:
    """Vectorised: walk to the goal on a line of rooms with wind."""

    def __init__(self, n, seed, size=9):
        self.n, self.size = n, size
        self.g = torch.Generator().manual_seed(seed)
        self.pos = torch.randint(0, size, (n, 2), generator=self.g)
        self.goal = torch.randint(0, size, (n, 2), generator=self.g)
        self.moves = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])

    def obs(self):
        return torch.cat([self.pos, self.goal], 1).float() / self.size - 0.5

    def step(self, a):
        before = (self.pos - self.goal).abs().sum(1)
        self.pos = (self.pos + self.moves[a]).clamp(0, self.size - 1)
        after = (self.pos - self.goal).abs().sum(1)
        done = after == 0
        reward = (before - after).float() * 0.1 + done.float()
        k = int(done.sum())
        if k:
            self.goal[done] = torch.randint(0, self.size, (k, 2), generator=self.g)
        return self.obs(), reward, done.float()


@torch.no_grad()
def play(model, env, steps, gen):
    obs, act, rew, dn = [], [], [], []
    o = env.obs()
    for _ in range(steps):
        logits, _ = model(o)
        a = torch.multinomial(logits.softmax(-1), 1, generator=gen).squeeze(1)
        obs.append(o)
        act.append(a.float())
        o, r, d = env.step(a)
        rew.append(r)
        dn.append(d)
    last = model(o)[1]
    ret, back = last, []
    for r, d in zip(reversed(rew), reversed(dn)):
        ret = r + 0.95 * (1 - d) * ret
        back.append(ret)
    back = torch.stack(back[::-1])
    return torch.cat([torch.stack(obs), torch.stack(act)[..., None], back[..., None], torch.stack(rew)[..., None]], -1)


def learn(model, opt, batch):
    o, a, ret = batch[..., :4], batch[..., 4].long(), batch[..., 5]
    logits, v = model(o)
    adv = (ret - v).detach()
    dist_ = torch.distributions.Categorical(logits=logits)
    loss = -(dist_.log_prob(a) * adv).mean() + 0.5 * (ret - v).pow(2).mean() - 0.01 * dist_.entropy().mean()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    opt.step()
    return loss.item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--updates", type=int, default=250)
    ap.add_argument("--unroll", type=int, default=16)
    ap.add_argument("--envs", type=int, default=64)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = ActorCritic(4, 4)
    flat = parameters_to_vector(model.parameters()).detach().clone()
    shape = (args.unroll, args.envs, 7)

    if rank == 0:
        opt = torch.optim.RMSprop(model.parameters(), lr=args.lr, eps=1e-5)
        empty = torch.zeros(shape)
        slots = [torch.empty(shape) for _ in range(world)]
        for u in range(args.updates):
            dist.broadcast(parameters_to_vector(model.parameters()).detach(), src=0)
            dist.gather(empty, slots, dst=0)
            batch = torch.cat(slots[1:], 1)
            loss = learn(model, opt, batch)
            if u % 25 == 0 or u == args.updates - 1:
                print(f"update {u} loss {loss:.4f} reward/step {batch[..., 6].mean():.3f}", flush=True)
        torch.save(model.state_dict(), "policy.pt")
    else:
        env = GridWorld(args.envs, seed=rank)
        gen = torch.Generator().manual_seed(100 + rank)
        for _ in range(args.updates):
            dist.broadcast(flat, src=0)
            vector_to_parameters(flat, model.parameters())
            dist.gather(play(model, env, args.unroll, gen), dst=0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
