import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from seqlen import collate, prepare_dynamic_batch


class Policy(nn.Module):
    def __init__(self, vocab, dim, heads=4, layers=2, max_len=64):
        super().__init__()
        self.emb, self.pos = nn.Embedding(vocab, dim), nn.Embedding(max_len, dim)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, heads, 2 * dim, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab)
        with torch.no_grad():  # short answers at first
            self.head.bias[0] = 2.0

    def forward(self, ids):
        t = ids.shape[1]
        x = self.emb(ids) + self.pos(torch.arange(t))
        mask = torch.full((t, t), float("-inf"), dtype=x.dtype).triu(1)
        for layer in self.layers:
            x = layer(x, src_mask=mask)
        return self.head(self.norm(x))


def token_logp(model, tokens):
    logp = model(tokens[:, :-1]).float().log_softmax(-1)
    return logp.gather(-1, tokens[:, 1:].unsqueeze(-1)).squeeze(-1)


class GRPOActor:
    def __init__(self, model, optimizer, cfg, dp_group):
        self.model, self.optimizer, self.cfg, self.dp_group = model, optimizer, cfg, dp_group

    @torch.no_grad()
    def compute_log_prob(self, rollouts):
        batches = prepare_dynamic_batch(rollouts, self.cfg.max_token_len, self.dp_group)
        for mb in batches:
            tokens, _, _ = collate(mb, self.cfg.pad)
            logp = token_logp(self.model, tokens)
            for i, r in enumerate(mb):
                r.old_logp = logp[i, :len(r.tokens) - 1]

    def update_policy(self, rollouts):
        total_tokens = torch.tensor(float(sum(len(r.tokens) - r.prompt_len for r in rollouts)))
        dist.all_reduce(total_tokens, group=self.dp_group)
        total_tokens /= dist.get_world_size(self.dp_group)
        batches = prepare_dynamic_batch(rollouts, self.cfg.max_token_len)
        stats = 0.0
        for mb in batches:
            tokens, mask, adv = collate(mb, self.cfg.pad)
            old = torch.zeros_like(mask)
            for i, r in enumerate(mb):
                old[i, :len(r.old_logp)] = r.old_logp
            ratio = ((token_logp(self.model, tokens) - old) * mask).exp()
            adv = adv.unsqueeze(1)
            clipped = ratio.clamp(1 - self.cfg.clip, 1 + self.cfg.clip)
            loss = (-torch.minimum(ratio * adv, clipped * adv) * mask).sum() / total_tokens
            loss.backward()
            stats += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return stats, norm.full_tensor().item(), len(batches)
