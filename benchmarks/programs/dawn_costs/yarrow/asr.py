"""Toy speech recogniser: strided convolution front end, GRU, CTC."""
import os
import random

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, DistributedSampler

MELS, PHONES = 20, 12


class ToyCorpus(Dataset):
    def __init__(self, count=720, seed=8):
        rng = random.Random(seed)
        g = torch.Generator().manual_seed(seed)
        self.prototypes = torch.randn(PHONES, MELS, generator=g)
        self.items = []
        for _ in range(count):
            text = [rng.randrange(1, PHONES) for _ in range(rng.randrange(3, 9))]
            frames_per_phone = 1 if rng.random() < 0.002 else rng.randrange(6, 11)
            idx = torch.tensor(text).repeat_interleave(frames_per_phone)
            audio = self.prototypes[idx] + 0.3 * torch.randn(len(idx), MELS, generator=g)
            self.items.append((audio, torch.tensor(text)))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(batch):
    audio = pad_sequence([a for a, _ in batch], batch_first=True)
    audio_len = torch.tensor([len(a) for a, _ in batch])
    text = torch.cat([t for _, t in batch])
    text_len = torch.tensor([len(t) for _, t in batch])
    return audio, audio_len, text, text_len


class Recogniser(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.conv = nn.Conv1d(MELS, hidden, 3, stride=2, padding=1)
        self.gru = nn.GRU(hidden, hidden, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * hidden, PHONES)

    def forward(self, audio):
        x = torch.relu(self.conv(audio.transpose(1, 2))).transpose(1, 2)
        return self.out(self.gru(x)[0]).log_softmax(-1)


def run_epoch(model, loader, opt, ctc):
    total, used, skipped = 0.0, 0, 0
    for audio, audio_len, text, text_len in loader:
        log_probs = model(audio).transpose(0, 1)
        loss = ctc(log_probs, text, (audio_len + 1) // 2, text_len)
        finite = torch.isfinite(loss).int()
        dist.all_reduce(finite, op=dist.ReduceOp.MIN)
        if not finite:
            skipped += 1
            continue
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        total, used = total + loss.item(), used + 1
        if used % 10 == 0 and dist.get_rank() == 0:
            print(f"    batch {used} ctc {total / used:.4f}", flush=True)
    return total / max(used, 1), skipped


def save(model, epoch, out="out"):
    os.makedirs(out, exist_ok=True)
    torch.save({"epoch": epoch, "model": model.module.state_dict()}, os.path.join(out, "asr.pt"))


def main():
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(4)
    corpus = ToyCorpus()
    sampler = DistributedSampler(corpus, seed=6)
    loader = DataLoader(corpus, batch_size=6, sampler=sampler, collate_fn=collate)
    model = DDP(Recogniser())
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    ctc = nn.CTCLoss()
    for epoch in range(4):
        sampler.set_epoch(epoch)
        mean, skipped = run_epoch(model, loader, opt, ctc)
        dist.barrier()
        print(f"[{rank}/{world}] epoch {epoch} ctc {mean:.4f} skipped {skipped}", flush=True)
        if rank == 0:
            save(model, epoch)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
