import torch.nn as nn


class Tagger(nn.Module):
    def __init__(self, bins, classes, hidden=160):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(bins, hidden, 5, padding=2), nn.ReLU(),
            nn.Conv1d(hidden, hidden, 5, stride=2, padding=2), nn.ReLU(),
        )
        self.rnn = nn.GRU(hidden, hidden // 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x):
        h, _ = self.rnn(self.conv(x).transpose(1, 2))
        return self.head(h.mean(1))
