import torch
from torch.utils.data import Dataset


class Scenes(Dataset):
    """24x24 canvases with one to five coloured rectangles."""
    num_classes = 3

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.items = []
        for _ in range(n):
            k = int(torch.randint(1, 6, (1,), generator=g))
            img = 0.1 * torch.randn(3, 24, 24, generator=g)
            labels = torch.randint(0, 3, (k,), generator=g)
            boxes = []
            for c in labels.tolist():
                w, h = (torch.randint(4, 10, (2,), generator=g)).tolist()
                x, y = int(torch.randint(0, 24 - w, (1,), generator=g)), int(torch.randint(0, 24 - h, (1,), generator=g))
                img[c, y:y + h, x:x + w] += 1.0
                boxes.append([(x + w / 2) / 24, (y + h / 2) / 24, w / 24, h / 24])
            self.items.append((img, {"labels": labels, "boxes": torch.tensor(boxes)}))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate_fn(batch):
    return torch.stack([b[0] for b in batch]), [b[1] for b in batch]
