"""How far a training is, by what its ranks print.

Known texts: the records and bars of Hugging Face's Trainer, tqdm, Lightning, DeepSpeed,
Megatron-LM, NeMo, torchtitan, torchtune, nanoGPT, JSON lines, and plain `step 10/100 loss 2.1`. The
cluster file adds others (`progress:`). Rules where texts are ambiguous:

- A step counts only beside another figure of a training, such as a loss, a learning rate or a
  speed; or if the line has nothing else. `Step 3/12 : RUN pip install` is no progress.
- Evaluation, downloads and data preparation are no progress: `eval_loss`, `Map: 50%`.
- A bar without a name is the training's, unless another unnamed bar with a different total is not
  complete: evaluation inside a training draws such bars.
- A line that names an epoch counts the steps within that epoch: its total is not `last_step`.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from dslaunch.cluster.progress_format import LONGEST_LINE
from dslaunch.terminal import without_color

if TYPE_CHECKING:
    from dslaunch.run.events import Line, LineBlock

LONGEST = 1000
"""Characters of a line that are read; records of trainings are shorter."""
PENDING = 32
"""Lines of a rank that wait until the progress is requested; older ones are dropped."""
MOST_READ = 1000
"""Lines of ranks that have printed no progress which are read at a time: some 20 ms."""
RECENT_STEPS = 20
"""Steps from whose times the time of one step is computed."""
LARGEST_COUNT = 10**15
"""A larger step, epoch or speed is impossible."""
LARGEST_LOSS = 1e100
"""A larger finite loss is impossible; differences of losses stay finite."""


class Progress(Struct, frozen=True):
    """What output says about a training. None: it does not say."""

    step: int | None = None
    """The optimizer step that was finished, from 1 or 0 as the training counts."""
    last_step: int | None = None
    """The step after which the training ends."""
    epoch: float | None = None
    loss: float | None = None
    """NaN if the training printed `nan`."""
    steps_per_second: float | None = None
    tokens_per_second: float | None = None
    """As printed: of all ranks or of one GPU."""
    samples_per_second: float | None = None

    def updated(self, newer: Progress) -> Progress:
        """Return this with the values that `newer` has."""
        said = asdict(newer)
        return replace(self, **{name: value for name, value in said.items() if value is not None})

    def as_data(self) -> dict[str, Any]:
        """Return the values that are known, for JSON, which has no NaN: such a loss is null."""
        known = {name: value for name, value in asdict(self).items() if value is not None}
        return {name: value if math.isfinite(value) else None for name, value in known.items()}


def possible(progress: Progress) -> Progress | None:
    """Return progress without the values that no training can have; None: nothing is left.

    A loss may be NaN or infinite, as of a training that diverges. A last step before the step is
    that of another loop.
    """
    step, last, loss = progress.step, progress.last_step, progress.loss
    if step is not None and not 0 <= step <= LARGEST_COUNT:
        step = None
    if last is not None and (step is None or not step <= last <= LARGEST_COUNT):
        last = None
    if loss is not None and math.isfinite(loss) and abs(loss) > LARGEST_LOSS:
        loss = None
    kept = Progress(
        step=step,
        last_step=last,
        epoch=_not_negative(progress.epoch),
        loss=loss,
        steps_per_second=_speed(progress.steps_per_second),
        tokens_per_second=_speed(progress.tokens_per_second),
        samples_per_second=_speed(progress.samples_per_second),
    )
    return None if kept == Progress() else kept


def _not_negative(value: float | None) -> float | None:
    return value if value is not None and 0 <= value <= LARGEST_COUNT else None


def _speed(value: float | None) -> float | None:
    """Return a speed; one that a training cannot have in its lifetime, such as 1e-300, is none."""
    return value if value is not None and 1 / LARGEST_COUNT <= value <= LARGEST_COUNT else None


# ---------------------------------------------------------------- texts

_NUMBER = (
    r"[-+]?(?:\d{1,15}(?:,\d{3}){0,4}(?:\.\d{1,20})?|\.\d{1,20})(?:e[-+]?\d{1,3})?(?![\w%]|\.\d)"
)
_PER_SECOND = r"(?:_per_|/| per )(?:second|sec|s)"
_IS = r"[\"']?\s{0,8}(?:[:=|]\s{0,8})?[\"'(\[]{0,2}"
"""Between a name and its number: `loss: 1`, `loss=1`, `"loss": "1"`, `loss 1`."""
_STEP = re.compile(
    r"(?<![\w.-])(?P<global>global[ _])?(?:train(?:ing)?[ _/])?(?:step|iter(?:ation)?)"
    r"(?:[\"']?\s{0,8}[:=]\s{0,8}|\s{1,8})[\"'\[]?(?P<step>\d{1,3}(?:,\d{3}){1,4}|\d{1,15})"
    r"(?:\s{0,4}/\s{0,8}(?P<last>\d{1,15}))?(?![\w%])(?!\.\d)",
    re.IGNORECASE,
)
_LOSS = re.compile(
    r"(?<![\w/.-])(?<!val )(?<!eval )(?<!test )(?<!valid )(?<!validation )(?<!evaluation )"
    r"(?:(?:reduced_)?(?:train(?:ing)?|lm|total|batch|avg|average|mean|running)[ _/])?"
    rf"loss(?! scale)(?: train)?{_IS}(?P<loss>{_NUMBER}|nan\b|-?inf\b)",
    re.IGNORECASE,
)
_EPOCH = re.compile(
    rf"(?<![\w/.-])epoch{_IS}(?P<epoch>{_NUMBER})(?:\s{{0,2}}/\s{{0,2}}\d{{1,9}})?", re.IGNORECASE
)
_EPOCH_STEP = re.compile(
    r"(?<![\w/.-])epoch:? {0,4}\[?(?P<epoch>\d{1,9})\]? {0,4}\[ {0,8}(?P<step>\d{1,15})/\d{1,15}",
    re.IGNORECASE,
)
"""torchvision's `Epoch: [0][ 415/1736]` and the MNIST example's `Train Epoch: 1 [640/60000`."""
_BAR = re.compile(
    r"(?<!\d)\d{1,3}%(?:\|[^|]{0,400}\|| ) {0,4}(?P<step>\d{1,15})/(?P<total>\d{1,15}) "
    r"\[[\d:]{4,12}<[\d:?]{1,12}, {0,8}(?P<rate>\d{1,12}(?:\.\d{1,6})?|\?)"
    r" ?(?P<unit>(?:it|step|iter|batch)(?:es|s)?/s|s/(?:it|step|iter|batch))"
)
_RICH_BAR = re.compile(
    r"(?<![━╸╺])[━╸╺]{1,400} {1,4}(?P<step>\d{1,15})/(?P<total>\d{1,15}) {1,8}"
    r"\d[\d:]{3,12} • (?:[\d:-]{1,12})? {1,12}(?P<rate>\d{1,12}(?:\.\d{1,6})?)(?P<unit>it/s)"
)
"""Lightning's `RichProgressBar`, which it chooses where rich is installed (2.6)."""
_FIGURES = re.compile(
    rf"(?<!Curr)(?P<name>tps|tok(?:en)?s?{_PER_SECOND}|samples?{_PER_SECOND}|steps?{_PER_SECOND}"
    r"|(?:RunningAvg)?SamplesPerSec|elapsed time per iteration \(ms\)|train_step_timing in s"
    r"|(?<=, )time)"
    rf"(?:_per_gpu)?{_IS}(?P<value>{_NUMBER}|\d{{1,12}}(?:\.\d{{1,6}})?ms\b)",
    re.IGNORECASE,
)
_COMPANION = re.compile(
    r"\b(?:lr|learning[ _]rate|grad[ _]norm|skipped|mfu)[\"']?\s{0,8}[:=]", re.IGNORECASE
)
_OTHER_WORK = re.compile(
    r"\b(?:e?val(?:id(?:ation)?|uat\w{0,6})?|test(?:ing)?|sanity|load(?:ing)?|download\w{0,4}"
    r"|fetch(?:ing)?|map|filter|tokeniz\w{0,4}|generating|saving|writing|predict\w{0,4}|convert\w{0,4}"
    r"|packing|preprocess\w{0,4}|resolving|shards?|files?|weights?)\b",
    re.IGNORECASE,
)
"""Names of bars that are not the training's."""
_TRAINING = re.compile(r"train|epoch|step|iter|progress|loss", re.IGNORECASE)
_LONE_STEP = re.compile(r"\W{0,8}step[ :=]{1,4}\d{1,15}(?:/\d{1,15})?\W{0,4}", re.IGNORECASE)


