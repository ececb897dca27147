"""Count the parameters of Hugging Face's models, by family of architectures. Pure.

A rule returns the modules with parameters, from the numbers of a config.json; it raises KeyError
for a missing number. The rules follow, and are tested against, the modeling files of transformers
5.23.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dslaunch.deepspeed.memory import Model


class Shape(Struct, frozen=True):
    """The sizes on which activations depend."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    gated: bool = False
    """The feed-forward part has a gate, as in SwiGLU."""
    rms: bool = False
    """Norms are RMSNorm in fp32, as implemented in Hugging Face's models."""
    act_copies: int = 2
    """Number of tensors of the intermediate size that the activation function keeps."""
    experts: int = 1
    """Number of experts per token."""
    norms: int = 2
    """Number of norms per layer, each of the hidden size."""
    qk_norms: bool = False
    """Queries and keys are normalized too."""


class Layer(Struct, frozen=True):
    """Equal modules: the number of modules, and the parameters of each without its children's."""

    params: int
    count: int = 1
    shared: bool = False
    """Its parameters are shared with another layer, so they are not counted again."""


def multi_head(
    *, layers: int, hidden: int, heads: int, intermediate: int, vocab: int, act_copies: int = 2
) -> Shape:
    """Return the shape of a model with multi-head attention: as many key heads as query heads."""
    return Shape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        intermediate=intermediate,
        vocab=vocab,
        act_copies=act_copies,
    )


Config = Mapping[str, Any]
Parts = list[Layer]


def linear(inputs: int, outputs: int, bias: bool = False, count: int = 1) -> Layer:
    """Return `count` linear modules."""
    return Layer(inputs * outputs + (outputs if bias else 0), count)


def total(layers: Sequence[Layer]) -> Model:
    """Return the total and the largest layer. Raises ValueError without parameters."""
    params = sum(layer.params * layer.count for layer in layers if not layer.shared)
    return Model(params, max(layer.params for layer in layers if layer.count))


class _Llama(Struct, frozen=True):
    """The differences of a family of decoders from Llama."""

    qkv_bias: bool = False
    qkv_key: str = "attention_bias"
    """The config key for the bias of q, k and v."""
    out_bias: bool = True
    """The output projection has a bias if q, k and v have one."""
    mlp_bias: bool = False
    qk_norm: str = ""
    """`head`: norms of the size of a head; `full`: of the projections' size."""
    norms: int = 2
    """Number of norms per layer; -1: norms have no parameters (OLMo)."""
    fused: bool = False
    """q, k and v are one module, and gate and up are one (Phi-3)."""
    fused_up: bool = False
    """Only gate and up are one module (GLM)."""
    tied: bool = False
    """Whether input and output embedding are tied by default."""
    head_dim: int | None = None
    layer_norm: bool = False
    norm_bias: bool = True
    """LayerNorm has a bias too."""
    gated: bool = True
    defaults: tuple[tuple[str, int], ...] = ()
    """Defaults of the config class for keys that published configs lack."""
    measured: bool = True
    """Its activations were compared with those of the model."""


LLAMA_LIKE = {
    "llama": _Llama(),
    "mistral": _Llama(),
    "granite": _Llama(),
    "qwen2": _Llama(qkv_bias=True, out_bias=False),
    "qwen2_moe": _Llama(qkv_bias=True, qkv_key="qkv_bias", out_bias=False, measured=False),
    "qwen3": _Llama(qk_norm="head", head_dim=128),
    "gemma": _Llama(tied=True, head_dim=256),
    "gemma2": _Llama(tied=True, head_dim=256, norms=4),
    "gemma3_text": _Llama(
        tied=True,
        head_dim=256,
        norms=4,
        qk_norm="head",
        defaults=(("vocab_size", 262208), ("num_attention_heads", 8), ("num_key_value_heads", 4)),
    ),
    "glm": _Llama(qkv_bias=True, out_bias=False, fused_up=True),
    "glm4": _Llama(qkv_bias=True, out_bias=False, fused_up=True, norms=4),
    "cohere": _Llama(tied=True, layer_norm=True, norm_bias=False, norms=1),
    "cohere2": _Llama(tied=True, layer_norm=True, norm_bias=False, norms=1),
    "stablelm": _Llama(qkv_key="use_qkv_bias", out_bias=False, layer_norm=True),
    "olmo": _Llama(norms=-1),
    "olmoe": _Llama(qk_norm="full", measured=False),
    "phi3": _Llama(fused=True),
    "olmo2": _Llama(qk_norm="full"),
    "starcoder2": _Llama(
        qkv_bias=True, qkv_key="use_bias", mlp_bias=True, tied=True, layer_norm=True, gated=False
    ),
    "mixtral": _Llama(),
    "qwen3_moe": _Llama(qk_norm="head"),
}
"""`model_type` of decoders with the architecture of Llama (transformers 5.23.0, modeling files)."""


