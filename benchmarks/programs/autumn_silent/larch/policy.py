import torch
import torch.nn as nn
import torch.nn.functional as F


class GRUPolicy(nn.Module):
    """Small autoregressive policy over a toy vocabulary."""

    def __init__(self, vocab_size=20, hidden=96):
        super().__init__()
        self.vocab_size = vocab_size
        self.embed = nn.Embedding(vocab_size, hidden)
        self.rnn = nn.GRU(hidden, hidden, num_layers=1, batch_first=True)
        self.head = nn.Linear(hidden, vocab_size)

    def forward(self, tokens, prompt_len):
        hidden, _ = self.rnn(self.embed(tokens[:, :-1]))
        logits = self.head(hidden)[:, prompt_len - 1:]
        logp = F.log_softmax(logits, dim=-1)
        return logp.gather(-1, tokens[:, prompt_len:].unsqueeze(-1)).squeeze(-1)

    @torch.no_grad()
    def generate(self, prompts, max_new_tokens, temperature=1.0, generator=None):
        hidden, state = self.rnn(self.embed(prompts))
        out = [prompts]
        last = hidden[:, -1]
        for _ in range(max_new_tokens):
            probs = F.softmax(self.head(last) / temperature, dim=-1)
            nxt = torch.multinomial(probs, 1, generator=generator)
            out.append(nxt)
            step, state = self.rnn(self.embed(nxt), state)
            last = step[:, -1]
        return torch.cat(out, dim=1)
