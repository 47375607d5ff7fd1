import torch
import torch.nn as nn
import torch.nn.functional as F


class Policy(nn.Module):
    """Small causal transformer over digits; generation re-encodes the sequence at every token."""

    def __init__(self, vocab=16, dim=64, layers=2, heads=4, max_len=24):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Embedding(max_len, dim)
        layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        t = ids.size(1)
        mask = nn.Transformer.generate_square_subsequent_mask(t)
        x = self.tok(ids) + self.pos(torch.arange(t))
        return self.head(self.body(x, mask=mask, is_causal=True))

    @torch.no_grad()
    def generate(self, prompts, new_tokens, temperature=1.0):
        ids = prompts
        for _ in range(new_tokens):
            logits = self(ids)[:, -1] / temperature
            ids = torch.cat([ids, torch.multinomial(logits.softmax(-1), 1)], dim=1)
        return ids


def completion_logps(model, ids, prompt_len):
    logits = model(ids[:, :-1])[:, prompt_len - 1:]
    return torch.gather(F.log_softmax(logits, -1), 2, ids[:, prompt_len:].unsqueeze(-1)).squeeze(-1)
