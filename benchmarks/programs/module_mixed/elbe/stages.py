import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class Embedder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.emb = nn.Embedding(cfg.vocab, cfg.d)
        self.rnn = nn.GRU(cfg.d, cfg.d, batch_first=True)

    def forward(self, ids):
        return self.rnn(self.emb(ids))[0]


class Decoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.rnn = nn.GRU(cfg.d, cfg.d, batch_first=True)
        self.out = nn.Linear(cfg.d, cfg.vocab)

    def forward(self, h):
        return self.out(self.rnn(h)[0])


class FirstStage:
    def __init__(self, cfg, peer):
        self.cfg, self.peer = cfg, peer
        self.module = Embedder(cfg)

    def run(self, ids):
        for micro in ids.split(self.cfg.micro):
            out = self.module(micro)
            dist.send(out.detach().contiguous(), self.peer)
            grad = torch.empty(out.shape)
            dist.recv(grad, self.peer)
            out.backward(grad / (self.cfg.batch // self.cfg.micro))
        return None


class LastStage:
    def __init__(self, cfg, peer):
        self.cfg, self.peer = cfg, peer
        self.module = Decoder(cfg)

    def run(self, targets):
        total = 0.0
        for micro in targets.split(self.cfg.micro):
            h = torch.empty(len(micro), self.cfg.seq, self.cfg.d)
            dist.recv(h, self.peer)
            h.requires_grad_(True)
            loss = F.cross_entropy(self.module(h).transpose(1, 2), micro)
            loss.backward()
            dist.send(h.grad.contiguous(), self.peer)
            total += loss.item()
        return total * self.cfg.micro / len(targets)
