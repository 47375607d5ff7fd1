import torch
import torch.distributed as dist

from ppo import PPO, ActorCritic
from storage import RolloutStorage

HORIZON, ENVS, OBS, ACT, ITERS = 16, 32, 6, 2, 12


class PointMass:
    """Vectorised 2-D point mass with per-env friction."""

    def __init__(self, n, gen):
        self.n, self.gen = n, gen
        self.friction = 0.05 + 0.3 * torch.rand(n, 1, generator=gen)
        self.state = torch.zeros(n, 4)
        self.goal = torch.zeros(n, 2)
        self.reset(torch.ones(n, dtype=torch.bool))

    def reset(self, mask):
        k = int(mask.sum())
        self.state[mask] = torch.randn(k, 4, generator=self.gen) * 0.5
        self.goal[mask] = torch.randn(k, 2, generator=self.gen)

    def obs(self):
        return torch.cat([self.state, self.goal - self.state[:, :2]], 1)

    def step(self, act):
        self.state[:, 2:] += 0.2 * act.clamp(-2, 2) - self.friction * self.state[:, 2:]
        self.state[:, :2] += 0.2 * self.state[:, 2:]
        dist2 = (self.goal - self.state[:, :2]).square().sum(1)
        self.reset(dist2 < 0.05)
        return -dist2.clamp(max=4.0)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(40 + rank)
    env = PointMass(ENVS, torch.Generator().manual_seed(900 + rank))
    algo = PPO(ActorCritic(OBS, ACT))
    algo.broadcast_parameters()
    store = RolloutStorage(HORIZON, ENVS, OBS, ACT)

    for it in range(ITERS):
        with torch.no_grad():
            for _ in range(HORIZON):
                obs = env.obs()
                d = algo.net.dist_of(obs)
                act = d.sample()
                val = algo.net.value(obs)
                rew = env.step(act)
                store.add(obs=obs, act=act, rew=rew, val=val, logp=d.log_prob(act).sum(-1), mu=d.mean, sigma=d.stddev)
            last = algo.net.value(env.obs())
        mean_rew = store.rew.mean()
        loss = algo.update(store, last)
        dist.all_reduce(mean_rew, op=dist.ReduceOp.AVG)
        if rank == 0:
            print(f"iter {it} reward {mean_rew:.3f} loss {loss:.3f} lr {algo.learning_rate:.2e}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
