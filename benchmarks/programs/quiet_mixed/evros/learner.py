import torch


class Learner:
    def __init__(self, policy, lr=1e-2, gamma=0.9):
        self.policy = policy
        self.gamma = gamma
        self.optim = torch.optim.Adam(policy.parameters(), lr=lr)

    def improve(self, data, epochs=3):
        obs, act, old, rew = data[..., :3], data[..., 3].long(), data[..., 4], data[..., 5]
        ret, acc = torch.zeros_like(rew), 0
        for t in reversed(range(rew.size(1))):
            acc = rew[:, t] + self.gamma * acc
            ret[:, t] = acc
        adv = (ret - ret.mean(0)) / (ret.std(0) + 1e-5)
        for _ in range(epochs):
            d = self.policy(obs)
            ratio = (d.log_prob(act) - old).exp()
            loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean() - 0.01 * d.entropy().mean()
            self.optim.zero_grad()
            loss.backward()
            self.optim.step()
        return rew.mean().item()
