"""The samples of an iteration as tensors, and what a network says of each of their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sparsegen.model.generator import Generator
from sparsegen.model.sample import Sample
from sparsegen.model.tokenizer import END, PAD, START


@dataclass(frozen=True)
class Texts:
    """Samples as tensors: tokens (B, L) from the language token on, targets (B, L) what follows each, mask (B, L)
    where a target is the sample's own, rows (B,) the place of its problem among those of the iteration."""

    tokens: torch.Tensor
    targets: torch.Tensor
    mask: torch.Tensor
    rows: torch.Tensor

    def of(self, chosen: torch.Tensor) -> Texts:
        """Some samples alone, cut to the longest of them."""
        longest = max(int(self.mask[chosen].sum(1).max()), 1)
        tokens, targets, mask = (each[chosen, :longest] for each in (self.tokens, self.targets, self.mask))
        return Texts(tokens, targets, mask, self.rows[chosen])


def texts_of(groups: Sequence[Sequence[Sample]], languages: Sequence[str]) -> Texts:
    """The samples of all groups, one group after the other. One that ended by itself has END among its targets."""
    written, rows = [], []
    for row, (group, language) in enumerate(zip(groups, languages, strict=True)):
        for each in group:
            ended = each.finished and END not in each.tokens
            written.append([START[language], *each.tokens, *([END] if ended else [])])
            rows.append(row)
    whole = torch.full((len(written), max(max(map(len, written)), 2)), PAD)
    for i, ids in enumerate(written):
        whole[i, : len(ids)] = torch.tensor(ids)
    lengths = torch.tensor([len(ids) - 1 for ids in written]).unsqueeze(1)
    mask = torch.arange(whole.shape[1] - 1) < lengths
    return Texts(whole[:, :-1], whole[:, 1:], mask, torch.tensor(rows))


def logits(network: Generator, batch: dict, part: Texts) -> torch.Tensor:
    """Of each target (B, L, V)."""
    return network(*_asked(batch, part))


def values(network: Generator, batch: dict, part: Texts) -> torch.Tensor:
    """The critic's word before each target (B, L)."""
    return network(*_asked(batch, part), with_values=True)[1]


def _asked(batch: dict, part: Texts) -> tuple[dict, torch.Tensor, torch.Tensor]:
    """What a network is called with for some samples: only their problems are encoded."""
    problems, rows = part.rows.unique(return_inverse=True)
    return {name: each[problems] for name, each in batch.items()}, part.tokens, rows
