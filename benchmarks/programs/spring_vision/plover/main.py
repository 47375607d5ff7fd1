"""IMPALA-like training: every rank has its actor threads and one learner, learners are data parallel."""
import argparse
import logging
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from actors import ActorPool
from env import CorridorEnv

log = logging.getLogger("impala")

CONFIG = dict(actors=3, batch=6, unroll=20, horizon=120, lengths=(28, 24, 20, 16, 12, 5), mean_distance=8, gamma=0.98,
              entropy=0.01, value_coef=0.5, lr=1e-3, clip=1.0, publish_every=2)


class ActorCritic(nn.Module):
    def __init__(self, obs_dim, num_actions, hidden=64):
        super().__init__()
        self.torso = nn.Sequential(nn.Linear(obs_dim, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.pi = nn.Linear(hidden, num_actions)
        self.v = nn.Linear(hidden, 1)

    def forward(self, obs):
        h = self.torso(obs)
        return self.pi(h), self.v(h).squeeze(-1)


def vtrace(values, logp, behaviour_logp, reward, done, gamma):
    rho = (logp - behaviour_logp).exp().clamp(max=1.0)
    discount = gamma * (1 - done)
    delta = rho * (reward + discount * values[1:] - values[:-1])
    acc, out = torch.zeros_like(values[0]), []
    for t in reversed(range(len(reward))):
        acc = delta[t] + discount[t] * rho[t] * acc
        out.append(acc)
    vs = torch.stack(out[::-1]) + values[:-1]
    nxt = torch.cat([vs[1:], values[-1:]])
    return vs, rho * (reward + discount * nxt - values[:-1])


def learn(model, batch, cfg):
    logits, values = model(batch["obs"].float())
    lp = F.log_softmax(logits[:-1], -1)
    logp = lp.gather(-1, batch["action"].unsqueeze(-1)).squeeze(-1)
    with torch.no_grad():
        vs, adv = vtrace(values, logp, batch["logp"].float(), batch["reward"].float(),
                         batch["done"].float(), cfg["gamma"])
    pg = -(logp * adv).mean()
    vloss = F.mse_loss(values[:-1], vs)
    ent = -(lp.exp() * lp).sum(-1).mean()
    return pg + cfg["value_coef"] * vloss - cfg["entropy"] * ent


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--updates", type=int, default=360)
    ap.add_argument("--log-every", type=int, default=40)
    args = ap.parse_args()
    cfg = dict(CONFIG)

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    torch.manual_seed(5)
    net = ActorCritic(CorridorEnv.obs_dim, CorridorEnv.num_actions)
    model = DDP(net)
    opt = torch.optim.Adam(model.parameters(), cfg["lr"])
    pool = ActorPool(net, cfg, rank)

    t0 = time.time()
    for update in range(1, args.updates + 1):
        batch = pool.next_batch()
        loss = learn(model, batch, cfg)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), cfg["clip"])
        opt.step()
        if update % cfg["publish_every"] == 0:
            pool.publish(net)
        if update % args.log_every == 0:
            s = torch.tensor(pool.stats.pop() + (loss.item(),), dtype=torch.float64)
            dist.all_reduce(s)
            if rank == 0:
                n = max(s[2].item(), 1)
                log.info("update %d return %.2f efficiency %.2f loss %.3f (%.0f unrolls/s)", update, s[0] / n,
                         s[1] / n, s[3] / world, update * cfg["batch"] * world / (time.time() - t0))
    pool.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
