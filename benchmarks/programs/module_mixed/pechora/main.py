import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from schedule import OneForwardOneBackward

VOCAB, D, SEQ, MICRO, BATCH, STEPS = 50, 32, 20, 4, 16, 14


class Front(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, D)
        self.rnn = nn.GRU(D, D, batch_first=True)

    def forward(self, ids):
        return self.rnn(self.emb(ids))[0]


class Back(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(D, D, batch_first=True)
        self.out = nn.Linear(D, VOCAB)

    def forward(self, h):
        return self.out(self.rnn(h)[0])


def ce(logits, ids):
    return F.cross_entropy(logits.transpose(1, 2), ids)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    stage = Front() if rank == 0 else Back()
    opt = torch.optim.AdamW(stage.parameters(), lr=5e-3)
    sched = OneForwardOneBackward(stage, rank, MICRO, (BATCH // MICRO, SEQ, D))
    gen = torch.Generator().manual_seed(3)
    for step in range(STEPS):
        start = torch.randint(0, VOCAB, (BATCH, 1), generator=gen)
        ids = (start + 3 * torch.arange(SEQ + 1)) % VOCAB
        x, y = ids[:, :-1].chunk(MICRO), ids[:, 1:].chunk(MICRO)
        opt.zero_grad()
        loss = sched.run(x, y, ce)
        nn.utils.clip_grad_value_(stage.parameters(), 0.5)
        opt.step()
        if rank == 1 and step % 4 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
