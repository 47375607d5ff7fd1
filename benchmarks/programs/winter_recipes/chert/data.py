import bisect
from collections import defaultdict
from itertools import chain, repeat

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler

SHAPES = [(48, 80), (56, 72), (64, 64), (72, 56), (80, 48)]


class ToyCoco(Dataset):
    """Rectangles of a class-dependent colour on noise, in images of different shapes."""

    def __init__(self, n=384, classes=4, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.classes = classes
        self.shape_id = torch.randint(len(SHAPES), (n,), generator=g).tolist()
        self.seeds = torch.randint(1 << 30, (n,), generator=g).tolist()

    def __len__(self):
        return len(self.seeds)

    def aspect_ratio(self, i):
        h, w = SHAPES[self.shape_id[i]]
        return w / h

    def __getitem__(self, i):
        h, w = SHAPES[self.shape_id[i]]
        g = torch.Generator().manual_seed(self.seeds[i])
        img = 0.2 * torch.randn(3, h, w, generator=g)
        boxes, labels = [], []
        for _ in range(int(torch.randint(1, 5, (1,), generator=g))):
            bw, bh = (int(v) for v in torch.randint(10, 24, (2,), generator=g))
            x, y = int(torch.randint(w - bw, (1,), generator=g)), int(torch.randint(h - bh, (1,), generator=g))
            c = int(torch.randint(self.classes, (1,), generator=g))
            img[c % 3, y : y + bh, x : x + bw] += 1.0 if c < 3 else -1.0
            boxes.append([x, y, x + bw, y + bh])
            labels.append(c)
        return img, {"boxes": torch.tensor(boxes).float(), "labels": torch.tensor(labels), "image_id": i}


class GroupedBatchSampler(BatchSampler):
    """Batches that only hold elements of the same group, as close as possible to the
    order of the wrapped sampler. Every process yields the same number of batches."""

    def __init__(self, sampler, group_ids, batch_size):
        self.sampler = sampler
        self.group_ids = group_ids
        self.batch_size = batch_size

    def __len__(self):
        return len(self.sampler) // self.batch_size

    def __iter__(self):
        buffers, seen = defaultdict(list), defaultdict(list)
        emitted = 0
        for idx in self.sampler:
            gid = self.group_ids[idx]
            buffers[gid].append(idx)
            seen[gid].append(idx)
            if len(buffers[gid]) == self.batch_size:
                yield buffers.pop(gid)
                emitted += 1
        for gid, left in sorted(buffers.items(), key=lambda kv: -len(kv[1])):
            if emitted >= len(self):
                return
            fill = chain.from_iterable(repeat(seen[gid]))
            while len(left) < self.batch_size:
                left.append(next(fill))
            yield left
            emitted += 1


def quantize(ratios, bins=(0.9, 1.1)):
    return [bisect.bisect_right(bins, r) for r in ratios]


def collate(batch):
    images, targets = zip(*batch)
    h, w = max(i.shape[1] for i in images), max(i.shape[2] for i in images)
    h, w = -(-h // 8) * 8, -(-w // 8) * 8
    out = torch.zeros(len(images), 3, h, w)
    for k, im in enumerate(images):
        out[k, :, : im.shape[1], : im.shape[2]] = im
    return out, list(targets)


def build_loader(dataset, batch_size, group_by_aspect=True, seed=0):
    sampler = DistributedSampler(dataset, shuffle=True, seed=seed)
    if group_by_aspect:
        groups = quantize(dataset.aspect_ratio(i) for i in range(len(dataset)))
        batches = GroupedBatchSampler(sampler, groups, batch_size)
        return DataLoader(dataset, batch_sampler=batches, collate_fn=collate)
    return DataLoader(dataset, batch_size, sampler=sampler, collate_fn=collate, drop_last=True)
