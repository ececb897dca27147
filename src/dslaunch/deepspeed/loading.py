"""Which classes and functions a checkpoint's files may name. Pure.

To load a file of torch.save is to call what it names, with arguments that it gives. Those listed
here build values and do nothing else: torch's own list for `weights_only=True`, and what DeepSpeed
0.19.8 and common client states add to it. fp16, bf16 and fp32 of all ZeRO stages hold no others.
"""

from __future__ import annotations

from collections.abc import Iterable

_TYPES = [
    "Size",
    "Tensor",
    "device",
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
    "complex32",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e5m2",
]
_STORAGES = [
    "Double",
    "Float",
    "Half",
    "BFloat16",
    "Long",
    "Int",
    "Short",
    "Char",
    "Byte",
    "Bool",
    "ComplexDouble",
    "ComplexFloat",
]
_REBUILD = [
    "tensor",
    "tensor_v2",
    "tensor_v3",
    "parameter",
    "parameter_with_state",
    "sparse_tensor",
    "meta_tensor_no_storage",
    "device_tensor_from_numpy",
    "device_tensor_from_cpu_tensor",
]
_OTHERS = [
    "torch._tensor._rebuild_from_type_v2",
    "torch.nn.parameter.Parameter",
    "torch.serialization._get_layout",
    "torch.storage.UntypedStorage",
    "collections.OrderedDict",
    "collections.Counter",
    "_codecs.encode",
    "builtins.set",
    "builtins.bytearray",
    "builtins.complex",
    "__builtin__.set",
    "__builtin__.bytearray",
    "__builtin__.complex",
]
TORCH = frozenset(
    [f"torch.{name}" for name in _TYPES]
    + [f"torch.{name}Storage" for name in _STORAGES]
    + [f"torch._utils._rebuild_{name}" for name in _REBUILD]
    + _OTHERS
)
"""What torch loads with `weights_only=True`."""
MORE = frozenset(
    [
        "deepspeed.runtime.fp16.loss_scaler.LossScaler",
        "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
        "deepspeed.runtime.zero.config.ZeroStageEnum",
        "deepspeed.utils.tensor_fragment.fragment_address",
        "numpy.dtype",
        "numpy.ndarray",
        "numpy._core.multiarray._reconstruct",
        "numpy.core.multiarray._reconstruct",
        "numpy._core.multiarray.scalar",
        "numpy.core.multiarray.scalar",
        "argparse.Namespace",
        "pathlib.PosixPath",
        "pathlib._local.PosixPath",
        "builtins.frozenset",
        "__builtin__.frozenset",
    ]
)
"""What torch must be allowed to load in addition."""


def unknown(names: Iterable[Iterable[str]]) -> list[str]:
    """Return those of a file's names, pairs of a module and a name in it, that are not listed."""
    written = (".".join(pair) for pair in names)
    return sorted(name for name in written if name not in TORCH and name not in MORE)
