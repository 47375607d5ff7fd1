import argparse
import json
import logging
import math
import time
import urllib.request

import torch
import torch.distributed as dist
from torch import nn

from judge import JudgeServer

log = logging.getLogger("han")


class Policy(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.emb = nn.Embedding(vocab + 1, dim)
        self.cell = nn.GRUCell(dim, dim)
        self.out = nn.Linear(dim, vocab)
        self.vocab = vocab

    def roll(self, prompts, length, g):
        h = torch.zeros(len(prompts), self.cell.hidden_size)
        tok, logps, ids = prompts, [], []
        for _ in range(length):
            h = self.cell(self.emb(tok), h)
            logp = self.out(h).log_softmax(-1)
            tok = torch.multinomial(logp.detach().exp(), 1, generator=g).squeeze(1)
            logps.append(logp.gather(1, tok[:, None]).squeeze(1))
            ids.append(tok)
        return torch.stack(ids, 1), torch.stack(logps, 1).sum(1)


class JudgeClient:
    def __init__(self, port):
        self.url = f"http://127.0.0.1:{port}/score"
        self.opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def wait_ready(self, poll=0.25):
        began = time.monotonic()
        while True:
            with self.opener.open(self.url.replace("/score", "/health")) as r:
                if json.load(r)["ready"]:
                    return time.monotonic() - began
            time.sleep(poll)

    def score(self, rows):
        req = urllib.request.Request(self.url, json.dumps({"rows": rows}).encode())
        with self.opener.open(req) as r:
            return json.load(r)["scores"]


def share_port(server):
    box = [server.port if server else None]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--vocab", type=int, default=16)
    ap.add_argument("--dim", type=int, default=32)
    ap.add_argument("--length", type=int, default=8)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--updates", type=int, default=60)
    ap.add_argument("--lr", type=float, default=5e-3)
    ap.add_argument("--warm-seconds", type=float, default=12.0)
    ap.add_argument("--seed", type=int, default=88)
    args = ap.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s rollout{rank} %(message)s")

    server = JudgeServer(args.vocab, args.warm_seconds).start() if rank == 0 else None
    client = JudgeClient(share_port(server))
    log.info("judge ready after %.1fs", client.wait_ready())

    torch.manual_seed(args.seed)
    policy = Policy(args.vocab, args.dim)
    opt = torch.optim.Adam(policy.parameters(), lr=args.lr)
    g = torch.Generator().manual_seed(args.seed * 10 + rank)
    for update in range(1, args.updates + 1):
        prompts = torch.randint(0, args.vocab, (args.batch,), generator=g)
        ids, logp = policy.roll(prompts, args.length, g)
        scores = torch.tensor(client.score(ids.tolist()))
        moments = torch.stack([scores.sum(), (scores**2).sum(), torch.tensor(float(len(scores)))])
        dist.all_reduce(moments)
        mean = moments[0] / moments[2]
        std = math.sqrt(max(float(moments[1] / moments[2] - mean**2), 1e-6))
        loss = -((scores - mean) / std * logp).mean()
        opt.zero_grad()
        loss.backward()
        for p in policy.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        opt.step()
        if rank == 0 and update % 15 == 0:
            log.info("update %d mean score %.3f", update, mean.item())

    notes = [None] * world if rank == 0 else None
    dist.gather_object({"rank": rank, "weights": sum(float(p.detach().double().sum()) for p in policy.parameters())}, notes)
    if rank == 0:
        for n in notes:
            log.info("%s", n)
    dist.barrier()
    dist.destroy_process_group()
    if server is not None:
        server.stop()
    else:
        time.sleep(1.5 * rank)
    log.info("leaving")


if __name__ == "__main__":
    main()