def may_tell(text: str) -> bool:
    """Return whether a line can have progress: `loss`, `Step`, `iter`, a bar, `Epoch`.

    Cheap, since it is called for every line of output: a regular expression, or lower case for the
    first letters, takes several times as long.
    """
    return (
        "oss" in text
        or "tep" in text
        or "iter" in text
        or "Iter" in text
        or "%|" in text
        or "poch" in text
    )


class ProgressReader:
    """Reads the lines of one rank; it knows the training's bar among those of evaluations."""

    def __init__(self, formats: Sequence[re.Pattern[str]] = ()) -> None:
        """`formats`: those of the cluster file, which come first."""
        self._formats = formats
        self._bar: tuple[int, int] | None = None
        """Step and total of the unnamed bar that is the training's."""

    def read(self, text: str) -> Progress | None:
        """Return the progress that the next line shows; None if it shows none."""
        found = _read(text, self._formats)
        if found is None or not self._is_training(found):
            return None
        return found.progress

    def _is_training(self, found: _Found) -> bool:
        if found.total is None:
            return True
        known = self._bar
        if known is not None and known[1] != found.total and known[0] < known[1]:
            return False
        self._bar = found.progress.step or 0, found.total
        return True


class _Found(Struct, frozen=True):
    """The progress in one line."""

    progress: Progress
    total: int | None = None
    """The total of an unnamed bar, by which it is recognized; None: the line has another origin."""


