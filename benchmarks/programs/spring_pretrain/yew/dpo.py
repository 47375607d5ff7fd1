import torch
import torch.nn as nn
import torch.nn.functional as F


class TinyDecoder(nn.Module):
    def __init__(self, vocab, dim, heads, layers, max_len):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Embedding(max_len, dim)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, heads, 4 * dim, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab, bias=False)

    def forward(self, ids):
        t = ids.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(t)
        x = self.tok(ids) + self.pos.weight[:t]
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.head(self.norm(x))


def sequence_logp(model, ids, prompt):
    logp = model(ids[:, :-1])[:, prompt - 1:].log_softmax(-1)
    return logp.gather(-1, ids[:, prompt:].unsqueeze(-1)).squeeze(-1).sum(1)


def dpo_loss(policy, reference, good, bad, prompt, beta):
    pair = torch.stack([good, bad])
    chosen, rejected = sequence_logp(policy, pair, prompt)
    with torch.no_grad():
        ref_chosen, ref_rejected = sequence_logp(reference, pair, prompt)
    margin = (chosen - ref_chosen) - (rejected - ref_rejected)
    return -F.logsigmoid(beta * margin), (margin > 0).float()
