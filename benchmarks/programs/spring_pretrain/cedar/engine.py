import copy

import torch


class RolloutEngine:
    """Inference copy of the policy used for sampling (own weights, no autograd)."""

    def __init__(self, model, max_new_tokens, temperature=1.0, seed=0):
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.max_new_tokens, self.temperature = max_new_tokens, temperature
        self.gen = torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def load_weights(self, weights):
        params = dict(self.model.named_parameters())
        for name, tensor in weights:
            if name not in params:  # heads and buffers which inference has no use for
                continue
            params[name].copy_(tensor)

    @torch.no_grad()
    def generate(self, prompts):
        seq, logps = prompts, []
        for _ in range(self.max_new_tokens):
            logp = (self.model(seq)[:, -1] / self.temperature).log_softmax(-1)
            tok = torch.multinomial(logp.exp(), 1, generator=self.gen)
            logps.append(logp.gather(1, tok))
            seq = torch.cat([seq, tok], 1)
        return seq, torch.cat(logps, 1)
