"""Compare the config with the hardware of the nodes."""

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
from dslaunch.lint.rules import rule

ZERO = "zero_optimization"
OPTIMIZER_BYTES = 16
"""CPU memory per parameter: weights, two moments and gradients in fp32."""
GROUPS = "DeepSpeed 0.19.8, utils/groups.py"
_OWN_DISK = "use a directory on the local NVMe disk of each node"
_TEST_DIRECTORY = (
    "set storage.node_local to it in the cluster file, and test it: "
    "dslaunch preflight --for zero-infinity --save facts.json"
)


@rule(
    "no-bf16",
    "error",
    "bf16 on GPUs without bf16",
    source="DeepSpeed 0.19.8, runtime/engine.py; compute capability 8.0",
)
def bf16(config: LintedConfig) -> Iterator[Remark]:
    """Report bf16 on GPUs without bf16."""
    without = [node for node in config.nodes if is_one_of(node.gpu, NO_BF16)]
    if without and config.on("bf16.enabled"):
        yield config.error(
            "no-bf16",
            "bf16.enabled",
            f"{_hosts(without)}: {without[0].gpu} has no bf16: torch emulates it slower than fp32, "
            "or DeepSpeed stops with `Type bf16 is not supported on your device`",
            fix="set bf16.enabled to false, and fp16.enabled to true",
        )


@rule(
    "no-tf32",
    "error",
    "`--tf32` on GPUs without TF32",
    source="transformers 5.23, training_args.py",
)
def tf32(config: LintedConfig) -> Iterator[Remark]:
    """Report --tf32 on GPUs without TF32: those without bf16."""
    without = [node for node in config.nodes if is_one_of(node.gpu, NO_BF16)]
    known = config.arguments
    if without and known is not None and config.reader == "hf" and known["tf32"] in (True, 1):
        yield config.error(
            "no-tf32",
            "",
            f"{_hosts(without)}: --tf32 is set, but {without[0].gpu} has no TF32: the Trainer "
            "stops with `--tf32 requires Ampere or a newer GPU arch`",
            fix="remove --tf32",
        )


@rule(
    "pcie-stage3",
    "warning",
    "ZeRO stage 3 over PCIe is slow",
    source="ZeRO paper (arXiv 1910.02054), section 7: 1.5 times the communication",
)
def pcie(config: LintedConfig) -> Iterator[Remark]:
    """Stage 3 gathers all weights in every step, which is slow over PCIe."""
    slow = [node for node in config.nodes if node.slots > 1 and _by_pcie(node)]
    if slow and config.stage == 3:
        yield config.warning(
            "pcie-stage3",
            f"{ZERO}.stage",
            f"{_hosts(slow)}: {slow[0].gpu or 'GPUs'} without NVLink: stage 3 gathers the weights "
            "twice in every step, over PCIe",
            fix="use stage 2, with offload_optimizer if needed, if the weights fit one GPU",
        )


def _by_pcie(node: NodeHardware) -> bool:
    """Return whether the GPUs are connected by PCIe: as measured, or typical of the model."""
    return is_one_of(node.gpu, BY_PCIE) if node.nvlink is None else not node.nvlink


@rule(
    "nvme-directory",
    "error",
    "an `nvme_path` that nodes cannot use",
    source="DeepSpeed's aio opens its files with O_DIRECT (csrc/aio)",
)
def nvme(config: LintedConfig) -> Iterator[Remark]:
    """Check the NVMe directory on each node."""
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
                fix=_OWN_DISK if level != "info" else _TEST_DIRECTORY,
            )


def _unfit(config: LintedConfig, path: str) -> dict[tuple[Level, str], list[NodeHardware]]:
    """Return why the directory cannot be used or is untested, with the nodes."""
    found: dict[tuple[Level, str], list[NodeHardware]] = {}
    for node in config.nodes:
        seen = node.directory(path)
        said = _judged(seen, path) if seen else None
        if said is None and node.directories and not _tried(seen, path):
            said = "info", "is untested: unknown whether files in it can be opened with O_DIRECT"
        if said:
            found.setdefault(said, []).append(node)
    return found


def _tried(seen: DirectoryFacts | None, path: str) -> bool:
    """Return whether the directory itself was tested completely."""
    itself = seen is not None and seen.path.rstrip("/") == path.rstrip("/")
    return itself and seen is not None and seen.direct is not None


def _judged(seen: DirectoryFacts, path: str) -> tuple[Level, str] | None:
    reasons = (
        ("does not exist", seen.exists is False),
        (f"is in CPU memory ({seen.filesystem})", seen.filesystem in ("tmpfs", "ramfs")),
        ("is shared by nodes whose ranks use the same file names", seen.shared),
        ("cannot be opened with O_DIRECT", seen.direct is False),
    )
    why = next((words for words, holds in reasons if holds), None)
    if why is None:
        return None
    # a path below a directory may be a link to another file system
    itself = seen.path.rstrip("/") == path.rstrip("/")
    return ("error", why) if itself else ("warning", f"is below {seen.path}, which {why}")


@rule(
    "cpu-memory",
    "error",
    "the offloaded optimizer needs more CPU memory than a node has",
    source="ZeRO-Offload: 16 bytes per parameter",
)
def memory(config: LintedConfig) -> Iterator[Remark]:
    """Compare the CPU memory of nodes with what the offloaded optimizer needs."""
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
            f"{_hosts(nodes)}: the optimizer states of a node need {need / 2**30:.0f} GiB, but it "
            f"has {there / 2**30:.0f} GiB of CPU memory",
            fix='use more nodes, or device "nvme"',
        )


@rule("hpz", "error", "a ZeRO++ hpZ partition that is not the GPUs of one node", source=GROUPS)
@rule(
    "quantised-groups",
    "error",
    "quantized gradients with some GPUs unused or uneven nodes",
    source=GROUPS,
)
def groups(config: LintedConfig) -> Iterator[Remark]:
    """hpZ and quantized gradients divide the ranks into groups."""
    where, nodes = config.parallelism, config.nodes
    path = f"{ZERO}.zero_hpz_partition_size"
    size = config.get(path)
    if where is not None and isinstance(size, int) and size > 1:
        if where.world % min(size, where.world):
            message = f"{where.world} ranks are not a multiple of {size}: DeepSpeed stops"
            yield config.error("hpz", path, message, fix="set it to the number of GPUs per node")
        elif nodes and any(node.slots != size for node in nodes):
            slots = ", ".join(sorted({str(node.slots) for node in nodes}))
            message = f"groups of {size} ranks on nodes with {slots} ranks: they use the network"
            yield config.warning("hpz", path, message, fix="set it to the number of GPUs per node")
    yield from _quantised(config)


def _quantised(config: LintedConfig) -> Iterator[Remark]:
    path = f"{ZERO}.zero_quantized_gradients"
    partial = [n for n in config.nodes if n.gpus is not None and n.slots != n.gpus]
    uneven = len({node.slots for node in config.nodes}) > 1
    if not config.on(path) or not (partial or uneven):
        return
    if uneven:
        message = "nodes have different numbers of ranks"
    else:
        message = f"{_hosts(partial)}: {partial[0].slots} of {partial[0].gpus} GPUs in use"
    message += ", but DeepSpeed forms the groups from all GPUs that a process sees"
    yield config.error("quantised-groups", path, message, fix="use all GPUs of every node")


def _hosts(nodes: list[NodeHardware]) -> str:
    return fold([node.host for node in nodes])
