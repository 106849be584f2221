"""The losses of reinforcement learning: plain functions of tensors, apart from the loop that uses them.

Shapes: P problems with G samples each; B samples of at most L tokens, masked (B, L) bool where a token is the sample's
own. Means over tokens are over all of a batch, so that a long sample weighs more than a short one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparsegen.errors import SparsegenValueError


def leave_one_out(rewards: Tensor) -> Tensor:
    """rewards (P, G) minus the mean of the *other* samples of the problem, (P, G).

    A mean that holds the sample itself is a biased baseline: this is G / (G - 1) times what it would give.
    """
    group = rewards.shape[1]
    if group < 2:
        raise SparsegenValueError(f"groups of {group}; a sample is compared with the others of its group: at least 2")
    return (rewards - rewards.mean(1, keepdim=True)) * (group / (group - 1))


def batch_scaled(advantages: Tensor, least: float = 1e-4) -> Tensor:
    """Over their root mean square in the whole batch, any shape.

    Scaling each group by its own deviation instead would make the problems where nothing can be gained, and the
    differences are noise, weigh as much as the others.
    """
    return advantages / advantages.square().mean().sqrt().clamp_min(least)


def token_logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    """Log-probabilities (B, L) of tokens (B, L) under logits (B, L, V), at temperature 1, nothing masked."""
    flat = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten(), reduction="none")
    return -flat.view(tokens.shape)


def entropy(logits: Tensor) -> Tensor:
    """Of the next token, in nats, (B, L)."""
    logprobs = torch.log_softmax(logits, -1)
    return -(logprobs.exp() * logprobs).sum(-1)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of (B, L) values where the mask is set; 0 where it is set nowhere."""
    return (values * mask).sum() / mask.sum().clamp_min(1)


def clipped(new: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, clip: float) -> Tensor:
    """-mean min(r A, clamp(r, 1 - clip, 1 + clip) A) with r = exp(new - old): PPO (Schulman et al. 2017).

    new, old: log-probabilities (B, L); advantages (B, L) or (B, 1).
    """
    ratio = (new - old).masked_fill(~mask, 0).exp()
    return -masked_mean(torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages), mask)


def clip_fraction(new: Tensor, old: Tensor, mask: Tensor, clip: float) -> Tensor:
    """Share of tokens whose ratio left the clip range."""
    return masked_mean((((new - old).exp() - 1).abs() > clip).to(new.dtype), mask)


def divergence(logits: Tensor, reference: Tensor, mask: Tensor) -> Tensor:
    """KL(policy | reference) of the next token, mean over tokens, from both's logits (B, L, V); exact.

    An estimate from the sampled tokens alone holds back nothing where every sample agrees: there small steps add up
    until all of a kind of kernel is wrong in the same token, and no reward tells them apart any more.
    """
    new, old = torch.log_softmax(logits, -1), torch.log_softmax(reference, -1)
    return masked_mean((new.exp() * (new - old)).sum(-1), mask)


def gae(rewards: Tensor, values: Tensor, mask: Tensor, decay: float, discount: float = 1.0) -> tuple[Tensor, Tensor]:
    """Advantages and returns, each (B, L), of rewards (B, L) and a critic's values (B, L) (Schulman et al. 2016).

    delta_t = r_t + discount v_{t+1} - v_t; A_t = delta_t + discount decay A_{t+1}; the value after the last token is 0.
    values[:, t] is the critic's word before token t. Masked places have advantage 0.
    """
    advantages = torch.zeros_like(values)
    following = torch.zeros_like(values[:, 0])
    value_after = torch.zeros_like(values[:, 0])
    for t in range(values.shape[1] - 1, -1, -1):
        inside = mask[:, t]
        delta = rewards[:, t] + discount * value_after - values[:, t]
        now = delta + discount * decay * following
        advantages[:, t] = torch.where(inside, now, 0.0)
        following = torch.where(inside, now, following)
        value_after = torch.where(inside, values[:, t], value_after)
    return advantages, (advantages + values) * mask


def value_loss(values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    """Half the mean squared error of the critic, unclipped: a clip range would have to know the reward's scale."""
    return 0.5 * masked_mean((values - returns).square(), mask)
