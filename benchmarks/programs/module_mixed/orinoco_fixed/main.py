import torch
import torch.distributed as dist
from torch.utils.data import Dataset

from curriculum import CurriculumTrainer
from model import SeriesLM


class SeriesText(Dataset):
    def __init__(self, stage, n=256):
        gen = torch.Generator().manual_seed(len(stage))
        self.freq = torch.randint(1, 8, (n,), generator=gen)
        self.phase = torch.rand(n, generator=gen)
        self.stage = stage

    def __len__(self):
        return len(self.freq)

    def __getitem__(self, i):
        t = torch.linspace(0, 1, 64)
        series = torch.sin(6.283 * (self.freq[i] * t + self.phase[i]))
        if self.stage == "captioning":
            ids = (self.freq[i] * torch.arange(1, 9)) % 39 + 1
        else:
            ids = torch.stack([self.freq[i], self.freq[i] + 10, self.freq[i] + 20, torch.tensor(0)])
        return {"series": series, "ids": ids}


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(77)
    CurriculumTrainer(SeriesLM(), SeriesText).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
