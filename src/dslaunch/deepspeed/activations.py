"""Estimate the activations that the forward pass keeps for the backward pass, in bytes per GPU.
Pure.

Counted tensor by tensor for Hugging Face's models (transformers 5.23.0) without dropout; compare
Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", whose 34
bytes per token and hidden unit are for a layer with dropout and a fused GELU.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from dslaunch.deepspeed.architectures import Shape
from dslaunch.deepspeed.schema import by_hand

Attention = Literal["sdpa", "eager"]
ERROR = 0.15
"""Maximum relative error against the tensors that autograd saves, as tested."""
LOSS_WIDTHS = 14
"""Bytes per token and vocabulary entry while the loss is computed: logits in 16 bit and in fp32,
their log-softmax in fp32, and its gradient."""


def compared(model_type: str) -> bool:
    """Return whether the figures of this model type, or of an equal architecture, were compared
    with the tensors that autograd saves."""
    return model_type in by_hand("models")["activations_compared"]


class MicroBatch(Struct, frozen=True):
    """One micro-batch of a GPU."""

    micro: int = 1
    sequence: int = 2048
    attention: Attention = "sdpa"

    @property
    def tokens(self) -> int:
        """Return the number of tokens of one micro-batch."""
        return self.micro * self.sequence


class Activations(Struct, frozen=True):
    """Bytes per GPU at the end of the forward pass."""

    full: int
    checkpointed: int
    """With activation checkpointing: the input of each layer, and one layer while it is
    recomputed."""
    loss: int
    """Logits and loss; included in both figures above."""


def layer_bytes(shape: Shape, batch: MicroBatch, width: int = 2) -> int:
    """Return the bytes that one layer keeps for one micro-batch."""
    h, q = shape.hidden, shape.heads * shape.head_dim
    kv = shape.kv_heads * shape.head_dim
    # RMSNorm in fp32 keeps its fp32 input and its result in 16 bit; LayerNorm its input
    norm = 4 + width if shape.rms else width
    norms = norm * (shape.norms * h + (q + kv if shape.qk_norms else 0))
    projections = 2 * width * h  # the inputs of q, k, v and of the feed-forward part
    # q, k, v, the result of attention, and its contiguous copy for the output projection
    attention = width * (3 * q + 2 * kv) + 4 * shape.heads
    if batch.attention == "eager":
        attention += (4 + width) * shape.heads * batch.sequence
    copies = shape.act_copies + (2 if shape.gated else 0)
    inner = width * copies * shape.intermediate * shape.experts
    return batch.tokens * (norms + projections + attention + inner)


def activations(shape: Shape, batch: MicroBatch, width: int = 2) -> Activations:
    """Return the activations of one micro-batch, with and without activation checkpointing."""
    layer = layer_bytes(shape, batch, width)
    words = LOSS_WIDTHS if width == 2 else 12
    loss = batch.tokens * (shape.vocab * words + shape.hidden * (4 + 2 * width))
    inputs = batch.tokens * shape.hidden * width * shape.layers
    return Activations(layer * shape.layers + loss, inputs + max(layer, loss), loss)
