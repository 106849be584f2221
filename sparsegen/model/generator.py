"""The network that writes kernels, to be trained: a T5 encoder-decoder (Raffel et al. 2020, gated as in version 1.1).

The encoder is fed vectors made here of what `encoder` says of a problem; `decoder` computes the same without torch.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn
from transformers import T5Config, T5Model

from sparsegen.model import decoder, encoder, statistics
from sparsegen.model.recipe import Recipe
from sparsegen.model.tokenizer import END, PAD

TIED = ("t5.encoder.embed_tokens.weight", "t5.decoder.embed_tokens.weight")  # names of t5.shared.weight


class Generator(nn.Module):
    """Logits of the next token of a kernel file, and a critic's value of what is written so far."""

    def __init__(self, recipe: Recipe):
        super().__init__()
        self.recipe = recipe
        self.t5 = T5Model(
            T5Config(
                vocab_size=recipe.vocabulary,
                d_model=recipe.d_model,
                d_kv=recipe.d_kv,
                d_ff=recipe.d_ff,
                num_layers=recipe.encoder_layers,
                num_decoder_layers=recipe.decoder_layers,
                num_heads=recipe.heads,
                dropout_rate=recipe.dropout,
                feed_forward_proj="gated-gelu",
                pad_token_id=PAD,
                eos_token_id=END,
            )
        )
        self.t5.set_attn_implementation("eager")  # at these lengths, on a CPU, faster than torch's fused attention
        self.conditions = nn.Embedding(len(encoder.CONDITIONS), recipe.d_model, padding_idx=0)
        # every statistic has a meaning of its own, so a map of its own
        S = len(statistics.NAMES)
        self.statistics = nn.Parameter(torch.empty(S, statistics.STATISTIC, recipe.d_model))
        self.statistics_vectors = nn.Parameter(torch.randn(S, recipe.d_model))
        width = encoder.width(recipe.embedding)
        self.coordinates = nn.Linear(width, recipe.d_model)  # its bias: the vector of their kind
        self.head = nn.Linear(recipe.d_model, recipe.vocabulary, bias=False)
        self.value = nn.Linear(recipe.d_model, 1)
        nn.init.normal_(self.statistics, std=statistics.STATISTIC**-0.5)
        nn.init.normal_(self.coordinates.weight, std=width**-0.5)
        nn.init.normal_(self.coordinates.bias)
        # T5 gives the head the embedding's unit variance, made for a scale that versions since 1.1 have not
        nn.init.normal_(self.head.weight, std=0.1 * recipe.d_model**-0.5)
        nn.init.zeros_(self.value.weight)
        nn.init.zeros_(self.value.bias)

    def forward(
        self, batch: Mapping[str, Tensor], tokens: Tensor, rows: Tensor | None = None, with_values: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Logits (N, L, V) of what follows each of tokens (N, L) int64, which begin with the language token.

        rows (N,) says which problem of the batch each text is for, by default its own, so that a group of kernels
        of one problem encodes it once. with_values: also the critic's values (N, L).
        """
        memory, mask = self.encode(batch), batch["mask"]
        if rows is not None:
            memory, mask = memory[rows], mask[rows]
        hidden = self.t5.decoder(
            input_ids=tokens, encoder_hidden_states=memory, encoder_attention_mask=mask, use_cache=False
        ).last_hidden_state
        logits = self.head(hidden)
        return (logits, self.value(hidden).squeeze(-1)) if with_values else logits

    def encode(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Hidden states (B, C + S + T, d_model) of a batch as `tensors` gives it."""
        vectors = [
            self.conditions(batch["conditions"]),
            torch.einsum("bsi,sid->bsd", batch["statistics"], self.statistics) + self.statistics_vectors,
            self.coordinates(batch["coordinates"]),
        ]
        return self.t5.encoder(inputs_embeds=torch.cat(vectors, 1), attention_mask=batch["mask"]).last_hidden_state

    def weights(self) -> dict[str, np.ndarray]:
        """Every parameter by name, float32: what `decoder.Decoder` and a checkpoint take."""
        return {
            name: tensor.detach().to("cpu", torch.float32).numpy().copy()
            for name, tensor in self.state_dict().items()
            if name not in TIED
        }

    def load(self, weights: Mapping[str, np.ndarray]) -> None:
        """Take weights over. Raises SparsegenValueError where they are not those of this recipe."""
        decoder.check(weights, self.recipe)
        state = {name: torch.from_numpy(np.array(array, np.float32)) for name, array in weights.items()}
        self.load_state_dict(state | {name: state["t5.shared.weight"] for name in TIED})


def tensors(batch: encoder.Batch) -> dict[str, Tensor]:
    """A batch of the encoder as the generator takes it."""
    arrays = {name: getattr(batch, name) for name in ("conditions", "statistics", "coordinates", "mask")}
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}


def parameters(recipe: Recipe) -> int:
    """How many numbers a model of this recipe is made of."""
    return sum(int(np.prod(shape)) for shape in decoder.shapes(recipe).values())
