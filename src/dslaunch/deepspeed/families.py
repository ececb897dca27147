"""Rules for models with other architectures than Llama, GPT, BERT or T5; and all rules by name.
Pure.

As in `architectures`, the rules follow, and are tested against, the modeling files of transformers
5.23.0. Without a shape, activations are not estimated: their formulas are for dense text decoders.
"""

from __future__ import annotations

from dslaunch.deepspeed.architectures import (
    TEXT_FAMILIES,
    Config,
    Layer,
    Parts,
    Rule,
    Shape,
    linear,
    multi_head,
    named,
)
from dslaunch.deepspeed.schema import by_hand

# ---------------------------------------------------------------- decoders


def _falcon(c: Config) -> tuple[Parts, Shape | None]:
    h, n, heads = named(c, "hidden_size"), named(c, "num_hidden_layers"), c["num_attention_heads"]
    inner = c.get("ffn_hidden_size") or 4 * h
    new = bool(c.get("new_decoder_architecture"))
    kv_heads = (c.get("num_kv_heads") or heads) if new else heads
    if not new and c.get("multi_query", True):
        kv_heads = 1
    head_dim = h // heads
    bias = bool(c.get("bias"))
    two_norms = (new and c.get("num_ln_in_parallel_attn", 2) == 2) or not c.get("parallel_attn", 1)
    parts = [
        Layer(c["vocab_size"] * h, 1 if c.get("tie_word_embeddings", True) else 2),
        linear(h, h + 2 * kv_heads * head_dim, bias, n),
        linear(h, h, bias, n),
        linear(h, inner, bias, n),
        linear(inner, h, bias, n),
        Layer(2 * h, (2 if two_norms else 1) * n + 1),
    ]
    shape = Shape(
        layers=n,
        hidden=h,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=inner,
        vocab=c["vocab_size"],
    )
    return parts, shape


def _mpt(c: Config) -> tuple[Parts, Shape | None]:
    """Return MPT, whose linear modules and norms have no biases (transformers, modeling_mpt.py)."""
    h, n, heads = named(c, "hidden_size"), named(c, "n_layers"), named(c, "n_heads")
    inner = c.get("expansion_ratio", 4) * h
    parts = [
        Layer(c["vocab_size"] * h),
        linear(h, 3 * h, count=n),
        linear(h, h, count=n),
        linear(h, inner, count=2 * n),
        Layer(h, 2 * n + 1),
    ]
    return parts, multi_head(
        layers=n, hidden=h, heads=heads, intermediate=inner, vocab=c["vocab_size"]
    )


def _deepseek(c: Config) -> tuple[Parts, Shape | None]:
    """Return DeepSeek V2 and V3: latent attention, shared and routed experts. The layers that
    predict more tokens (`num_nextn_predict_layers`) are not in the model of transformers."""
    h, n, heads = c["hidden_size"], c["num_hidden_layers"], c["num_attention_heads"]
    rope, nope, value = c["qk_rope_head_dim"], c["qk_nope_head_dim"], c["v_head_dim"]
    latent, q_latent = c["kv_lora_rank"], c.get("q_lora_rank")
    bias = bool(c.get("attention_bias"))
    q_width = heads * (nope + rope)
    query = [linear(h, q_width, count=n)]
    if q_latent:
        query = [
            linear(h, q_latent, bias, n),
            Layer(q_latent, n),
            linear(q_latent, q_width, count=n),
        ]
    experts, inner = c["n_routed_experts"], c["moe_intermediate_size"]
    dense = min(c.get("first_k_dense_replace", 0), n)
    sparse = n - dense
    parts = [
        Layer(c["vocab_size"] * h, 1 if c.get("tie_word_embeddings") else 2),
        *query,
        linear(h, latent + rope, bias, n),
        Layer(latent, n),
        linear(latent, heads * (nope + value), count=n),
        linear(heads * value, h, bias, n),
        linear(h, c["intermediate_size"], count=3 * dense),
        Layer(experts * 3 * inner * h, sparse),
        Layer(experts * h, sparse),
        linear(h, inner * (c.get("n_shared_experts") or 0), count=3 * sparse),
        Layer(h, 2 * n + 1),
    ]
    return parts, None


