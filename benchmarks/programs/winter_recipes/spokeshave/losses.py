import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


def unwrap(net):
    return net.module if isinstance(net, DistributedDataParallel) else net


def judge(disc, *wavs):
    """Runs the critics once over all the given waveforms; returns (scores, feature maps)
    per critic and waveform."""
    out = unwrap(disc)(torch.cat(wavs))
    n = wavs[0].size(0)
    parts = []
    for k in range(len(wavs)):
        cut = slice(k * n, (k + 1) * n)
        parts.append([(score[cut], [f[cut] for f in feats]) for score, feats in out])
    return parts


def discriminator_loss(disc, real, fake):
    judged_real, judged_fake = judge(disc, real, fake.detach())
    return sum(((1 - r) ** 2).mean() + (f ** 2).mean() for (r, _), (f, _) in zip(judged_real, judged_fake))


def generator_loss(disc, real, fake):
    judged_real, judged_fake = judge(disc, real, fake)
    adv = sum(((1 - s) ** 2).mean() for s, _ in judged_fake)
    fm = sum(
        F.l1_loss(b, a.detach())
        for (_, fr), (_, ff) in zip(judged_real, judged_fake)
        for a, b in zip(fr, ff)
    )
    return adv, fm


def spectral_l1(real, fake, n_fft=128):
    win = torch.hann_window(n_fft)
    spec = lambda w: torch.stft(w.squeeze(1), n_fft, n_fft // 4, window=win, return_complex=True).abs().clamp(min=1e-5).log()
    return F.l1_loss(spec(fake), spec(real))
