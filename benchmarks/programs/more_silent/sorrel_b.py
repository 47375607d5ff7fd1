"""Sentence classification with accelerate and gradient accumulation."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset


class Sentences(Dataset):
    """Synthetic 'sentences': the class is decided by which marker words occur more often."""

    def __init__(self, count=768, length=20, vocab=100, classes=4):
        g = torch.Generator().manual_seed(17)
        self.label = torch.randint(classes, (count,), generator=g)
        self.words = torch.randint(classes * 3, vocab, (count, length), generator=g)
        for i in range(count):
            where = torch.randperm(length, generator=g)[:4]
            self.words[i, where] = self.label[i] * 3 + torch.randint(3, (4,), generator=g)

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        return {"words": self.words[i], "label": self.label[i]}


class Classifier(nn.Module):
    def __init__(self, vocab=100, width=48, classes=4):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.layer = nn.TransformerEncoderLayer(width, 4, 96, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, words):
        return self.head(self.layer(self.embed(words)).mean(1))


class TrainLoop:
    def __init__(self, accelerator, max_norm=1.0, epochs=5):
        self.accelerator, self.max_norm, self.epochs = accelerator, max_norm, epochs
        net = Classifier()
        optim = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9)
        loader = DataLoader(Sentences(), batch_size=12, shuffle=True, drop_last=True)
        self.net, self.optim, self.loader = accelerator.prepare(net, optim, loader)

    def fit(self):
        for epoch in range(self.epochs):
            losses = []
            for batch in self.loader:
                with self.accelerator.accumulate(self.net):
                    loss = F.cross_entropy(self.net(batch["words"]), batch["label"])
                    self.accelerator.backward(loss)
                    if self.accelerator.sync_gradients:
                        self.accelerator.clip_grad_norm_(self.net.parameters(), self.max_norm)
                    self.optim.step()
                    self.optim.zero_grad()
                losses.append(loss.detach())
            mean = self.accelerator.reduce(torch.stack(losses).mean(), "mean")
            self.accelerator.print(f"epoch {epoch}: {mean.item():.4f}")


if __name__ == "__main__":
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    set_seed(21)
    TrainLoop(accelerator).fit()
    accelerator.end_training()