def _shape(c: Config, spec: _Llama) -> Shape:
    hidden, heads = c["hidden_size"], c["num_attention_heads"]
    head_dim = c.get("head_dim") or spec.head_dim or hidden // heads
    return Shape(
        layers=c["num_hidden_layers"],
        hidden=hidden,
        heads=heads,
        kv_heads=c.get("num_key_value_heads") or heads,
        head_dim=head_dim,
        intermediate=c.get("moe_intermediate_size") or c["intermediate_size"],
        vocab=c["vocab_size"],
        gated=spec.gated,
        rms=not spec.layer_norm,
        experts=c.get("num_experts_per_tok") or 1,
        norms=max(spec.norms, 2),
        qk_norms=bool(spec.qk_norm),
    )


def _llama(c: Config) -> tuple[Parts, Shape | None]:
    spec = LLAMA_LIKE[c["model_type"]]
    c = {**dict(spec.defaults), **c}
    s = _shape(c, spec)
    embedding = Layer(s.vocab * s.hidden, 1 if c.get("tie_word_embeddings", spec.tied) else 2)
    # StableLM with a parallel residual has one norm for both parts of a layer
    norms = 1 if c.get("use_parallel_residual") else spec.norms
    size = s.hidden * (2 if spec.layer_norm and spec.norm_bias else 1)
    norm = Layer(size, norms * s.layers + 1 if norms > 0 else 0)
    parts = [embedding, norm, *_attention(c, spec, s), *_feed_forward(c, spec, s)]
    return parts, s if spec.measured else None


def _attention(c: Config, spec: _Llama, s: Shape) -> Parts:
    q, kv, n = s.heads * s.head_dim, s.kv_heads * s.head_dim, s.layers
    bias = bool(c.get(spec.qkv_key, spec.qkv_bias))
    out = linear(q, s.hidden, bias and spec.out_bias, n)
    # Cohere and StableLM have a norm for each head if the config enables it
    qk_norm = "full" if c.get("use_qk_norm") or c.get("qk_layernorm") else spec.qk_norm
    norms = {"head": (s.head_dim, s.head_dim), "full": (q, kv)}.get(qk_norm, ())
    more = [Layer(size, n) for size in norms]
    if spec.fused:
        return [out, linear(s.hidden, q + 2 * kv, bias, n), *more]
    return [out, linear(s.hidden, q, bias, n), linear(s.hidden, kv, bias, 2 * n), *more]


def _feed_forward(c: Config, spec: _Llama, s: Shape) -> Parts:
    experts = c.get("num_local_experts") or c.get("num_experts") or 0
    if experts:
        return _experts(c, s, experts)
    n, inner, bias = s.layers, s.intermediate, bool(c.get("mlp_bias", spec.mlp_bias))
    down = linear(inner, s.hidden, bias, n)
    if spec.fused or spec.fused_up:
        return [down, linear(s.hidden, 2 * inner, bias, n)]
    return [down, linear(s.hidden, inner, bias, (2 if spec.gated else 1) * n)]


def _experts(c: Config, s: Shape, experts: int) -> Parts:
    """Return the experts: one module per layer (transformers 5); some layers may be dense."""
    step, dense_at = c.get("decoder_sparse_step", 1), set(c.get("mlp_only_layers") or ())
    sparse = sum(i not in dense_at and (i + 1) % step == 0 for i in range(s.layers))
    dense = s.layers - sparse
    shared = c.get("shared_expert_intermediate_size") or 0
    return [
        Layer(experts * 3 * s.intermediate * s.hidden, sparse),
        Layer(experts * s.hidden, sparse),
        linear(s.hidden, shared, count=3 * sparse),
        Layer(s.hidden if shared else 0, sparse),
        linear(s.hidden, c["intermediate_size"], count=3 * dense),
    ]


class _Classic(Struct, frozen=True):
    """Config keys of decoders with LayerNorm, biases and a feed-forward part of two matrices."""

    hidden: str = "hidden_size"
    layers: str = "num_hidden_layers"
    heads: str = "num_attention_heads"
    inner: str = "intermediate_size"
    positions: int | None = None
    """Learned positions in addition to max_position_embeddings; None: no learned positions."""
    position_key: str = "max_position_embeddings"
    norms: int = 2
    fused: bool = True
    attention_bias: bool = True
    bias: bool = True
    head_bias: bool = False
    embedding_norm: bool = False
    out_bias: bool | None = None
    """None: same as q, k and v."""
    tied: bool = True
    activation: str = "gelu_new"


_GPT2 = _Classic(hidden="n_embd", layers="n_layer", heads="n_head", inner="n_inner")
CLASSIC = {
    "gpt2": replace(_GPT2, positions=0, position_key="n_positions"),
    "gptj": replace(_GPT2, norms=1, fused=False, attention_bias=False, head_bias=True, tied=False),
    "gpt_neox": _Classic(tied=False, activation="gelu"),
    "opt": _Classic(inner="ffn_dim", positions=2, fused=False, activation="relu"),
    "bloom": replace(_GPT2, hidden="n_embed", embedding_norm=True),
    "gpt_bigcode": replace(_GPT2, positions=0, position_key="n_positions"),
    "gpt_neo": _Classic(
        layers="num_layers",
        heads="num_heads",
        positions=0,
        fused=False,
        attention_bias=False,
        out_bias=True,
    ),
    "phi": _Classic(norms=1, fused=False, head_bias=True, tied=False),
}


