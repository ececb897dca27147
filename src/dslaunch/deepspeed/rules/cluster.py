"""The config against what the nodes are and have."""

from __future__ import annotations

from collections.abc import Iterator

from dslaunch.cluster.nodeset import fold
from dslaunch.deepspeed.hardware import (
    BY_PCIE,
    NO_BF16,
    DirectoryFacts,
    NodeHardware,
    is_one_of,
)
from dslaunch.deepspeed.linted_config import LintedConfig
from dslaunch.lint import Level, Remark

ZERO = "zero_optimization"
OPTIMIZER_BYTES = 16
"""Of CPU memory per parameter: the weights, two moments and the gradients in fp32."""
GROUPS = "DeepSpeed 0.19.8, utils/groups.py"


def bf16(config: LintedConfig) -> Iterator[Remark]:
    """bf16 on GPUs that have none."""
    without = [node for node in config.nodes if is_one_of(node.gpu, NO_BF16)]
    if without and config.on("bf16.enabled"):
        yield config.error(
            "no-bf16",
            "bf16.enabled",
            f"{_hosts(without)}: {without[0].gpu} has no bf16; torch emulates it, slower than "
            "fp32, or DeepSpeed stops with `Type bf16 is not supported on your device`",
            fix="use fp16",
            source="DeepSpeed 0.19.8, runtime/engine.py; compute capability 8.0",
        )


def tf32(config: LintedConfig) -> Iterator[Remark]:
    """--tf32 on GPUs that have none: those that have no bf16."""
    without = [node for node in config.nodes if is_one_of(node.gpu, NO_BF16)]
    known = config.arguments
    if without and known is not None and config.reader == "hf" and known["tf32"] in (True, 1):
        yield config.error(
            "no-tf32",
            "",
            f"{_hosts(without)}: {without[0].gpu} has no tf32, and --tf32 is given: the Trainer "
            "stops with `--tf32 requires Ampere or a newer GPU arch`",
            fix="leave --tf32 out",
            source="transformers 5.23, training_args.py",
        )


def pcie(config: LintedConfig) -> Iterator[Remark]:
    """Stage 3 gathers all weights in every step, which PCIe makes slow."""
    slow = [node for node in config.nodes if node.slots > 1 and _by_pcie(node)]
    if slow and config.stage == 3:
        yield config.warning(
            "pcie-stage3",
            f"{ZERO}.stage",
            f"{_hosts(slow)}: {slow[0].gpu or 'GPUs'} by PCIe, and stage 3 gathers the weights "
            "twice in every step",
            fix="stage 2 with offload_optimizer, where the weights fit one GPU",
            source="ZeRO paper (arXiv 1910.02054), section 7: 1.5 times the communication",
        )


def _by_pcie(node: NodeHardware) -> bool:
    """As the node's matrix of links says, and else as such GPUs usually are."""
    return is_one_of(node.gpu, BY_PCIE) if node.nvlink is None else not node.nvlink


def nvme(config: LintedConfig) -> Iterator[Remark]:
    """The directory for NVMe, as each node has it."""
    for name in ("offload_param", "offload_optimizer"):
        path = config.raw(f"{ZERO}.{name}.nvme_path")
        if config.get(f"{ZERO}.{name}.device") != "nvme" or not isinstance(path, str):
            continue
        for (level, why), hosts in _unfit(config, path).items():
            yield config.remark(
                "nvme-directory",
                level,
                f"{ZERO}.{name}.nvme_path",
                f"{_hosts(hosts)}: {path} {why}",
                fix="name one on each node's own NVMe disk"
                if level != "info"
                else "set storage.node_local to it in the cluster file, and ask: "
                "dslaunch preflight --for zero-infinity --save facts.json",
                source="DeepSpeed's aio opens its files with O_DIRECT (csrc/aio)",
            )


def _unfit(config: LintedConfig, path: str) -> dict[tuple[Level, str], list[NodeHardware]]:
    """Why the directory does not do, and on which nodes; what nobody asked is said as well."""
    found: dict[tuple[Level, str], list[NodeHardware]] = {}
    for node in config.nodes:
        seen = node.directory(path)
        said = _judged(seen, path) if seen else None
        if said is None and node.directories and not _tried(seen, path):
            said = "info", "was not tried: whether files there can be opened with O_DIRECT"
        if said:
            found.setdefault(said, []).append(node)
    return found


