import torch
from torch.utils.data import Dataset


class PairedCaptions(Dataset):
    """Image/caption pairs rendered from a shared latent, in the spirit of a small CC3M subset."""

    def __init__(self, num_pairs, latent=24, vocab=512, length=12, seed=7):
        g = torch.Generator().manual_seed(seed)
        world = torch.Generator().manual_seed(99)
        z = torch.randn(num_pairs, latent, generator=g)
        render = torch.randn(latent, 3 * 16 * 16, generator=world) / latent ** 0.5
        noise = torch.randn(num_pairs, 3 * 16 * 16, generator=g)
        self.images = (z @ render + 0.4 * noise).view(num_pairs, 3, 16, 16)
        phrase = torch.randn(length, latent, vocab, generator=world)
        logits = torch.einsum("nd,ldv->nlv", z, phrase)
        self.captions = logits.argmax(-1)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.images[i], self.captions[i]