def _gpt_oss(c: Config) -> tuple[Parts, Shape | None]:
    h, n, inner = c["hidden_size"], c["num_hidden_layers"], c["intermediate_size"]
    heads, width = c["num_attention_heads"], c.get("head_dim") or 64
    q, kv, experts = heads * width, c["num_key_value_heads"] * width, c["num_local_experts"]
    bias = bool(c.get("attention_bias", True))
    parts = [
        Layer(c["vocab_size"] * h, 1 if c.get("tie_word_embeddings") else 2),
        Layer(heads, n),
        linear(h, q, bias, n),
        linear(h, kv, bias, 2 * n),
        linear(q, h, bias, n),
        linear(h, experts, True, n),
        Layer(experts * (3 * h * inner + 2 * inner + h), n),
        Layer(h, 2 * n + 1),
    ]
    return parts, None


def _llama4_text(c: Config) -> tuple[Parts, Shape | None]:
    h, n, width = c["hidden_size"], c["num_hidden_layers"], c.get("head_dim") or 128
    q, kv = c["num_attention_heads"] * width, c["num_key_value_heads"] * width
    experts, inner = c["num_local_experts"], c["intermediate_size"]
    step = c.get("interleave_moe_layer_step", 1)
    sparse = len(c["moe_layers"]) if c.get("moe_layers") else n // step
    dense = n - sparse
    parts = [
        Layer(c["vocab_size"] * h, 1 if c.get("tie_word_embeddings") else 2),
        linear(h, q, count=n),
        linear(h, kv, count=2 * n),
        linear(q, h, count=n),
        Layer(experts * 3 * h * inner, sparse),
        Layer(experts * h, sparse),
        linear(h, inner, count=3 * sparse),
        linear(h, c.get("intermediate_size_mlp") or inner, count=3 * dense),
        Layer(h, 2 * n + 1),
    ]
    return parts, None


