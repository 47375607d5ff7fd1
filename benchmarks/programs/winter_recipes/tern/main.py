import argparse
import logging
import os
import tempfile

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from agent import ActorCritic, RunningMeanStd
from envs import VecReacher

NUM_LEVELS = 6


class Rollout:
    def __init__(self, env, agent, norm, horizon, gamma=0.97, lam=0.95):
        self.env, self.agent, self.norm = env, agent, norm
        self.horizon, self.gamma, self.lam = horizon, gamma, lam
        self.raw = env.reset()

    @torch.no_grad()
    def collect(self):
        net = self.agent.module
        raws, obs, acts, logps, rews, vals, dones = ([] for _ in range(7))
        for _ in range(self.horizon):
            o = self.norm(self.raw)
            d = net.dist(o)
            a = d.sample()
            raws.append(self.raw)
            obs.append(o)
            acts.append(a)
            logps.append(d.log_prob(a).sum(-1))
            vals.append(net.v(o).squeeze(-1))
            self.raw, r, done = self.env.step(a)
            rews.append(r)
            dones.append(done)
        last = net.v(self.norm(self.raw)).squeeze(-1)
        adv, gae = [], torch.zeros(self.env.n)
        for t in reversed(range(self.horizon)):
            nxt = (last if t == self.horizon - 1 else vals[t + 1]) * (not dones[t])
            gae = rews[t] + self.gamma * nxt - vals[t] + self.gamma * self.lam * (not dones[t]) * gae
            adv.insert(0, gae)
        adv, vals = torch.stack(adv), torch.stack(vals)
        self.norm.update(torch.stack(raws))
        flat = lambda x: x.flatten(0, 1)
        return [flat(torch.stack(obs)), flat(torch.stack(acts)), flat(torch.stack(logps)), flat(adv), flat(adv + vals)], torch.stack(rews).mean()


def normalise_advantage(adv):
    stats = torch.stack([adv.sum(), (adv ** 2).sum(), torch.tensor(float(adv.numel()))])
    dist.all_reduce(stats)
    mean = stats[0] / stats[2]
    return (adv - mean) / ((stats[1] / stats[2] - mean ** 2).clamp(min=0).sqrt() + 1e-8)


def ppo_update(agent, opt, batch, epochs, minibatch, clip=0.2):
    obs, act, old_logp, adv, ret = batch
    adv = normalise_advantage(adv)
    for _ in range(epochs):
        for idx in torch.randperm(len(obs)).split(minibatch):
            logp, ent, v = agent(obs[idx], act[idx])
            ratio = (logp - old_logp[idx]).exp()
            pg = -torch.min(ratio * adv[idx], ratio.clamp(1 - clip, 1 + clip) * adv[idx]).mean()
            loss = pg + 0.5 * (v - ret[idx]).pow(2).mean() - 0.002 * ent.mean()
            opt.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            opt.step()


@torch.no_grad()
def evaluate(net, norm):
    env = VecReacher(60, list(range(NUM_LEVELS)), seed=4321)
    obs, total = env.reset(), torch.zeros(60)
    for _ in range(env.horizon):
        obs, r, _ = env.step(net.pi(norm(obs)))
        total += r
    return [round(total[env.level == k].mean().item(), 2) for k in range(NUM_LEVELS)]


def main():
    p = argparse.ArgumentParser("ppo")
    p.add_argument("--iterations", type=int, default=14)
    p.add_argument("--envs", type=int, default=48)
    p.add_argument("--horizon", type=int, default=32)
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--minibatch", type=int, default=256)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--out", default=os.path.join(tempfile.gettempdir(), f"ppo-{os.environ.get('MASTER_PORT', 0)}"))
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(message)s")
    torch.manual_seed(1)
    agent = DDP(ActorCritic(VecReacher.obs_dim, VecReacher.act_dim))
    opt = torch.optim.Adam(agent.parameters(), lr=args.lr, eps=1e-5)
    per = NUM_LEVELS // world
    env = VecReacher(args.envs, list(range(rank * per, (rank + 1) * per)), seed=100 + rank)
    norm = RunningMeanStd(env.obs_dim)
    norm.update(env.obs())
    torch.manual_seed(1000 + rank)
    rollout = Rollout(env, agent, norm, args.horizon)
    for it in range(args.iterations):
        batch, reward = rollout.collect()
        ppo_update(agent, opt, batch, args.epochs, args.minibatch)
        dist.all_reduce(reward)
        if it % 2 == 0:
            logging.info("iter %d reward %.4f", it, reward.item() / world)
    if rank == 0:
        os.makedirs(args.out, exist_ok=True)
        torch.save({"model": agent.module.state_dict(), "obs_norm": norm.state_dict()}, os.path.join(args.out, "policy.pt"))
        logging.info("return per level %s", evaluate(agent.module, norm))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
