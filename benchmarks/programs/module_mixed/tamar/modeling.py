import torch
import torch.nn as nn
import torch.nn.functional as F


class CausalLM(nn.Module):
    def __init__(self, vocab, d=32):
        super().__init__()
        self.wte = nn.Embedding(vocab, d)
        self.rnn = nn.GRU(d, d, num_layers=2, batch_first=True)
        self.ln_f = nn.LayerNorm(d)

    def forward(self, input_ids, labels=None):
        h = self.ln_f(self.rnn(self.wte(input_ids))[0])
        logits = F.linear(h, self.wte.weight)
        if labels is None:
            return logits
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())

    def resize_token_embeddings(self, n):
        old = self.wte
        if n == old.num_embeddings:
            return old
        new = nn.Embedding(n, old.embedding_dim)
        keep = min(n, old.num_embeddings)
        with torch.no_grad():
            new.weight.normal_(0.0, 0.02)
            new.weight[:keep] = old.weight[:keep]
        self.wte = new
        return new


class Tokenizer:
    def __init__(self, words):
        self.vocab = {w: i for i, w in enumerate(words)}

    def add_special_tokens(self, tokens):
        for t in tokens:
            self.vocab.setdefault(t, len(self.vocab))

    def __len__(self):
        return len(self.vocab)

    def __call__(self, text):
        return [self.vocab[w] for w in text.split()]
