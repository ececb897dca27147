"""What is known of the training of this process: a part of `hook_rehearsal.py`."""

TYPE_CHECKING = False
if TYPE_CHECKING:  # why not `typing`: see paths.py
    from typing import Any, Dict, List, Optional, Set


class Training:
    """The model, the optimizers and their steps so far."""

    def __init__(self) -> None:
        self.engine: Any = None
        """The DeepSpeed engine: its steps count, not those of the optimizers inside."""
        self.in_engine = False
        """Whether the engine is making its step."""
        self.stepped_past = False
        """Whether it is noted that the script steps the optimizer of the engine itself."""
        self.model: Any = None
        """The module that was wrapped last."""
        self.wrapped: List[Any] = []
        """Weak references to all modules that DistributedDataParallel has wrapped."""
        self.divided: List[Any] = []
        """Weak references to the FullyShardedDataParallel modules whose gradients are divided among
        the ranks."""
        self.clips_parts = False
        """Whether it is noted that such gradients are clipped by the norm of this rank's part."""
        self.scaler: Any = None
        """The gradient scaler that has scaled a loss, and not yet unscaled gradients since then."""
        self.scales = False
        """Whether a gradient scaler has scaled a loss: it may leave out steps of an optimizer."""
        self.clips_scaled = False
        """Whether it is noted that gradients are clipped while they are scaled."""
        self.updates = 0
        """Updates of gradient scalers."""
        self.scale_fell = False
        """Whether it is noted that a scale has fallen below 1."""
        self.optimizers: List[Any] = []
        """Weak references to all optimizers that were made."""
        self.before: Dict[int, List[float]] = {}
        """Fingerprints of the wrapped modules before the first step, by their identity."""
        self.sharded = False
        """Whether each rank has only a part of every parameter."""
        self.splits = False
        """Whether it is noted that ranks have different parts of the model."""
        self.tensor_parallel: Set[Any] = set()
        """The groups of ranks that divide tensors among them and are noted."""
        self.broadcasts = False
        """Whether it is noted that a loss compares values and targets of other shapes."""
        self.scheduled_first = False
        """Whether it is noted that a scheduler has made a step before its optimizer."""
        self.loads = 0
        """How often it is noted that nothing of a state dict was loaded."""
        self.counts: Dict[int, int] = {}
        """Steps of each optimizer, by its identity."""
        self.inner: Set[int] = set()
        """Optimizers that are parts of others, by their identity. After a step of them the ranks
        may have different parameters, as with ZeroRedundancyOptimizer."""
        self.schedulers: List[Any] = []
        self.fingerprint: Optional[List[float]] = None
        """That of the parameters before the first step; None: no step has begun."""
        self.loss: Optional[float] = None
        """Where the last backward pass began, if that was one number."""
        self.backwards = 0
        """Backward passes since the last step."""
        self.all_backwards = 0
        """Backward passes so far."""
        self.kept: Dict[int, List[Any]] = {}
        """By the identity of an optimizer that has made a step: parameters with their gradients,
        until these have been reset."""
        self.stepped_at: Optional[float] = None
        """The time of the last step, or of the begin of the first one, in monotonic seconds."""
        self.collectives: Optional[int] = None
        """Collectives that had begun by then; None: unknown."""
        self.begun = 0
        """Collectives of all ranks that this one has begun and noted."""
        self.world: Optional[int] = None
        """Ranks of the default process group; None: there is none yet."""
        self.passes: List[Any] = []
        """Weak references to the iterators of data loaders that may be read further."""
        self.groups = self.loaders = self.inputs = 0
        """Groups and data loaders that were made, and inputs of the model that were noted."""


training = Training()
"""There is one for each process: a forked one records nothing."""


def living(references: "List[Any]") -> "List[Any]":
    """Return what weak references stand for, as far as it is still there."""
    found = [reference() for reference in references]
    return [each for each in found if each is not None]
