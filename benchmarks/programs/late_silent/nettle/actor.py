import torch
from torch.distributed.tensor import DTensor
from torch.func import functional_call


class Actor:
    """Runs rollouts with whole weights taken from the learner."""

    def __init__(self, skeleton, learner_params):
        self.skeleton = skeleton.requires_grad_(False).eval()
        self.learner_params = learner_params
        self.weights = None

    @torch.no_grad()
    def refresh(self):
        whole = {}
        for name, p in self.learner_params.items():
            whole[name] = p.full_tensor() if isinstance(p, DTensor) else p.detach().clone()
        self.weights = whole

    @torch.no_grad()
    def rollout(self, envs, horizon, gen):
        obs, acts, logps, rewards = [], [], [], []
        o = envs.reset()
        for _ in range(horizon):
            logits, _ = functional_call(self.skeleton, self.weights, (o,))
            a = torch.multinomial(logits.softmax(-1), 1, generator=gen).squeeze(1)
            logp = logits.log_softmax(-1).gather(1, a.unsqueeze(1)).squeeze(1)
            obs.append(o)
            acts.append(a)
            logps.append(logp)
            o, r = envs.step(a)
            rewards.append(r)
        return torch.stack(obs), torch.stack(acts), torch.stack(logps), torch.stack(rewards)
