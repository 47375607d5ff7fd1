import torch
import torch.nn as nn
import torch.nn.functional as F


class ActorCritic(nn.Module):
    """Decoder with a language-model head and a scalar value head."""

    def __init__(self, vocab: int, max_len: int, dim: int = 96, heads: int = 4, layers: int = 2):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Embedding(max_len, dim)
        layer = dict(d_model=dim, nhead=heads, dim_feedforward=4 * dim, dropout=0.0,
                     batch_first=True, norm_first=True, activation="gelu")
        self.body = nn.TransformerEncoder(nn.TransformerEncoderLayer(**layer), layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)
        self.lm = nn.Linear(dim, vocab, bias=False)
        self.value = nn.Linear(dim, 1)

    def forward(self, ids):
        T = ids.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(T)
        h = self.tok(ids) + self.pos(torch.arange(T))
        h = self.norm(self.body(h, mask=mask, is_causal=True))
        return self.lm(h), self.value(h).squeeze(-1)


def gather_logp(logits, ids):
    return F.log_softmax(logits[:, :-1], -1).gather(-1, ids[:, 1:, None]).squeeze(-1)


def gae(rewards, values, gamma: float, lam: float):
    adv, last = torch.zeros_like(rewards), torch.zeros(rewards.shape[0])
    for t in reversed(range(rewards.shape[1])):
        nxt = values[:, t + 1] if t + 1 < rewards.shape[1] else torch.zeros_like(last)
        delta = rewards[:, t] + gamma * nxt - values[:, t]
        last = delta + gamma * lam * last
        adv[:, t] = last
    return adv, adv + values


class AdaptiveKL:
    """Keeps the KL to the reference near a target, judged on a moving window."""

    def __init__(self, init: float, target: float, window: int = 8):
        self.coef, self.target, self.window = init, target, window
        self.history = []

    def observe(self, kl):
        self.history.append(kl)

    def adjust(self):
        recent = self.history[-self.window:]
        mean = (sum(recent) / len(recent)).item()
        err = max(-0.2, min(0.2, mean / self.target - 1))
        self.coef *= 1 + 0.1 * err
        return mean
