"""Privacy accounting for the Poisson-subsampled Gaussian mechanism (integer orders)."""
import math


def _log_comb(n, k):
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def renyi(q, sigma, alpha):
    terms = [_log_comb(alpha, k) + (alpha - k) * math.log(1 - q) + k * math.log(q) + k * (k - 1) / (2 * sigma ** 2)
             for k in range(alpha + 1)]
    top = max(terms)
    return (top + math.log(sum(math.exp(t - top) for t in terms))) / (alpha - 1)


def epsilon(q, sigma, steps, delta):
    best = float("inf")
    for alpha in range(2, 128):
        eps = steps * renyi(q, sigma, alpha) + math.log(1 / delta) / (alpha - 1)
        best = min(best, eps)
    return best
