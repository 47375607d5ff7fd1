import torch


class Actor:
    """Plays a line-tracking game with the latest weights."""

    def __init__(self, policy, seed, episodes, horizon):
        self.policy = policy
        self.g = torch.Generator().manual_seed(seed)
        self.episodes, self.horizon = episodes, horizon

    @torch.no_grad()
    def rollouts(self):
        pos = torch.randn(self.episodes, generator=self.g)
        goal = torch.randn(self.episodes, generator=self.g) * 2
        rows = []
        for t in range(self.horizon):
            obs = torch.stack([pos, goal, goal - pos], -1)
            d = self.policy(obs)
            act = torch.multinomial(d.probs, 1, generator=self.g).squeeze(-1)
            logp = d.log_prob(act)
            pos = pos + (act - 1).float() * 0.3
            rew = -(goal - pos).abs()
            rows.append(torch.cat([obs, act[:, None].float(), logp[:, None], rew[:, None]], -1))
        return torch.stack(rows, 1)