def _read(text: str, formats: Sequence[re.Pattern[str]]) -> _Found | None:
    """Return the progress in a line, without impossible values; None: it has none."""
    found = _said(text, formats)
    if found is None:
        return None
    progress = possible(found.progress)
    return None if progress is None else replace(found, progress=progress)


def _said(text: str, formats: Sequence[re.Pattern[str]]) -> _Found | None:
    """Read a line as it is, with impossible values."""
    line = without_color(text[:LONGEST])
    given = _by_formats(line, formats)
    if given is not None:
        return _Found(given)
    if not may_tell(line):
        return None
    bar = _BAR.search(line) or _RICH_BAR.search(line)
    if bar is None:
        written = _written(line, at_bar=False)
        return None if written is None else _Found(written)
    found = _bar(line, bar)
    if found is None:
        return None
    beside = line[: bar.start()] + line[bar.end() :]
    written = _written(beside, at_bar=True)
    if written is None:
        return found
    return replace(found, progress=found.progress.updated(written))


def _by_formats(line: str, formats: Sequence[re.Pattern[str]]) -> Progress | None:
    """Return what the first format of the cluster file finds in a line."""
    for pattern in formats:
        match = pattern.search(line[:LONGEST_LINE])
        progress = None if match is None else _of_format(match)
        if progress is not None:
            return progress
    return None


