import argparse

import torch
import torch.distributed as dist

from agent import Agent, Replay


class CorridorEnv:
    """Reach the far end of a windy corridor; one-hot position plus wind reading."""

    N = 7

    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)

    def _obs(self):
        o = torch.zeros(self.N + 1)
        o[self.pos] = 1.0
        o[-1] = self.wind
        return o

    def reset(self):
        self.pos, self.t = 0, 0
        self.wind = torch.rand(1, generator=self.g).item() - 0.5
        return self._obs()

    def step(self, action):
        self.t += 1
        move = {0: -1, 1: 0, 2: 1}[action]
        if torch.rand(1, generator=self.g).item() < abs(self.wind) * 0.5:
            move -= 1
        self.pos = min(max(self.pos + move, 0), self.N - 1)
        self.wind = torch.rand(1, generator=self.g).item() - 0.5
        done = self.pos == self.N - 1
        reward = 1.0 if done else -0.01
        return self._obs(), reward, done or self.t >= 60, float(done)


def main():
    ap = argparse.ArgumentParser(description="Distributed double DQN")
    ap.add_argument("--env-steps", type=int, default=1400)
    ap.add_argument("--warmup", type=int, default=200)
    ap.add_argument("--train-every", type=int, default=4)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--gamma", type=float, default=0.97)
    ap.add_argument("--tau", type=float, default=0.02)
    ap.add_argument("--seed", type=int, default=3)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)

    env = CorridorEnv(args.seed * 77 + rank)
    agent = Agent(CorridorEnv.N + 1, 3, args.lr, args.gamma, args.tau, args.seed)
    memory = Replay(5000, agent.rng)

    obs, ret, returns = env.reset(), 0.0, []
    for t in range(args.env_steps):
        eps = max(0.1, 1.0 - t / 800)
        a = agent.act(obs, eps)
        nxt, r, over, terminal = env.step(a)
        memory.add(obs, a, r, nxt, terminal)
        obs, ret = nxt, ret + r
        if over:
            returns.append(ret)
            obs, ret = env.reset(), 0.0
        if t >= args.warmup and t % args.train_every == 0:
            agent.learn(memory.sample(args.batch))

    mean_ret = torch.tensor([sum(returns[-10:]), float(len(returns[-10:]))])
    dist.all_reduce(mean_ret)
    if rank == 0:
        print(f"mean return (last episodes, all workers): {(mean_ret[0] / mean_ret[1]).item():.3f}")
        torch.save(agent.q.module.state_dict(), "qnet.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
