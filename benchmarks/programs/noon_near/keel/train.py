import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class Policy(nn.Module):
    def __init__(self, obs=8, acts=4, hidden=256):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.pi = nn.Linear(hidden, acts)
        self.v = nn.Linear(hidden, 1)

    def forward(self, obs):
        h = self.body(obs)
        return self.pi(h), self.v(h).squeeze(-1)


class ChaseEnv:
    """A batch of points chasing targets on a torus; four moves."""

    def __init__(self, n, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.n = n
        self.moves = torch.tensor([[0.1, 0.0], [-0.1, 0.0], [0.0, 0.1], [0.0, -0.1]])
        self.me, self.goal = torch.rand(n, 2, generator=self.g), torch.rand(n, 2, generator=self.g)

    def observe(self):
        gap = (self.goal - self.me + 0.5) % 1.0 - 0.5
        return torch.cat([gap, gap.abs(), torch.sin(6.2832 * self.me), torch.cos(6.2832 * self.me)], 1)

    def step(self, action):
        before = self.observe()[:, 2:4].sum(1)
        self.me = (self.me + self.moves[action]) % 1.0
        after = self.observe()[:, 2:4].sum(1)
        done = after < 0.12
        fresh = torch.rand(self.n, 2, generator=self.g)
        self.goal = torch.where(done[:, None], fresh, self.goal)
        return (before - after) * 5 + done.float(), done.float()


class Roles:
    """Last rank evaluates, the others learn. Both groups are opened by everybody, used by their members."""

    def __init__(self):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.learners = list(range(self.world - 1))
        self.learner_group = dist.new_group(self.learners)
        self.review_group = dist.new_group([0, self.world - 1])
        self.is_learner = self.rank in self.learners


def flat_params(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def load_flat(model, flat):
    offset = 0
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(flat[offset:offset + p.numel()].view_as(p))
            offset += p.numel()


def collect(model, env, horizon, gamma=0.95):
    obs, acts, rews, dones = [], [], [], []
    with torch.no_grad():
        for _ in range(horizon):
            o = env.observe()
            logits, _ = model(o)
            a = torch.multinomial(logits.softmax(-1), 1, generator=env.g).squeeze(1)
            r, d = env.step(a)
            obs.append(o), acts.append(a), rews.append(r), dones.append(d)
        ret = model(env.observe())[1]
        returns = []
        for r, d in zip(reversed(rews), reversed(dones)):
            ret = r + gamma * ret * (1 - d)
            returns.append(ret)
    return torch.cat(obs), torch.cat(acts), torch.cat(returns[::-1]), torch.stack(rews).mean()


def learn(args, roles, model):
    params = list(model.parameters())
    opt = torch.optim.Adam(params, lr=args.lr)
    env = ChaseEnv(args.envs, seed=1000 + roles.rank)
    for it in range(args.iterations):
        obs, acts, returns, reward = collect(model, env, args.horizon)
        logits, value = model(obs)
        adv = returns - value.detach()
        logp = F.log_softmax(logits, -1)
        pg = -(logp.gather(1, acts[:, None]).squeeze(1) * adv).mean()
        entropy = -(logp.exp() * logp).sum(1).mean()
        loss = pg + 0.5 * F.mse_loss(value, returns) - 0.01 * entropy
        opt.zero_grad()
        loss.backward()
        grad = torch.cat([p.grad.reshape(-1) for p in params])
        dist.all_reduce(grad, group=roles.learner_group)
        grad /= len(roles.learners)
        offset = 0
        for p in params:
            p.grad.copy_(grad[offset:offset + p.numel()].view_as(p))
            offset += p.numel()
        nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        if (it + 1) % args.review_every == 0 and roles.rank == 0:
            dist.broadcast(flat_params(model), src=0, group=roles.review_group)
            print(f"iteration {it} reward {reward.item():.3f} entropy {entropy.item():.3f}", flush=True)


def review(args, roles, model):
    flat = flat_params(model)
    for it in range(args.iterations // args.review_every):
        dist.broadcast(flat, src=0, group=roles.review_group)
        load_flat(model, flat)
        env = ChaseEnv(args.envs, seed=5)
        total = sum(collect(model, env, args.horizon)[3] for _ in range(args.review_rollouts))
        print(f"  review {it}: mean reward {total.item() / args.review_rollouts:.3f}", flush=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iterations", type=int, default=80)
    ap.add_argument("--envs", type=int, default=96)
    ap.add_argument("--horizon", type=int, default=32)
    ap.add_argument("--review-every", type=int, default=8)
    ap.add_argument("--review-rollouts", type=int, default=22)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    roles = Roles()
    torch.manual_seed(7)
    model = Policy()
    (learn if roles.is_learner else review)(args, roles, model)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