def _bar(line: str, bar: re.Match[str]) -> _Found | None:
    """Read a progress bar of tqdm or rich; None: it is not the training's."""
    name = line[: bar.start()].strip(" \t\r:")
    if name and (_OTHER_WORK.search(name) or not _TRAINING.search(name + line[bar.end() :])):
        return None
    total = int(bar["total"])
    rate = None if bar["rate"] == "?" else float(bar["rate"])
    if rate and bar["unit"].startswith("s/"):
        rate = 1 / rate
    in_epoch = "epoch" in name.lower() or "|" in name
    progress = Progress(
        step=int(bar["step"]),
        last_step=None if in_epoch else total,
        epoch=_first(_EPOCH, "epoch", name),
        steps_per_second=rate or None,
    )
    return _Found(progress, None if name else total)


def _written(line: str, *, at_bar: bool) -> Progress | None:
    """Read what is written as names with numbers; `at_bar`: beside the training's bar."""
    figures: dict[str, Any] = {}
    for name, value in _figures(line):
        figures.setdefault(name, value)
    loss = _first(_LOSS, "loss", line)
    epoch = _first(_EPOCH, "epoch", line)
    if "train_samples_per_second" in line:
        # the last record of Hugging Face's Trainer: averages of the whole training
        return None if epoch is None else Progress(epoch=epoch)
    within = _EPOCH_STEP.search(line)
    if within is not None:
        if loss is None:
            return None
        return Progress(int(within["step"]), epoch=float(within["epoch"]), loss=loss)
    step, last = _step(line, in_epoch=epoch is not None)
    is_record = at_bar or epoch is not None or line.lstrip().startswith("{")
    beside = loss is not None or bool(figures) or _COMPANION.search(line) is not None
    if step is None:
        if loss is None or not is_record:
            return None
        return Progress(epoch=epoch, loss=loss, **figures)
    if not beside and not _LONE_STEP.fullmatch(line):
        return None
    return Progress(step, last, epoch=epoch, loss=loss, **figures)


def _step(line: str, *, in_epoch: bool) -> tuple[int | None, int | None]:
    """Return the step and the last one. A global step stands before one within an epoch."""
    found = list(_STEP.finditer(line))
    if not found:
        return None, None
    chosen = next((match for match in found if match["global"]), found[-1])
    step = _number_of(chosen)
    within_epoch = in_epoch and chosen["global"] is None
    if within_epoch:
        return step, None
    lasts = (int(match["last"]) for match in found if match["last"] and _number_of(match) == step)
    return step, next(lasts, None)


def _number_of(step: re.Match[str]) -> int:
    return int(step["step"].replace(",", ""))


def _figures(line: str) -> Iterator[tuple[str, float]]:
    """Yield the speeds of a line, by the names of Progress."""
    for match in _FIGURES.finditer(line):
        name, text = match["name"].lower(), match["value"].lower()
        value = float(text.removesuffix("ms").replace(",", ""))
        if value <= 0:
            continue
        if name == "time":  # nanoGPT's `iter 10: loss 2.1, time 561.94ms`
            if text.endswith("ms") and line.startswith("iter "):
                yield "steps_per_second", 1000 / value
        elif name.startswith("elapsed"):
            yield "steps_per_second", 1000 / value
        elif name.startswith("train_step_timing"):
            yield "steps_per_second", 1 / value
        elif name.startswith("step"):
            yield "steps_per_second", value
        elif name.startswith(("sample", "running")):
            yield "samples_per_second", value
        else:
            yield "tokens_per_second", value


def _first(pattern: re.Pattern[str], name: str, text: str) -> float | None:
    match = pattern.search(text)
    return None if match is None else float(match[name].replace(",", ""))


# ---------------------------------------------------------------- formats of the cluster file


def _of_format(match: re.Match[str]) -> Progress | None:
    """Return the values of the named groups; None: a number is none."""
    values: dict[str, Any] = {}
    for name, text in match.groupdict().items():
        if text is None:
            continue
        try:
            number = float(text.replace(",", ""))
            values[name] = int(number) if name in ("step", "last_step") else number
        except (ValueError, OverflowError):
            return None
    return Progress(**values) if values else None


# ---------------------------------------------------------------- a run