def _mamba(c: Config) -> tuple[Parts, Shape | None]:
    h, n, state = named(c, "hidden_size"), named(c, "num_hidden_layers"), c.get("state_size", 16)
    inner, kernel = c.get("expand", 2) * h, c.get("conv_kernel", 4)
    rank = c.get("time_step_rank", "auto")
    rank = -(-h // 16) if rank == "auto" else rank
    bias, conv_bias = bool(c.get("use_bias")), bool(c.get("use_conv_bias", True))
    parts = [
        Layer(c["vocab_size"] * h, 1 if c.get("tie_word_embeddings", True) else 2),
        Layer(inner * (state + 1), n),
        Layer(inner * (kernel + conv_bias), n),
        linear(h, 2 * inner, bias, n),
        linear(inner, rank + 2 * state, count=n),
        linear(rank, inner, True, n),
        linear(inner, h, bias, n),
        Layer(h, n + 1),
    ]
    return parts, None


# ---------------------------------------------------------------- encoders


def _distilbert(c: Config) -> tuple[Parts, Shape | None]:
    h, n, heads = named(c, "dim"), named(c, "n_layers"), named(c, "n_heads")
    inner, vocab = named(c, "hidden_dim"), c["vocab_size"]
    parts = [
        Layer(vocab * h),
        Layer(c["max_position_embeddings"] * h),
        Layer(2 * h, 2 * n + 2),
        linear(h, h, True, 4 * n + 1),
        linear(h, inner, True, n),
        linear(inner, h, True, n),
        Layer(vocab),
        # the output embedding is tied to the input embedding; with its bias it is one module
        Layer(vocab * h + vocab, shared=True),
    ]
    return parts, multi_head(layers=n, hidden=h, heads=heads, intermediate=inner, vocab=vocab)


def _electra(c: Config) -> tuple[Parts, Shape | None]:
    """Return ELECTRA's discriminator."""
    h, n = c["hidden_size"], c["num_hidden_layers"]
    inner, words = c["intermediate_size"], c.get("embedding_size") or c["hidden_size"]
    parts = [
        Layer(c["vocab_size"] * words),
        Layer(c["max_position_embeddings"] * words),
        Layer(c.get("type_vocab_size", 2) * words),
        Layer(2 * words),
        linear(words, h, True, 1 if words != h else 0),
        Layer(2 * h, 2 * n),
        linear(h, h, True, 4 * n + 1),
        linear(h, inner, True, n),
        linear(inner, h, True, n),
        linear(h, 1, True),
    ]
    return parts, None


def _bart(c: Config) -> tuple[Parts, Shape | None]:
    h, vocab = c["d_model"], c["vocab_size"]
    n, m = c["encoder_layers"], c["decoder_layers"]
    heads, inner = c["encoder_attention_heads"], c["encoder_ffn_dim"]
    parts = [
        Layer(vocab * h),
        Layer((c["max_position_embeddings"] + 2) * h, 2),
        linear(h, h, True, 4 * n + 8 * m),
        linear(h, inner, True, n),
        linear(inner, h, True, n),
        linear(h, c["decoder_ffn_dim"], True, m),
        linear(c["decoder_ffn_dim"], h, True, m),
        Layer(2 * h, 2 * n + 3 * m + 2),
    ]
    return parts, multi_head(layers=n + m, hidden=h, heads=heads, intermediate=inner, vocab=vocab)


def _whisper(c: Config) -> tuple[Parts, Shape | None]:
    h, n, m = c["d_model"], c["encoder_layers"], c["decoder_layers"]
    attention = n + 2 * m
    parts = [
        Layer(c["vocab_size"] * h),
        Layer(c["max_source_positions"] * h),
        Layer(c["max_target_positions"] * h),
        Layer(3 * c["num_mel_bins"] * h + h),
        Layer(3 * h * h + h),
        linear(h, h, True, 3 * attention),
        linear(h, h, count=attention),  # keys have no bias
        linear(h, c["encoder_ffn_dim"], True, n),
        linear(c["encoder_ffn_dim"], h, True, n),
        linear(h, c["decoder_ffn_dim"], True, m),
        linear(c["decoder_ffn_dim"], h, True, m),
        Layer(2 * h, 2 * n + 3 * m + 2),
    ]
    return parts, None


# ---------------------------------------------------------------- images


def _encoder(h: int, n: int, inner: int) -> Parts:
    """Return the layers of a transformer with LayerNorm and all biases."""
    return [
        linear(h, h, True, 4 * n),
        linear(h, inner, True, n),
        linear(inner, h, True, n),
        Layer(2 * h, 2 * n),
    ]


def _patches(c: Config) -> int:
    per_side: int = c["image_size"] // c["patch_size"]
    return per_side * per_side


def _vit(c: Config) -> tuple[Parts, Shape | None]:
    """Return ViT with a classification head; `id2label` or `num_labels` has the number of
    classes."""
    h, n, labels = c["hidden_size"], c["num_hidden_layers"], c.get("num_labels")
    classes = labels or len(c.get("id2label") or "12")
    patch = c["patch_size"] * c["patch_size"] * c.get("num_channels", 3)
    bias = bool(c.get("qkv_bias", True))
    parts = [
        Layer(h + (_patches(c) + 1) * h),
        linear(patch, h, True),
        linear(h, h, bias, 3 * n),
        linear(h, h, True, n),
        linear(h, c["intermediate_size"], True, n),
        linear(c["intermediate_size"], h, True, n),
        Layer(2 * h, 2 * n + 1),
        linear(h, classes, True),
    ]
    return parts, None


def _clip(c: Config) -> tuple[Parts, Shape | None]:
    # defaults of transformers
    defaults = by_hand("models")
    text = {**defaults["clip_text"], **(c.get("text_config") or {})}
    vision = {**defaults["clip_vision"], **(c.get("vision_config") or {})}
    h, v, width = text["hidden_size"], vision["hidden_size"], c.get("projection_dim", 512)
    patch = vision["patch_size"] * vision["patch_size"] * vision["num_channels"]
    parts = [
        Layer(1),
        Layer(text["vocab_size"] * h),
        Layer(text["max_position_embeddings"] * h),
        *_encoder(h, text["num_hidden_layers"], text["intermediate_size"]),
        Layer(2 * h),
        Layer(v),
        linear(patch, v),
        Layer((_patches(vision) + 1) * v),
        *_encoder(v, vision["num_hidden_layers"], vision["intermediate_size"]),
        Layer(2 * v, 2),
        linear(v, width),
        linear(h, width),
    ]
    return parts, None


def _of_text(c: Config, family: str) -> tuple[Parts, Shape | None]:
    """Return the text part of a multimodal model; old configs have its numbers at the top level."""
    text = {**c, **(c.get("text_config") or {})}
    return FAMILIES[family]({**text, "model_type": family})


def _gemma3(c: Config) -> tuple[Parts, Shape | None]:
    text, shape = _of_text(c, "gemma3_text")
    vision, hidden = c["vision_config"], (c.get("text_config") or c)["hidden_size"]
    v = vision["hidden_size"]
    parts = [
        *text,
        linear(3 * vision["patch_size"] * vision["patch_size"], v, True),
        Layer(_patches(vision) * v),
        *_encoder(v, vision["num_hidden_layers"], vision["intermediate_size"]),
        Layer(2 * v),
        Layer(v * hidden),
        Layer(v),
    ]
    return parts, shape


def _llama4(c: Config) -> tuple[Parts, Shape | None]:
    text, shape = _of_text(c, "llama4_text")
    vision, hidden = c["vision_config"], (c.get("text_config") or c)["hidden_size"]
    v, width = vision["hidden_size"], vision["projector_output_dim"]
    shuffled = int(vision["intermediate_size"])
    parts = [
        *text,
        Layer(v + (_patches(vision) + 1) * v),
        linear(3 * vision["patch_size"] * vision["patch_size"], v),
        *_encoder(v, vision["num_hidden_layers"], vision["intermediate_size"]),
        Layer(2 * v, 2),
        linear(shuffled, vision["projector_input_dim"]),
        linear(vision["projector_input_dim"], width),
        linear(vision["vision_output_dim"], hidden),
    ]
    return parts, shape


def _merger(v: int, out: int, merge: int) -> Parts:
    wide = v * merge * merge
    return [linear(wide, wide, True), linear(wide, out, True)]


def _qwen2_vl(c: Config) -> tuple[Parts, Shape | None]:
    text, shape = _of_text(c, "qwen2")
    vision = c["vision_config"]
    v, n = vision["embed_dim"], vision["depth"]
    pixels = 3 * vision.get("temporal_patch_size", 2) * vision["patch_size"] * vision["patch_size"]
    parts = [
        *text,
        linear(pixels, v),
        linear(v, 3 * v, True, n),
        linear(v, v, True, n),
        linear(v, vision.get("mlp_ratio", 4) * v, True, n),
        linear(vision.get("mlp_ratio", 4) * v, v, True, n),
        Layer(2 * v, 2 * n + 1),
        *_merger(v, vision["hidden_size"], vision.get("spatial_merge_size", 2)),
    ]
    return parts, shape


def _qwen25_vl(c: Config) -> tuple[Parts, Shape | None]:
    text, shape = _of_text(c, "qwen2")
    vision = c["vision_config"]
    v, n, inner = vision["hidden_size"], vision["depth"], vision["intermediate_size"]
    pixels = 3 * vision.get("temporal_patch_size", 2) * vision["patch_size"] * vision["patch_size"]
    parts = [
        *text,
        linear(pixels, v),
        linear(v, 3 * v, True, n),
        linear(v, v, True, n),
        linear(v, inner, True, 2 * n),
        linear(inner, v, True, n),
        Layer(v, 2 * n + 1),
        *_merger(v, vision["out_hidden_size"], vision.get("spatial_merge_size", 2)),
    ]
    return parts, shape


FAMILIES: dict[str, Rule] = {
    **TEXT_FAMILIES,
    "falcon": _falcon,
    "mpt": _mpt,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "gpt_oss": _gpt_oss,
    "llama4_text": _llama4_text,
    "mamba": _mamba,
    "distilbert": _distilbert,
    "electra": _electra,
    "bart": _bart,
    "whisper": _whisper,
    "vit": _vit,
    "clip": _clip,
    "gemma3": _gemma3,
    "llama4": _llama4,
    "qwen2_vl": _qwen2_vl,
    "qwen2_5_vl": _qwen25_vl,
}
"""By `model_type`."""
