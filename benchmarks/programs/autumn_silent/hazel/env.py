import torch


class BalanceEnv:
    """Linearised pole on a cart, a batch of starts at once."""

    def __init__(self, horizon=60, dt=0.05):
        self.horizon, self.dt = horizon, dt

    def reset(self, n, gen):
        return 0.4 * (2 * torch.rand(n, 4, generator=gen) - 1)

    def rollout(self, policy, state):
        total = torch.zeros(state.size(0))
        for _ in range(self.horizon):
            force = 4.0 * torch.tanh(policy(state)).squeeze(-1)
            pos, vel, ang, rot = state.unbind(1)
            acc = force - 0.3 * ang
            rot_acc = 9.0 * torch.sin(ang) - force * torch.cos(ang) - 0.2 * rot
            state = torch.stack([pos + self.dt * vel, vel + self.dt * acc, ang + self.dt * rot, rot + self.dt * rot_acc], 1)
            state = state.clamp(-6, 6)
            total += -(state[:, 2].pow(2) + 0.05 * state[:, 0].pow(2) + 0.001 * force.pow(2))
        return total.mean()
