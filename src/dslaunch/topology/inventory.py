"""Parse what nvidia-smi reports about GPUs besides the matrix; other lines are skipped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from dslaunch.topology.model import Gpu
from dslaunch.topology.nvlink import nvlink_status

LONGEST_NAME = 100
_LISTED = re.compile(r"^GPU ([0-9]{1,4}): (.+?) \(UUID: ", re.MULTILINE)
_MIG = re.compile(r"^\s+MIG \S+\s+Device\s+\d+:")
_UUID = re.compile(r"\(UUID: [^()\n]{0,80}\)")
_P2P = re.compile(r"OK|CNS|GNS|TNS|NS|U|DR")


class ListedGpu(Struct, frozen=True):
    """A GPU of `nvidia-smi -L`."""

    name: str
    mig: int
    """Number of its MIG devices."""


def gpu_list(text: str) -> dict[int, ListedGpu]:
    """Parse `nvidia-smi -L`, by index."""
    found: dict[int, ListedGpu] = {}
    index = None
    for line in text.splitlines():
        if gpu := _LISTED.match(line):
            index = int(gpu[1])
            found[index] = ListedGpu(gpu[2][:LONGEST_NAME], 0)
        elif _MIG.match(line) and index is not None:
            found[index] = replace(found[index], mig=found[index].mig + 1)
        elif line.startswith("GPU"):
            index = None
    return found


def gpu_query(text: str) -> dict[int, dict[str, str]]:
    """Parse `--query-gpu=index,... --format=csv` with its header, by index; values without
    units."""
    lines = text.splitlines()
    at = next((n for n, line in enumerate(lines) if re.match(r"index[ \t]*,", line)), len(lines))
    # no CSV parser: nvidia-smi does not quote, and no model has a comma in its name
    cells = [[cell.strip() for cell in line.split(",")] for line in lines[at:]]
    head = [title.partition(" [")[0] for title in cells[0]] if cells else []
    found: dict[int, dict[str, str]] = {}
    for row in cells[1:]:
        if len(row) == len(head) and re.fullmatch(r"[0-9]{1,4}", row[0]):
            values = zip(head, row, strict=True)
            found[int(row[0])] = {title: cell for title, cell in values if _known(cell)}
    return found


def _known(value: str) -> bool:
    """Return whether a cell has a value: unknown ones are `N/A` or in brackets."""
    return bool(value) and value != "N/A" and not value.startswith("[")


def without_uuids(text: str) -> str:
    """Return a text without UUIDs, so that nodes with equal GPUs have equal texts."""
    return _UUID.sub("(UUID: )", text)


def p2p(text: str) -> dict[tuple[str, str], str] | None:
    """Parse `nvidia-smi topo -p2p r`; None: it could not be parsed.

    Unlike in `topo -m`, rows are indented and the diagonal is a bare `X`. A pair counts if both of
    its cells agree.
    """
    rows = [words for line in text.splitlines() if _p2p_row(words := line.split())]
    labels = [words[0] for words in rows]
    if not rows or labels != [f"GPU{i}" for i in range(len(rows))]:
        return None
    if any(len(words) != len(rows) + 1 or words[i + 1] != "X" for i, words in enumerate(rows)):
        return None
    pairs = [(a, b) for a in range(len(rows)) for b in range(a + 1, len(rows))]
    return {
        (labels[a], labels[b]): rows[a][b + 1] for a, b in pairs if rows[a][b + 1] == rows[b][a + 1]
    }


def _p2p_row(words: list[str]) -> bool:
    if len(words) < 2 or not re.fullmatch(r"GPU[0-9]{1,4}", words[0]) or words.count("X") != 1:
        return False
    return all(word == "X" or _P2P.fullmatch(word) for word in words[1:])


def described(gpus: Iterable[Gpu], answers: Mapping[str, str]) -> tuple[Gpu, ...]:
    """Return the GPUs with the facts of the other answers."""
    listed = gpu_list(answers.get("gpu_list", ""))
    asked = gpu_query(answers.get("gpu_query", ""))
    links = nvlink_status(answers.get("nvlink", "")).gpus
    return tuple(
        _described(gpu, listed.get(gpu.index), asked.get(gpu.index, {}), links.get(gpu.index, {}))
        for gpu in gpus
    )


def _described(
    gpu: Gpu, listed: ListedGpu | None, asked: Mapping[str, str], speeds: Mapping[int, float]
) -> Gpu:
    memory = re.match(r"[0-9]{1,9}", asked.get("memory.total", ""))
    return replace(
        gpu,
        name=asked.get("name", "")[:LONGEST_NAME] or (listed.name if listed else None),
        memory=int(memory[0]) if memory else None,
        bus=asked.get("pci.bus_id"),
        driver=asked.get("driver_version"),
        mig=listed.mig if listed else None,
        nvlinks=(sum(speed > 0 for speed in speeds.values()), len(speeds)) if speeds else None,
    )
