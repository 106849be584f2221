"""The losses of reinforcement learning on hand-worked numbers."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from sparsegen.train import policy  # noqa: E402


def tensor(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def mask(*lengths: int, of: int):
    return torch.arange(of) < torch.tensor(lengths).unsqueeze(1)


def test_leave_one_out_by_hand():
    """1, 2, 6: the others' means are 4, 3.5 and 1.5."""
    found = policy.leave_one_out(tensor([1, 2, 6], [5, 5, 5]))
    torch.testing.assert_close(found, tensor([-3, -1.5, 4.5], [0, 0, 0]))
    with pytest.raises(ValueError, match="groups of 1"):
        policy.leave_one_out(tensor([1.0], [2.0]))


def test_batch_scaling_is_over_the_whole_batch():
    """The group that differs less keeps the smaller advantages."""
    found = policy.batch_scaled(tensor([-3, 3], [-1, 1]))
    torch.testing.assert_close(found, tensor([-3, 3], [-1, 1]) / math.sqrt(5))
    torch.testing.assert_close(policy.batch_scaled(tensor([0, 0], [0, 0])), tensor([0, 0], [0, 0]))


def test_logprobs_and_entropy_by_hand():
    logits = torch.tensor([[[math.log(3), 0.0], [0.0, 0.0], [9.0, 1.0]]], dtype=torch.float64)
    found = policy.token_logprobs(logits, torch.tensor([[0, 1, 1]]))
    torch.testing.assert_close(found[:, :2], tensor([math.log(0.75), math.log(0.5)]))
    expected = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    torch.testing.assert_close(policy.entropy(logits)[:, :2], tensor([expected, math.log(2)]))


def test_the_clipped_loss_by_hand():
    """Ratios 1.5 and 0.5 with clip 0.2: a gain stops at 1.2 and 0.8, a loss does not."""
    new, old = tensor([math.log(1.5), math.log(0.5), 0.0]), tensor([0, 0, -700.0])
    both = mask(2, of=3)
    assert policy.clipped(new, old, tensor([1.0]), both, 0.2).item() == pytest.approx(-(1.2 + 0.5) / 2)
    assert policy.clipped(new, old, tensor([-1.0]), both, 0.2).item() == pytest.approx((1.5 + 0.8) / 2)
    assert policy.clipped(new, old, tensor([2.0, 0.0, 9.0]), both, 0.2).item() == pytest.approx(-1.2)
    assert policy.clip_fraction(new, old, both, 0.2).item() == 1.0
    assert policy.clip_fraction(new, old, both, 0.5 + 1e-9).item() == 0.0


def test_the_clipped_loss_has_no_gradient_outside_the_samples():
    new = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    policy.clipped(new, torch.zeros(2, 3, dtype=torch.float64), tensor([1.0], [-2.0]), mask(1, 2, of=3), 0.2).backward()
    torch.testing.assert_close(new.grad, tensor([-1, 0, 0], [2, 2, 0]) / 3)


def test_the_divergence_by_hand():
    """(3/4, 1/4) from (1/2, 1/2), then no difference, then a token that is none of the text's."""
    logits = torch.tensor([[[math.log(3), 0.0], [2.0, 1.0], [9.0, 0.0]]], dtype=torch.float64)
    reference = torch.tensor([[[5.0, 5.0], [2.0, 1.0], [0.0, 0.0]]], dtype=torch.float64)
    expected = (0.75 * math.log(1.5) + 0.25 * math.log(0.5)) / 2
    assert policy.divergence(logits, reference, mask(2, of=3)).item() == pytest.approx(expected)


def test_the_divergence_holds_tokens_that_no_sample_shows():
    """Its gradient pulls a likely token back although no probability of it was ever sampled."""
    logits = torch.tensor([[[4.0, 3.0, 0.0]]], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([[[4.0, -3.0, 0.0]]], dtype=torch.float64)
    policy.divergence(logits, reference, mask(1, of=1)).backward()
    assert logits.grad[0, 0, 1] > 0 > logits.grad[0, 0, 0]


def test_gae_by_hand():
    """Reward 2 after three tokens, values 1, 0.5, 1; decay 0.5."""
    rewards, values = tensor([0, 0, 2, 0]), tensor([1, 0.5, 1, 9])
    advantages, returns = policy.gae(rewards, values, mask(3, of=4), 0.5)
    # deltas: 0.5 - 1 = -0.5, 1 - 0.5 = 0.5, 2 - 1 = 1
    torch.testing.assert_close(advantages, tensor([0.0, 1.0, 1.0, 0.0]))
    torch.testing.assert_close(returns, tensor([1.0, 1.5, 2.0, 0.0]))


def test_gae_with_full_decay_is_the_return_minus_the_value():
    rewards, values = tensor([0, 0.5, 2]), tensor([0.3, 0.1, 0.7])
    advantages, returns = policy.gae(rewards, values, mask(3, of=3), 1.0)
    torch.testing.assert_close(returns, tensor([2.5, 2.5, 2.0]))
    torch.testing.assert_close(advantages, returns - values)
    discounted, _ = policy.gae(rewards, values, mask(3, of=3), 1.0, discount=0.5)
    torch.testing.assert_close(discounted, tensor([0.25 + 0.5 - 0.3, 0.5 + 1 - 0.1, 2 - 0.7]))


def test_the_value_loss_by_hand():
    found = policy.value_loss(tensor([2, 1.5, 9]), tensor([1, 2, 0]), mask(2, of=3))
    assert found.item() == pytest.approx((1 + 0.25) / 4)