class _Rank(Struct):
    """The lines and the progress of one rank."""

    reader: ProgressReader
    pending: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=PENDING))
    progress: Progress | None = None
    steps: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    """Time and number of the newest steps."""

    def read(self) -> None:
        """Read the lines that wait."""
        while self.pending:
            when, text = self.pending.popleft()
            progress = self.reader.read(text)
            if progress is not None:
                self._take(when, progress)

    def _take(self, when: float, progress: Progress) -> None:
        self.progress = (self.progress or Progress()).updated(progress)
        if progress.step is None:
            return
        if self.steps and progress.step < self.steps[-1][1]:
            self.steps.clear()  # the next epoch, or a restart
        if not self.steps or progress.step > self.steps[-1][1]:
            self.steps.append((when, progress.step))
        if progress.steps_per_second is None:
            measured = Progress(steps_per_second=self._steps_per_second())
            self.progress = self.progress.updated(measured)

    def _steps_per_second(self) -> float | None:
        """Return the speed by the times of the newest lines; None: unknown, or impossible."""
        if len(self.steps) < 2:
            return None
        began, first = self.steps[0]
        ended, last = self.steps[-1]
        seconds = ended - began
        return _speed((last - first) / seconds) if seconds > 0 else None


class RunProgress:
    """The newest progress of every rank of a run.

    A line is kept by `note`, which is cheap, and read when the progress is asked for.
    """

    def __init__(self, formats: Sequence[str] = ()) -> None:
        """`formats`: the valid regular expressions of `Cluster.progress`."""
        self._formats = tuple(map(re.compile, formats))
        self._ranks: dict[int, _Rank] = {}
        self._printing: set[int] = set()
        """The ranks that have printed progress, as far as their lines were read."""
        self._unread: dict[int, None] = {}
        """The other ranks with lines that wait, those whose wait began first at first."""

    def note(self, line: Line) -> None:
        """Take a line of a rank's output."""
        text = line.text
        if not may_tell(text) and not (self._formats and self._has_format(text)):
            return
        rank = line.rank
        if rank is None:
            return
        known = self._ranks.get(rank)
        if known is None:
            known = self._ranks[rank] = _Rank(ProgressReader(self._formats))
        known.pending.append((line.time, text))
        if rank not in self._printing:
            self._unread[rank] = None

    def note_block(self, block: LineBlock) -> None:
        """Take several lines of a rank's output."""
        if self._formats or may_tell(block.text):
            for line in block:
                self.note(line)

    def of(self, rank: int) -> Progress | None:
        """Return the progress of a rank; None: it has printed none."""
        known = self._ranks.get(rank)
        if known is None:
            return None
        known.read()
        return known.progress

    @property
    def by_rank(self) -> dict[int, Progress]:
        """Return the progress of every rank that prints any."""
        found = {rank: self.of(rank) for rank in sorted(self._ranks)}
        return {rank: progress for rank, progress in found.items() if progress is not None}

    @property
    def latest(self) -> Progress | None:
        """Return the progress of the lowest rank that prints any; None: no rank does.

        Of ranks that have printed none so far, MOST_READ lines are read at a time: those of
        thousands of ranks may look like progress and have none.
        """
        left = MOST_READ
        while self._unread and left > 0:
            rank = next(iter(self._unread))
            del self._unread[rank]
            left -= len(self._ranks[rank].pending)
            if self.of(rank) is not None:
                self._printing.add(rank)
        return self.of(min(self._printing)) if self._printing else None

    def latest_of_all(self) -> Progress | None:
        """Return the progress of the lowest rank that prints any, by all lines that have come, for
        those who ask once; None: no rank does."""
        each = (self.of(rank) for rank in sorted(self._ranks))
        return next((progress for progress in each if progress is not None), None)

    def _has_format(self, text: str) -> bool:
        return any(pattern.search(text[:LONGEST_LINE]) for pattern in self._formats)
