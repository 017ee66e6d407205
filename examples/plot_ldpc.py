"""
Decoding an error-correcting code
=================================

A low-density parity-check code (Gallager, 1962) protects bits by sending more of them than needed,
such that many small groups have even parity. Every group is a factor, and loopy belief propagation
is the decoder. All words received at one level of noise are one batch, decoded by one call.
"""

import math

import matplotlib.pyplot as plt
import torch

import rdpgraph as rg

# %%
# Gallager's construction: 240 bits, and three times over a random division of them into groups of
# six. So every bit stands in three checks. Two checks that share two bits make a short cycle,
# which harms the messages, so bits are exchanged between groups until few or no such pairs remain.

length, per_bit, per_check = 240, 3, 6
generator = torch.Generator().manual_seed(0)


def matrix_of(checks):
    """The parity-check matrix: which bits stand in which check."""
    return torch.zeros(len(checks), length).scatter_(1, checks, 1.0)


def short_cycles(checks):
    """Pairs of checks that share two bits or more, (pairs, 2)."""
    matrix = matrix_of(checks)
    return ((matrix @ matrix.T).triu(1) > 1).nonzero()


layers = [torch.randperm(length, generator=generator) for _ in range(per_bit)]
checks = torch.cat(layers).reshape(-1, per_check)
for _ in range(5000):
    pairs = short_cycles(checks)
    if not len(pairs):
        break
    first, second = pairs[0]
    slot = torch.isin(checks[second], checks[first]).nonzero()[0, 0]
    flat = checks.flatten().clone()
    here = second * per_check + slot
    layer = torch.div(here, length, rounding_mode="floor")
    there = layer * length + torch.randint(length, (), generator=generator)
    flat[torch.stack([here, there])] = flat[torch.stack([there, here])]
    exchanged = flat.reshape(-1, per_check)
    if len(short_cycles(exchanged)) <= len(pairs):
        checks = exchanged
print(f"{len(checks)} checks; pairs of checks that share two bits: {len(short_cycles(checks))}")

# %%
# What can be sent are the words that satisfy every check. Elimination modulo two brings the matrix
# into a form in which some bits are free and each of the others is a parity of free ones.

reduced, fixed = matrix_of(checks).bool(), []
for bit in range(length):
    candidates = reduced[len(fixed) :, bit].nonzero()
    if len(candidates):
        row, pivot = len(fixed), len(fixed) + int(candidates[0])
        reduced[[row, pivot]] = reduced[[pivot, row]]
        others = reduced[:, bit].clone()
        others[row] = False
        reduced[others] ^= reduced[row]
        fixed.append(bit)
free = [bit for bit in range(length) if bit not in set(fixed)]
rate = len(free) / length
print(f"{len(free)} of {length} bits carry the message: rate {rate:.3f}")


def encode(messages):
    """Messages (n, free bits) as words (n, length)."""
    words = torch.zeros(len(messages), length, dtype=torch.long)
    words[:, free] = messages
    parity = reduced[: len(fixed)][:, free].double()
    words[:, fixed] = (messages.double() @ parity.T).long() % 2
    return words


def unsatisfied(words):
    """Number of checks that each word violates."""
    return (words[:, checks].sum(-1) % 2).sum(-1)


# %%
# The decoder's graph: one block holds all parity checks, and a unary table with a batch dim in
# front, one row per received word, holds what the channel says of each bit. ``Xor`` is a potential
# that answers messages in time linear in its size, so wide checks are no harder to write or to run.

bits = rg.VariableArray("bit", (length,), 2)
parity_checks = rg.FactorBlock(
    tuple(bits[checks[:, slot]] for slot in range(per_check)), rg.Xor(per_check, parity=0)
)


def decode(log_odds):
    """The posterior of a batch of words, given (n, length) log P(bit = 0) / P(bit = 1)."""
    channel = rg.Table(torch.stack([log_odds / 2, -log_odds / 2], dim=-1))
    graph = rg.FactorGraph([rg.FactorBlock((bits,), channel), parity_checks])
    return rg.infer(graph, scheduler=rg.Loopy(sweeps=25, tolerance=1e-3))


# %%
# The channel sends 0 as +1 and 1 as -1, and adds Gaussian noise. The usual measure of noise is the
# energy spent on a bit of the message over the noise's density, in decibels. A code of rate R
# spends R of that energy on every bit sent, so each of its bits arrives noisier than one sent
# without a code, which is the fair comparison. A word is right if every bit is; one that satisfies
# all checks and is wrong is an error that the receiver cannot see.

words_sent = 100
decibels = [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
uncoded, coded, all_satisfied = [], [], []
print("dB   bits wrong: uncoded  received  decoded   words: all checks met  of these wrong")
for level in decibels:
    ratio = 10 ** (level / 10)
    messages = torch.randint(2, (words_sent, len(free)), generator=generator)
    sent = encode(messages)
    deviation = 1 / math.sqrt(2 * rate * ratio)
    noise = deviation * torch.randn(words_sent, length, generator=generator)
    received = (1 - 2 * sent) + noise

    posterior = decode(2 * received / deviation**2)
    decoded = (posterior.marginal(bits)[..., 1] > 0.5).long()

    valid = unsatisfied(decoded) == 0
    unseen = valid & (decoded != sent).any(1)
    uncoded.append(0.5 * math.erfc(math.sqrt(ratio)))
    coded.append((decoded != sent).double().mean().item())
    all_satisfied.append(valid.double().mean().item())
    raw = ((received < 0) != (sent == 1)).double().mean()
    print(
        f"{level:<17} {uncoded[-1]:.5f}   {raw:.5f}  {coded[-1]:.5f}"
        f"   {int(valid.sum()):14d} of {words_sent}  {int(unseen.sum()):14d}"
    )

# %%
# The status is that of a batch: it has converged only if every word has. At the last level of
# noise these were the sweeps, and how far the worst word's messages still moved. Words whose
# messages do not settle are no failure of the batch: each word's own checks say whether to trust
# it. Where few words are wrong, a point of the left figure rests on those few and is rough.

status = posterior.status
print(f"converged: {status.converged}, sweeps: {status.iterations}")
print(f"last change of a message: {status.residual:.1e}")
print(f"words with an unsatisfied check: {int((unsatisfied(decoded) > 0).sum())} of {words_sent}")

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
left.semilogy(decibels, uncoded, "--", color="black", label="uncoded")
shown = [(level, share) for level, share in zip(decibels, coded, strict=True) if share > 0]
left.semilogy(*zip(*shown, strict=True), "o-", label=f"code of {length} bits, decoded")
left.set_xlabel("energy per message bit over noise density (dB)")
left.set_ylabel("share of bits that are wrong")
left.grid(which="both", alpha=0.3)
left.legend()
right.plot(decibels, all_satisfied, "o-")
right.set_xlabel("energy per message bit over noise density (dB)")
right.set_ylabel("share of words that satisfy every check")
right.set_ylim(0, 1.02)
right.grid(alpha=0.3)
plt.show()
