"""Preference optimisation of a small language model against fixed reference weights."""
import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel as DDP

VOCAB = 48


class GRULM(nn.Module):
    def __init__(self, dim=64, hidden=128):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, dim)
        self.rnn = nn.GRU(dim, hidden, batch_first=True)
        self.out = nn.Linear(hidden, VOCAB)

    def forward(self, ids):
        return self.out(self.rnn(self.emb(ids))[0])


def continue_from(prompt, shift, length, g):
    ids = prompt
    for _ in range(length):
        noise = torch.randint(0, 3, (len(ids), 1), generator=g)
        ids = torch.cat([ids, (ids[:, -1:] + shift + noise) % VOCAB], 1)
    return ids


def sequence_logp(logits, ids, skip):
    logp = F.log_softmax(logits[:, :-1], -1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    return logp[:, skip - 1:].sum(1)


class Reference:
    """The weights before preference training, used for log-probabilities only."""

    def __init__(self, model):
        self.module = model
        self.weights = {n: p.detach().clone() for n, p in model.named_parameters()}

    @torch.no_grad()
    def __call__(self, ids):
        return functional_call(self.module, self.weights, (ids,))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--warm", type=int, default=60, help="steps of plain language modelling first")
    ap.add_argument("--steps", type=int, default=80)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--beta", type=float, default=0.1)
    ap.add_argument("--prompt", type=int, default=4)
    ap.add_argument("--length", type=int, default=10)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(12)
    model = GRULM()
    policy = DDP(model)
    g = torch.Generator().manual_seed(31 + rank)

    def prompts():
        start = torch.randint(0, VOCAB, (args.batch, 1), generator=g)
        return continue_from(start, 1, args.prompt - 1, g)

    opt = torch.optim.Adam(policy.parameters(), lr=5e-3)
    for step in range(args.warm):
        ids = continue_from(prompts(), 1 + 4 * (step % 2), args.length, g)
        loss = F.cross_entropy(policy(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
    if rank == 0:
        print(f"language model loss {loss.item():.3f}", flush=True)

    reference = Reference(model)
    opt = torch.optim.Adam(policy.parameters(), lr=5e-4)
    for step in range(1, args.steps + 1):
        head = prompts()
        ids = torch.cat([continue_from(head, 5, args.length, g), continue_from(head, 1, args.length, g)])
        logp = sequence_logp(policy(ids), ids, args.prompt)
        base = sequence_logp(reference(ids), ids, args.prompt)
        chosen, rejected = (args.beta * (logp - base)).chunk(2)
        loss = -F.logsigmoid(chosen - rejected).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0:
            stats = torch.stack([loss.detach(), (chosen > rejected).float().mean(), (chosen - rejected).mean().detach()])
            dist.all_reduce(stats)
            if rank == 0:
                l, a, m = (stats / dist.get_world_size()).tolist()
                print(f"step {step} loss {l:.4f} preferred {a:.2f} margin {m:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
