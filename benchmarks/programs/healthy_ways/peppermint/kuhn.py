"""Kuhn poker: three cards, two players, one bet."""
import itertools

CARDS = 3
# public histories at which somebody has to act: '', 'b' bet, 'p' pass
NODES = ["", "p", "b", "pb"]
DEALS = list(itertools.permutations(range(CARDS), 2))


def terminal(h, cards):
    """Value for the first player, or None while the game goes on."""
    higher = 1 if cards[0] > cards[1] else -1
    if h == "pp":
        return higher
    if h == "bp":
        return 1
    if h == "pbp":
        return -1
    if h in ("bb", "pbb"):
        return 2 * higher
    return None


def info(card, h):
    return NODES.index(h) * CARDS + card


def value(cards, h, first, second):
    """Expected value for the first player when both follow tables of betting chances."""
    t = terminal(h, cards)
    if t is not None:
        return t
    who = len(h) % 2
    p = (first if who == 0 else second)[info(cards[who], h)]
    return p * value(cards, h + "b", first, second) + (1 - p) * value(cards, h + "p", first, second)


def match(a, b):
    """Mean value for a against b over both seats and all deals."""
    total = 0.0
    for cards in DEALS:
        total += value(cards, "", a, b) - value(cards, "", b, a)
    return total / (2 * len(DEALS))


def best_reply(table, seat):
    """Value that a perfect opponent in the given seat gets against the table."""
    own = [info(c, n) for n in NODES if len(n) % 2 == seat for c in range(CARDS)]
    best = -9.0
    for bits in itertools.product((0.0, 1.0), repeat=len(own)):
        reply = [0.5] * (len(NODES) * CARDS)
        for k, b in zip(own, bits):
            reply[k] = b
        v = 0.0
        for cards in DEALS:
            v += value(cards, "", reply, table) if seat == 0 else -value(cards, "", table, reply)
        best = max(best, v / len(DEALS))
    return best


def exploitability(table):
    return (best_reply(table, 0) + best_reply(table, 1)) / 2
