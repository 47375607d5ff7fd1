import torch
import torch.distributed as dist

from agent import Agent

ENVS, STEPS, OBS = 48, 30, 5


class Drift:
    """Keep a drifting particle near the origin; drift and scale are drawn per environment."""

    def __init__(self, n, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.scale = 0.5 + 2 * torch.rand(n, 1, generator=self.g)
        self.drift = 0.1 * torch.randn(n, 1, generator=self.g)
        self.s = torch.randn(n, OBS, generator=self.g)

    def obs(self):
        return self.s * self.scale + 3 * self.drift

    def step(self, action):
        push = 0.3 * (action.float() - 1).unsqueeze(1)
        self.s[:, :1] += push + self.drift
        self.s[:, 1:] = 0.9 * self.s[:, 1:] + 0.2 * torch.randn(len(self.s), OBS - 1, generator=self.g)
        out = self.s[:, 0].abs() > 3
        self.s[out] = torch.randn(int(out.sum()), OBS, generator=self.g)
        return 1 - self.s[:, 0].abs()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(55)
    agent = Agent(OBS, 3)
    env = Drift(ENVS, 80 + rank)
    for step in range(STEPS):
        obs = env.obs()
        action = agent.act(obs, max(0.1, 1 - step / 20), env.g)
        reward = env.step(action)
        loss = agent.learn((obs, action, reward, env.obs()))
        agent.soft_update()
        if step % 6 == 0 and rank == 0:
            print(f"step {step} loss {loss:.4f} reward {reward.mean():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