def _classic(c: Config) -> tuple[Parts, Shape]:
    f = CLASSIC[c["model_type"]]
    h, n, vocab = named(c, f.hidden), named(c, f.layers), c["vocab_size"]
    inner = c.get(f.inner) or 4 * h
    heads = named(c, f.heads)
    activation = c.get("activation_function") or c.get("hidden_act") or f.activation
    copies = {"gelu_new": 5, "gelu_fast": 5, "relu": 1}.get(activation, 2)
    shape = multi_head(
        layers=n, hidden=h, heads=heads, intermediate=inner, vocab=vocab, act_copies=copies
    )
    tied = c.get("tie_word_embeddings", f.tied)
    qkv = (3 * h, 1) if f.fused else (h, 3)
    if c.get("multi_query", c["model_type"] == "gpt_bigcode"):
        qkv = (h + 2 * (h // heads), 1)
    # OPT-350m: embeddings have fewer dimensions, and there is no final norm
    # (transformers 5.23.0, modeling_opt.py)
    words = c.get("word_embed_proj_dim") or h
    last_norm = 1 if c.get("do_layer_norm_before", True) else 0
    out_bias = f.attention_bias if f.out_bias is None else f.out_bias
    parts = [
        Layer(vocab * words),
        linear(words, vocab, f.head_bias, 0 if tied else 1),
        linear(words, h, count=2 if words != h else 0),
        Layer(2 * h, f.norms * n + last_norm + f.embedding_norm),
        linear(h, qkv[0], f.attention_bias, qkv[1] * n),
        linear(h, h, out_bias, n),
        linear(h, inner, f.bias, n),
        linear(inner, h, f.bias, n),
    ]
    if f.positions is not None:
        parts.append(Layer((named(c, f.position_key) + f.positions) * h))
    return parts, shape


ALIASES = (
    ("hidden_size", "n_embd", "n_embed", "d_model", "dim"),
    ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    ("intermediate_size", "n_inner", "ffn_dim", "hidden_dim"),
    ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"),
)
"""Config keys with the same meaning (transformers, `attribute_map`)."""


def named(c: Config, key: str) -> int:
    """Return a number by any of its keys, the given one first. Raises KeyError."""
    same = next((names for names in ALIASES if key in names), ())
    found = [c[name] for name in (key, *same) if c.get(name) is not None]
    if not found:
        raise KeyError(key)
    number: int = found[0]
    return number


def _bert(c: Config) -> tuple[Parts, Shape]:
    """Return BERT and RoBERTa with the head for masked language modeling."""
    h, n, vocab, inner = (
        c[k] for k in ("hidden_size", "num_hidden_layers", "vocab_size", "intermediate_size")
    )
    heads = c["num_attention_heads"]
    parts = [
        Layer(vocab * h),
        Layer(c["max_position_embeddings"] * h),
        Layer(c.get("type_vocab_size", 2) * h),
        Layer(2 * h, 2 * n + 2),
        linear(h, h, True, 4 * n + 1),
        linear(h, inner, True, n),
        linear(inner, h, True, n),
        Layer(vocab),
    ]
    # the output embedding is tied to the input embedding; with its bias it is one module
    parts.append(Layer(vocab * h + vocab, shared=True))
    return parts, multi_head(layers=n, hidden=h, heads=heads, intermediate=inner, vocab=vocab)


def _t5(c: Config) -> tuple[Parts, Shape]:
    h, inner, heads, vocab = c["d_model"], c["d_ff"], c["num_heads"], c["vocab_size"]
    n, m, width = c["num_layers"], c.get("num_decoder_layers") or c["num_layers"], c["d_kv"]
    gated = str(c.get("feed_forward_proj", "relu")).startswith("gated")
    attention = n + 2 * m
    parts = [
        Layer(vocab * h, 1 if c.get("tie_word_embeddings", True) else 2),
        linear(h, heads * width, count=4 * attention),
        Layer(c.get("relative_attention_num_buckets", 32) * heads, 2),
        linear(h, inner, count=(3 if gated else 2) * (n + m)),
        Layer(h, 2 * n + 3 * m + 2),
    ]
    shape = Shape(
        layers=n + m,
        hidden=h,
        heads=heads,
        kv_heads=heads,
        head_dim=width,
        intermediate=inner,
        vocab=vocab,
        gated=gated,
        rms=True,
    )
    return parts, shape


Rule = Callable[[Config], tuple[Parts, Shape | None]]
"""Modules with parameters, and the shape if activations can be estimated from it."""
TEXT_FAMILIES: dict[str, Rule] = {
    **dict.fromkeys(LLAMA_LIKE, _llama),
    **dict.fromkeys(CLASSIC, _classic),
    "bert": _bert,
    "roberta": _bert,
    "xlm-roberta": _bert,
    "camembert": _bert,
    "t5": _t5,
    "mt5": _t5,
}
"""By `model_type`; the counts are checked against the models of transformers 5.23.0."""
