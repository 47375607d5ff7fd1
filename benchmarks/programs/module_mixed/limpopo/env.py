import torch


class Corridor:
    """Episodes end when the agent leaves the corridor, so their length varies."""

    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)

    def episode(self, policy, limit=40):
        pos, obs_l, act_l, rew_l = torch.zeros(()), [], [], []
        for _ in range(limit):
            obs = torch.stack([pos, pos.abs(), torch.ones(())])
            with torch.no_grad():
                p = policy(obs).sigmoid()
            a = float(torch.rand((), generator=self.g) < p)
            pos = pos + 0.3 * (2 * a - 1) + 0.15 * torch.randn((), generator=self.g)
            obs_l.append(obs)
            act_l.append(a)
            rew_l.append(1.0)
            if pos.abs() > 1.5:
                break
        ret = torch.tensor(rew_l).flip(0).cumsum(0).flip(0)
        return torch.stack(obs_l), torch.tensor(act_l), ret


def collect(env, policy, episodes):
    parts = [env.episode(policy) for _ in range(episodes)]
    return [torch.cat(t) for t in zip(*parts)]
