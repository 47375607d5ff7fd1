import argparse
import os
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class Mixer(nn.Module):
    def __init__(self, vocab, span, dim, depth, out):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(depth))
        self.token = nn.ModuleList(nn.Linear(span, span) for _ in range(depth))
        self.chan = nn.ModuleList(nn.Linear(dim, dim) for _ in range(depth))
        self.head = nn.Linear(dim, out)

    def forward(self, t):
        x = self.emb(t)
        for n, tok, ch in zip(self.norms, self.token, self.chan):
            h = n(x)
            x = x + F.gelu(ch(tok(h.transpose(1, 2)).transpose(1, 2)))
        return self.head(x.mean(1))


def param_groups(net, wd):
    """Weight decay for matrices only, as a set difference of names."""
    params = dict(net.named_parameters())
    every = set(params)
    plain = {f"{m}.{n}" if m else n for m, mod in net.named_modules() for n, _ in mod.named_parameters(recurse=False)
             if n == "bias" or isinstance(mod, (nn.LayerNorm, nn.Embedding))}
    names = {"decay": every - plain, "plain": plain}
    return [dict(params=[params[n] for n in v], names=list(v), weight_decay=wd if k == "decay" else 0.0)
            for k, v in names.items()]


def export(opt):
    out = {}
    for g in opt.param_groups:
        for n, p in zip(g["names"], g["params"]):
            out[n] = {k: v.clone() for k, v in opt.state[p].items()}
    return out


def restore(opt, saved):
    for g in opt.param_groups:
        for n, p in zip(g["names"], g["params"]):
            opt.state[p] = {k: v.clone() for k, v in saved[n].items()}


def setup(args):
    torch.manual_seed(15)
    model = DDP(Mixer(60, 12, args.dim, 3, 5))
    return model, torch.optim.AdamW(param_groups(model.module, args.wd), lr=args.lr)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--dim", type=int, default=64)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--wd", type=float, default=0.05)
    p.add_argument("--steps", type=int, default=90)
    args = p.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    box = [tempfile.mkdtemp(prefix="mixer-") if rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    path = os.path.join(box[0], "mid.pt")
    gen = torch.Generator().manual_seed(70 + rank)
    key = torch.randn(60, 5, generator=torch.Generator().manual_seed(3))
    model, opt = setup(args)
    for step in range(1, args.steps + 1):
        t = torch.randint(60, (args.batch, 12), generator=gen)
        y = (key[t].sum(1) + key[t[:, 0]]).argmax(1)
        loss = F.cross_entropy(model(t), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if step % 15 == 0 and rank == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
        if step == args.steps // 2:
            if rank == 0:
                torch.save(dict(net=model.module.state_dict(), opt=export(opt)), path)
            dist.barrier()
            model, opt = setup(args)
            ck = torch.load(path, weights_only=True)
            model.module.load_state_dict(ck["net"])
            restore(opt, ck["opt"])
    dist.barrier()
    if rank == 0:
        shutil.rmtree(box[0])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