def _tried(seen: DirectoryFacts | None, path: str) -> bool:
    """Whether the answer is of the directory itself, and whole."""
    itself = seen is not None and seen.path.rstrip("/") == path.rstrip("/")
    return itself and seen is not None and seen.direct is not None


def _judged(seen: DirectoryFacts, path: str) -> tuple[Level, str] | None:
    reasons = (
        ("is not there", seen.exists is False),
        (f"is in memory ({seen.filesystem})", seen.filesystem in ("tmpfs", "ramfs")),
        ("is shared with other nodes, whose ranks use the same file names", seen.shared),
        ("cannot be opened with O_DIRECT", seen.direct is False),
    )
    why = next((words for words, holds in reasons if holds), None)
    if why is None:
        return None
    # what is below a directory may be a link to elsewhere
    itself = seen.path.rstrip("/") == path.rstrip("/")
    return ("error", why) if itself else ("warning", f"is below {seen.path}, which {why}")


def memory(config: LintedConfig) -> Iterator[Remark]:
    """The CPU memory that an offloaded optimizer needs."""
    device = config.get(f"{ZERO}.offload_optimizer.device")
    if device != "cpu" or config.parameters is None or not config.nodes or not config.stage:
        return
    world = sum(node.slots for node in config.nodes)
    short: dict[tuple[float, float], list[NodeHardware]] = {}
    for node in config.nodes:
        need = OPTIMIZER_BYTES * config.parameters * node.slots / world
        if node.memory is not None and need > node.memory:
            short.setdefault((node.memory, need), []).append(node)
    for (there, need), nodes in short.items():
        yield config.error(
            "cpu-memory",
            f"{ZERO}.offload_optimizer.device",
            f"{_hosts(nodes)}: {there / 2**30:.0f} GiB of CPU memory, and a node's part of the "
            f"optimizer needs {need / 2**30:.0f} GiB",
            fix="more nodes, or NVMe",
            source="ZeRO-Offload: 16 bytes per parameter",
        )


def groups(config: LintedConfig) -> Iterator[Remark]:
    """hpZ and quantised gradients divide the ranks into groups."""
    where, nodes = config.parallelism, config.nodes
    path = f"{ZERO}.zero_hpz_partition_size"
    size = config.get(path)
    if where is not None and isinstance(size, int) and size > 1:
        if where.world % min(size, where.world):
            message = (
                f"{where.world} ranks cannot be divided into groups of {size}: DeepSpeed stops"
            )
            yield config.error("hpz", path, message, fix="the GPUs of a node", source=GROUPS)
        elif nodes and any(node.slots != size for node in nodes):
            slots = ", ".join(sorted({str(node.slots) for node in nodes}))
            message = f"groups of {size} on nodes with {slots} ranks go over the network"
            yield config.warning("hpz", path, message, fix="the GPUs of a node", source=GROUPS)
    yield from _quantised(config)


def _quantised(config: LintedConfig) -> Iterator[Remark]:
    path = f"{ZERO}.zero_quantized_gradients"
    partial = [n for n in config.nodes if n.gpus is not None and n.slots != n.gpus]
    uneven = len({node.slots for node in config.nodes}) > 1
    if not config.on(path) or not (partial or uneven):
        return
    if uneven:
        message = "nodes differ in their number of ranks"
    else:
        message = f"{_hosts(partial)}: {partial[0].slots} of {partial[0].gpus} GPUs are used"
    message += ", and the groups are made of all GPUs that a process sees"
    yield config.error(
        "quantised-groups", path, message, fix="use all GPUs of every node", source=GROUPS
    )


def _hosts(nodes: list[NodeHardware]) -> str:
    return fold([node.host for node in nodes])


NAMES = (
    "cpu-memory",
    "hpz",
    "no-bf16",
    "no-tf32",
    "nvme-directory",
    "pcie-stage3",
    "quantised-groups",
)
RULES = (bf16, tf32, pcie, nvme, memory, groups)
