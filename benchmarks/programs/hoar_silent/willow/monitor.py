import torch


class ProbeMonitor:
    """Follows the loss on a fixed probe set while training goes on (first rank only)."""

    def __init__(self, net, probe, target, criterion, window=20):
        self.net, self.probe, self.target = net, probe, target
        self.criterion = criterion
        self.window = window
        self.history = []

    @torch.no_grad()
    def update(self):
        was_training = self.net.training
        self.net.eval()
        self.history.append(self.criterion(self.net(self.probe), self.target))
        self.net.train(was_training)

    def summary(self):
        last = torch.stack(self.history[-self.window:])
        return {"probe": last.mean().item(), "best": torch.stack(self.history).min().item()}
