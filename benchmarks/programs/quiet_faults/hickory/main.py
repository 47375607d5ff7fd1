"""Learns to reverse digit strings, growing the strings during training."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from curriculum import Curriculum

HP = dict(per_length=48, lengths=(4, 6, 8, 10, 12, 14, 16, 18), limits=(8, 12, 18, 18), batch=16, lr=4e-3, seed=23)
PAD = 10


class Reversals(Dataset):
    def __init__(self, per_length, lengths, seed):
        g = torch.Generator().manual_seed(seed)
        self.lengths = [n for n in lengths for _ in range(per_length)]
        self.strings = [torch.randint(10, (n,), generator=g) for n in self.lengths]

    def __len__(self):
        return len(self.strings)

    def __getitem__(self, i):
        s = self.strings[i]
        return s, s.flip(0)


def collate(items):
    src = pad_sequence([a for a, _ in items], batch_first=True, padding_value=PAD)
    dst = pad_sequence([b for _, b in items], batch_first=True, padding_value=-100)
    return src, dst


class Reverser(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.embed = nn.Embedding(11, width, padding_idx=PAD)
        self.rnn = nn.GRU(width, width, bidirectional=True, batch_first=True)
        self.place = nn.Embedding(24, width * 2)
        self.mix = nn.MultiheadAttention(width * 2, 4, batch_first=True)
        self.out = nn.Linear(width * 2, 10)

    def forward(self, src):
        h, _ = self.rnn(self.embed(src))
        pad = src == PAD
        size = (~pad).sum(1, keepdim=True)
        where = (size - 1 - torch.arange(src.size(1))).clamp(min=0)
        h = h + self.place(torch.arange(src.size(1)))
        q = self.place(where)
        a, _ = self.mix(q, h, h, key_padding_mask=pad, need_weights=False)
        return self.out(a)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    data = Reversals(HP["per_length"], HP["lengths"], seed=1)
    val = Reversals(6, HP["lengths"], seed=2)
    sampler = Curriculum(data.lengths, HP["limits"], HP["batch"] // world, rank, world, HP["seed"])
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=collate)
    torch.manual_seed(HP["seed"])
    net = Reverser()
    model = DDP(net)
    opt = torch.optim.Adam(net.parameters(), lr=HP["lr"])
    sched = torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.8)
    for epoch in range(len(HP["limits"])):
        sampler.set_epoch(epoch)
        sums = torch.zeros(2)
        for src, dst in loader:
            logits = model(src)
            tokens = (dst >= 0).sum().float()
            everywhere = tokens.clone()
            dist.all_reduce(everywhere)
            summed = F.cross_entropy(logits.flatten(0, 1), dst.flatten(), reduction="sum")
            loss = summed * world / everywhere
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            sums += torch.stack([summed.detach(), tokens])
        sched.step()
        dist.all_reduce(sums)
        with torch.no_grad():
            src, dst = collate([val[i] for i in range(rank, len(val), world)])
            keep = dst >= 0
            score = torch.stack([(net(src).argmax(-1)[keep] == dst[keep]).sum().float(), keep.sum().float()])
        dist.all_reduce(score)
        if rank == 0:
            print(f"epoch {epoch} limit {HP['limits'][epoch]} batches {len(sampler)} loss {sums[0] / sums[1]:.4f} "
                  f"token acc {score[0] / score[1]:.3f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
