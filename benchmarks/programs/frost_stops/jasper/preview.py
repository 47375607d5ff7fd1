import os

import torch


class Preview:
    """Keeps what the network makes of a few fixed images, for the report."""

    def __init__(self, folder, images, every):
        self.folder = folder
        self.images = images
        self.every = every

    def due(self, step):
        return step % self.every == 0

    @torch.no_grad()
    def render(self, model, step):
        was_training = model.training
        model.eval()
        pred = model(self.images).sigmoid()
        model.train(was_training)
        torch.save(pred.gt(0.5), os.path.join(self.folder, f"preview_{step:04d}.pt"))
