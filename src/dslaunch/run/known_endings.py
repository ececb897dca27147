"""Endings of trainings that are known by their words: what they mean and what to do.

Where a pattern has groups, `{0}`, `{1}` in the texts stand for them. Of all lines the last that is
known decides; of all patterns the first that fits the line. A victim is a rank that died because
another one did, or was waiting for one that does not answer.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Known:
    """One ending."""

    pattern: str
    """A regular expression, compiled when a run has failed: most do not."""
    what: str
    advice: str
    victim: bool = False
    waited: bool = False
    """A victim that had waited for another rank until a time ran out."""


def _v(pattern: str, what: str, *, waited: bool = False) -> Known:
    return Known(pattern, what, _LOOK_ELSEWHERE, victim=True, waited=waited)


_LOOK_ELSEWHERE = "look for another rank that failed, hung or lost its network before"

KNOWN = (
    # -------- victims: gloo 2.13, NCCL, torch's store and launcher
    _v(r"gloo.*(?:Connection closed by peer|Connection reset by peer|Broken pipe)",
       "gloo lost its connection to another rank"),
    _v(r"gloo.*[Tt]imed out waiting", "gloo waited for another rank in vain", waited=True),
    _v(r"Watchdog caught collective operation timeout|Collective(?:s)? .*timed? ?out",
       "a NCCL collective waited for another rank in vain", waited=True),
    _v(r"NCCL.*remote process (?:has )?(?:exited|terminated)|ncclRemoteError",
       "NCCL lost its connection to another rank"),
    _v(r"DistNetworkError.*(?:reset by peer|Broken pipe|recvValue failed|sendBytes failed)"
       r"|recvValue failed|Failed to recv, got 0 bytes",
       "the store on the master is gone"),
    _v(r"(?:DistStoreError|Timed out after \d+ seconds waiting for clients|wait timeout after)",
       "the ranks did not all arrive at the rendezvous", waited=True),
    _v(r"SignalException.*Process \d+ got signal: (15|2)\b", "it was asked to end"),
    _v(r"ChildFailedError", "a launcher passes on that its rank failed"),
    # -------- memory
    Known(r"CUDA out of memory|torch\.(?:cuda\.)?OutOfMemoryError|HIP out of memory",
          "the GPU has too little memory",
          "use a smaller micro batch, a higher ZeRO stage, offload or activation checkpointing"),
    Known(r"DefaultCPUAllocator: can't allocate memory|^MemoryError|Cannot allocate memory",
          "the node has too little memory",
          "load less at once, use fewer data loader workers, or turn CPU offload off"),
    Known(r"unable to write to file </torch_|No space left on device: '/dev/shm"
          r"|bus error.*shared mem|insufficient shared memory|DataLoader worker .*Bus error",
          "/dev/shm is too small for the data loader's workers",
          "make it larger (`docker run --shm-size=16g` or `--ipc=host`), or use num_workers=0"),
    Known(r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) (?:is killed by signal|exited unexpectedly)",
          "a data loader's worker was killed",
          "likely memory: use fewer workers; with num_workers=0 its error is shown"),
    Known(r"terminate called without an active exception",
          "a thread of native code outlived what it belongs to, often gloo's at the program's end",
          "let the script call destroy_process_group() last, and import torch.distributed.nn "
          "before init_process_group(): imported later, it keeps the group alive"),
    # -------- DeepSpeed
    Known(r"Current loss scale already at minimum",
          "fp16 overflows at every step, down to the least loss scale",
          "use bf16, a smaller learning rate, or look for NaN in the data"),
    Known(r"train_batch_size is not equal to micro_batch_per_gpu"
          r"|Check batch related parameters",
          "the batch sizes do not fit the number of ranks",
          "train_batch_size = micro batch x accumulation steps x ranks; leave one of the "
          "three out"),
    Known(r"(?:Error building extension|Ninja is required|ninja: build stopped)",
          "a DeepSpeed extension cannot be compiled on that node",
          "install ninja and a CUDA toolkit of torch's version, or set DS_BUILD_OPS=0 at install"),
    Known(r"CUDA_HOME (?:does not exist|environment variable is not set)|MissingCUDAException",
          "there is no CUDA toolkit on that node",
          "install one or set CUDA_HOME; DS_IGNORE_CUDA_DETECTION=1 where none is needed"),
    Known(r"installed CUDA version .* does not match the version torch was compiled with"
          r"|CUDAMismatchException",
          "torch and the CUDA toolkit differ",
          "install the toolkit that torch was built with, or set DS_SKIP_CUDA_CHECK=1"),
    # -------- network
    Known(r"(?:Address already in use|EADDRINUSE)",
          "the port is taken", "another program took it since it was checked; start again"),
    Known(r"NCCL.*(?:unhandled system error|ncclSystemError)",
          "NCCL met an error of the system, mostly the network",
          "run with NCCL_DEBUG=INFO and look for the first WARN; check the interface and firewall"),
    Known(r"NCCL.*(?:unhandled cuda error|ncclUnhandledCudaError)",
          "NCCL met a CUDA error",
          "run with NCCL_DEBUG=INFO; check the driver and `nvidia-smi -q`"),
    Known(r"(?:No route to host|Network is unreachable)",
          "another node cannot be reached",
          "check routes and firewalls between the nodes; name the right network by `address:`"),
    Known(r"Unable to find address for: ?(\S*)|Unable to resolve hostname",
          "an interface or a name is not known on that node",
          "correct `network.interface`, GLOO_SOCKET_IFNAME and /etc/hosts there"),
    # -------- GPUs
    Known(r"CUDA error: invalid device ordinal",
          "a rank has no GPU of its index", "let `slots` be no more than the node's GPUs"),
    Known(r"No CUDA GPUs are available|Found no NVIDIA driver",
          "that node shows no GPU to the job",
          "check `nvidia-smi` there, CUDA_VISIBLE_DEVICES and the container's GPU option"),
    Known(r"CUDA error: (?:uncorrectable ECC|an illegal memory access|device-side assert"
          r"|unspecified launch failure)[^\n]*",
          "a GPU error", "run again with CUDA_LAUNCH_BLOCKING=1; after ECC or Xid errors test it"),
    # -------- files
    Known(r"No space left on device|Errno 28\b", "a disk is full",
          "free space on that node, or move `storage` elsewhere"),
    Known(r"Disk quota exceeded", "the user's quota is used up", "free space, or move `storage`"),
    Known(r"Read-only file system: '?([^'\n]+)'?", "{0} cannot be written",
          "check the mount there"),
    Known(r"Stale file handle", "a network file system was exported anew",
          "remount it on that node"),
    Known(r"Too many open files", "the limit of open files is too low",
          "raise `ulimit -n` (LimitNOFILE of sshd), or use "
          "torch.multiprocessing.set_sharing_strategy('file_system')"),
    Known(r"PermissionError.*Permission denied: '?([^'\n]+)'?", "{0} may not be used by this user",
          "let the job's user use {0}"),
    Known(r"FileNotFoundError.*No such file or directory: '([^']+)'", "{0} is not on that node",
          "paths are relative to the working directory; a file of this machine alone is not there"),
    # -------- Python
    Known(r"ModuleNotFoundError: No module named '([^']+)'",
          "the module {0} is not installed there",
          "install {0} for that node's interpreter, or set `python:` or `activate:`"),
    Known(r"unrecognized arguments: (.*--local[-_]rank\S*)", "the script does not know {0}",
          "read LOCAL_RANK from the environment, or accept --local_rank"),
    Known(r"error: (unrecognized arguments: .*|the following arguments are required: .*)",
          "the script refuses its arguments: {0}", "everything behind the script is passed to it"),
    Known(r"(?:Import|OS)Error: (\S+\.so\S*): (?:cannot open shared object file|undefined symbol)",
          "the library {0} is missing or does not fit",
          "the environment of that node differs; compare `pip list` with another node's"),
    Known(r"loss is nan|[Ll]oss.*\bNaN\b.*(?:stop|abort|exit)", "the loss is not a number",
          "lower the learning rate, clip gradients, look for bad data"),
)  # fmt: skip
