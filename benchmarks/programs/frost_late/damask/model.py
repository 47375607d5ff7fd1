from torch import nn


def block(cin, cout, stride):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1, bias=True), nn.BatchNorm2d(cout), nn.ReLU())


class SmallNet(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.stem = block(3, 8, 1)
        self.body = nn.Sequential(block(8, 16, 2), block(16, 16, 2))
        self.head = nn.Linear(16, classes)

    def freeze_stem(self, frozen):
        self.stem.requires_grad_(not frozen)
        self.stem_frozen = frozen
        return self

    def train(self, mode=True):
        super().train(mode)
        if getattr(self, "stem_frozen", False):
            self.stem.eval()
        return self

    def forward(self, x):
        return self.head(self.body(self.stem(x)).mean((2, 3)))
