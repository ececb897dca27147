"""Endings of trainings that are known by their words: what they mean and what to do.

Where a pattern has groups, `{0}`, `{1}` in the texts stand for them. Of the patterns that fit what
a rank wrote last, the first in this table decides: special ones come before general ones. A victim
is a rank that died because another one did, or was waiting for one that does not answer.

Ranks write the lines, so every pattern must take time in proportion to the line: two words with
anything between them are `^(?>.*?A).*B`, which looks for the first A once. Texts between bounds
have a largest length.

Sound trainings write words such as "not found" and "timed out" too. A pattern is as special as the
text that it was made from, which is recorded with its source in tests/unit/run/endings.toml.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from dslaunch.errors import PluginError
from dslaunch.registry import ENDINGS, broken_plugin


@dataclass(frozen=True, slots=True)
class Known:
    """One ending."""

    code: str
    """Names the ending; equal endings of several ranks have equal codes."""
    pattern: str
    """A regular expression, compiled when a run has failed: most do not."""
    what: str
    advice: str
    source: str
    """Where the rule comes from: a project's issue, its documentation or its code."""
    victim: bool = False
    waited: bool = False
    """A victim that had waited for another rank until a time ran out."""
    any_level: bool = False
    """Also counts in lines that their program calls information or a warning."""
    node_fault: bool = False
    """A fault of the node's hardware or driver, whatever the job is."""


_NO_PATTERN = r"(?!)"
OOM_KILLER = Known(
    "oom-killer",
    _NO_PATTERN,
    "the kernel killed it for want of memory ({0})",
    "load less at once, use fewer data loader workers, or turn CPU offload off",
    "Linux, mm/oom_kill.c",
)
NODE_DISK_FULL = Known(
    "disk-full", _NO_PATTERN, "no space is left in {0}", "free space there", "statvfs(3)"
)
NODE_SHM_FULL = Known(
    "shared-memory",
    _NO_PATTERN,
    "/dev/shm is full",
    "make it larger, or use num_workers=0",
    "signal(7), SIGBUS",
)
OFFLOAD_MEMORY = Known(
    "offload-memory",
    _NO_PATTERN,
    "likely the node's memory: the DeepSpeed config offloads to the CPU",
    "the DeepSpeed config offloads to host memory: compare the node's memory with "
    "`dslaunch estimate`, use more nodes, set pin_memory: false, or offload less",
    "DeepSpeed, runtime/zero/offload_config.py, pin_memory",
)
BY_EVIDENCE = (OOM_KILLER, NODE_DISK_FULL, NODE_SHM_FULL, OFFLOAD_MEMORY)
"""Endings that are known from more than what the rank wrote."""
_LOOK_ELSEWHERE = "look for another rank that failed, hung or lost its network before"


def _v(code: str, pattern: str, what: str, source: str, *, waited: bool = False) -> Known:
    return Known(code, pattern, what, _LOOK_ELSEWHERE, source, victim=True, waited=waited)


_MEMORY = (
    Known("slurm-out-of-memory",
          r"slurmstepd: error: Detected \d{1,9} oom[-_]kill"
          r"|srun: error: \S{1,300}: tasks? [\d,-]{1,300}: Out Of Memory",
          "SLURM's memory limit of the job was exceeded on the node (host memory)",
          "raise `mem` (`--mem`, or `--mem=0` for all of the node), load less at once, "
          "use fewer data loader workers, or turn CPU offload off",
          "SLURM slurmstepd; chrisknewman/tusas#149", any_level=True),
    Known("gpu-memory",
          r"CUDA out of memory|torch\.(?:cuda\.)?OutOfMemoryError|HIP out of memory"
          r"|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED|XPU out of memory",
          "the GPU has too little memory",
          "use a smaller micro batch, a higher ZeRO stage, offload or activation checkpointing; "
          "`dslaunch estimate` says what fits",
          "torch, c10/cuda/CUDACachingAllocator.cpp"),
    Known("locked-memory",
          r"Call to ibv_(?:reg_mr|reg_mr_iova2|create_cq|create_qp)\w{0,9} failed with error "
          r"Cannot allocate memory|ibv_(?:reg_mr|create_cq|create_qp) failed: Cannot allocate",
          "the limit of locked memory is too low for InfiniBand or RoCE",
          "raise `ulimit -l` to unlimited (limits.conf, LimitMEMLOCK of sshd and slurmd, "
          "`docker run --ulimit memlock=-1`)", "NVIDIA/nccl-tests#206", any_level=True),
    Known("shared-memory",
          r"unable to write to file </torch_|No space left on device: '/dev/shm"
          r"|^(?>.*?[Bb]us error).*shared mem|insufficient shared memory"
          r"|^(?>.*?DataLoader worker ).*Bus error|unable to open shared memory object </torch_"
          r"|shared memory \(?/dev/shm\)?.{0,40}(?:full|too small)"
          r"|Error while creating shared memory segment /dev/shm/nccl-",
          "/dev/shm is too small",
          "make it larger (`docker run --shm-size=16g` or `--ipc=host`), or use num_workers=0",
          "pytorch/pytorch#2244, NVIDIA/nccl#406", any_level=True),
    Known("host-memory",
          r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|^MemoryError"
          r"|(?:OSError|RuntimeError|Error code 12|error): ?.{0,80}\bCannot allocate memory"
          r"|std::bad_alloc",
          "the node has too little memory",
          "load less at once, use fewer data loader workers, or turn CPU offload off",
          "torch, c10/core/impl/alloc_cpu.cpp"),
    Known("worker-killed",
          r"DataLoader worker \(pid\(?s?\)? [\d, ]{1,300}\) "
          r"(?:is killed by signal|exited unexpectedly)",
          "a data loader's worker was killed",
          "likely memory: use fewer workers; with num_workers=0 its error is shown",
          "torch, utils/data/dataloader.py"),
)  # fmt: skip

_SCHEDULER = (
    Known("slurm-time-limit",
          r"CANCELLED AT \S{1,40} DUE TO TIME LIMIT|Job step aborted: Time limit",
          "the job's time limit was reached",
          "raise `time`, and save checkpoints more often than that; resume from the last one",
          "ENCODE-DCC/caper#36", any_level=True),
    Known("slurm-preempted", r"CANCELLED AT \S{1,40} DUE TO PREEMPTION",
          "the job was preempted by another one",
          "resume from the last checkpoint; a QOS that is not preempted, or `requeue: true`",
          "SystemsGenetics/GEMmaker#242", any_level=True),
    Known("slurm-node-failure",
          r"CANCELLED AT \S{1,40} DUE TO NODE FAILURE|srun: error: Node failure on (\S{1,300})",
          "a node of the job failed {0}",
          "see `sinfo -R`; exclude the node (`--exclude`) and start again", "SLURM srun",
          any_level=True),
    Known("slurm-requeued", r"CANCELLED AT \S{1,40} DUE TO JOB REQUEUE",
          "the job was requeued", "SLURM starts it again; make the script resume",
          "facebookincubator/submitit#1708", any_level=True),
    Known("slurm-step-refused",
          r"srun: error: Unable to create step for job \d{1,20}: (.{1,200})",
          "SLURM refused the step: {0}",
          "the step asks for more than the job has: compare its --gres, --cpus-per-task and --mem",
          "mehta-lab/waveorder#201"),
)  # fmt: skip

_DEVICES = (
    Known("ecc", r"uncorrectable ECC error|CUDA_ERROR_ECC_UNCORRECTABLE",
          "a GPU's memory has an uncorrectable (ECC) error: hardware",
          "drain the node; `nvidia-smi -q -d ECC,ROW_REMAPPER` and `dslaunch preflight` on it",
          "jade-hpc-gpu.github.io#194, NVIDIA Xid 48, 94, 95", node_fault=True),
    Known("gpu-lost",
          r"GPU (?:has fallen off the bus|is lost)|Unable to determine the device handle for GPU"
          r"|CUDA error: (?:unknown error|device not ready|the launch failed because of hardware)",
          "a GPU is gone from the bus or does not answer: hardware or driver",
          "see `dmesg | grep Xid` there, drain the node and reset or reboot it",
          "rwth-i6/returnn#1486, NVIDIA Xid 79", node_fault=True),
    Known("xid", r"NVRM: Xid \([^)]{1,60}\): (\d{1,4})", "the driver reported Xid {0} for a GPU",
          "look the number up in NVIDIA's Xid catalog; `dslaunch preflight` checks the GPU",
          "NVIDIA, GPU deployment guide, Xid errors", any_level=True),
    Known("no-kernel",
          r"no kernel image is available for execution|(?:sm_|compute_)\d{1,4}a? is not compatible "
          r"with the current PyTorch|hipErrorNoBinaryForGpu|HIP error: invalid device function",
          "PyTorch or an extension has no code for this type of GPU",
          "install builds for the GPU's architecture; rebuild extensions with "
          "TORCH_CUDA_ARCH_LIST (ROCm: PYTORCH_ROCM_ARCH) set to it",
          "deepspeedai/DeepSpeed#5724, ROCm#3401"),
    Known("device-busy", r"CUDA-capable devices? ?(?:\(s\) is/)?are busy or unavailable",
          "a GPU is in use by another process, or in exclusive mode",
          "`nvidia-smi` shows who uses it; compute mode must be Default (`nvidia-smi -c 0`); "
          "check that no two ranks use one GPU",
          "NVIDIA/DIGITS#2005"),
    Known("driver-old",
          r"NVIDIA driver on your system is too old|CUDA driver version is insufficient"
          r"|API call is not supported in the installed CUDA driver"
          r"|forward compatibility was attempted on non supported HW",
          "the NVIDIA driver is older than this PyTorch's CUDA needs",
          "update the driver on that node, or install PyTorch for an older CUDA",
          "lllyasviel/Fooocus#1313"),
    Known("driver-mismatch", r"Driver/library version mismatch|CUDA error: system has unsupported "
          r"display driver|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
          "kernel module and libraries of the NVIDIA driver differ",
          "reboot the node or reload the driver: it was updated underneath",
          "NVIDIA driver README", node_fault=True),
    Known("fabric-manager", r"system not yet initialized|CUDA_ERROR_SYSTEM_NOT_READY|Error 802:",
          "NVSwitch is not ready: the fabric manager does not run",
          "start nvidia-fabricmanager of exactly the driver's version on that node",
          "NVIDIA Fabric Manager user guide", node_fault=True),
    Known("cpu-only-torch",
          r"Torch not compiled with CUDA enabled|Distributed package doesn't have NCCL"
          r"|Attempting to deserialize object on a CUDA device but torch\.cuda\.is_available\(\) "
          r"is False",
          "this PyTorch cannot use the GPU: it is built for the CPU alone, or sees none",
          "install the CUDA build of torch in the job's environment; "
          "`python -c 'import torch; print(torch.version.cuda)'` shows which it is",
          "karpathy/nanoGPT#281, torch/cuda/__init__.py"),
    Known("no-bf16",
          r"Your setup doesn't support bf16|--tf32 requires Ampere"
          r"|bf16.{0,20} is not supported on (?:this|your)|Type BFloat16 is not supported on your",
          "this GPU, or this PyTorch, does not support the precision asked for",
          "use fp16 (bf16 and tf32 need Ampere or newer); on a node with such GPUs, check that "
          "torch sees them", "tatsu-lab/stanford_alpaca#133"),
    Known("flash-old-gpu", r"FlashAttention only supports Ampere GPUs or newer",
          "FlashAttention does not support this GPU",
          "use attn_implementation='sdpa', or newer GPUs", "Dao-AILab/flash-attention#762"),
    Known("flash-missing", r"FlashAttention\d? has been toggled on, but it cannot be used",
          "flash_attn is not installed, or does not fit this PyTorch",
          "install flash-attn for this torch and CUDA, or use attn_implementation='sdpa'",
          "transformers, modeling_utils.py"),
    Known("device-ordinal", r"CUDA error: invalid device ordinal|HIP error: invalid device ordinal",
          "a rank has no GPU of its index", "let `slots` be no more than the node's GPUs",
          "torch, c10/cuda"),
    Known("duplicate-gpu", r"Duplicate GPU detected ?: ?rank (\d{1,9}) and rank (\d{1,9})\b",
          "ranks {0} and {1} use the same GPU",
          "call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before the process group is "
          "initialized; set `slots` to at most the number of GPUs", "NVIDIA/nccl, src/init.cc",
          any_level=True),
    Known("no-gpu",
          r"No CUDA GPUs are available|Found no NVIDIA driver|no ROCm-capable device is detected"
          r"|no CUDA-capable device is detected|No HIP GPUs are available",
          "that node shows no GPU to the job",
          "check `nvidia-smi` (ROCm: `rocm-smi`) there, CUDA_VISIBLE_DEVICES (ROCm: "
          "HIP_VISIBLE_DEVICES), and the container's GPU option", "torch/cuda/__init__.py"),
    Known("peer-access", r"peer access is not supported between these two devices",
          "two GPUs of the node cannot reach each other's memory",
          "set NCCL_P2P_DISABLE=1, or let the hypervisor and IOMMU (ACS) permit peer access",
          "verl-project/verl#1874, ray_lightning#24", any_level=True),
    Known("device-assert", r"CUDA error: device-side assert triggered|HIP error: .{0,40}assert",
          "a check inside of a GPU kernel failed, mostly an index outside of a table",
          "compare labels and token ids with the sizes of model and vocabulary; "
          "CUDA_LAUNCH_BLOCKING=1 shows the line", "pytorch/pytorch#9538"),
    Known("gpu-error",
          r"CUDA error: (?:an illegal memory access|unspecified launch failure"
          r"|misaligned address|an illegal instruction)|CUBLAS_STATUS_EXECUTION_FAILED"
          r"|Memory access fault by GPU node-\d|HSA_STATUS_ERROR_",
          "a GPU error", "run again with CUDA_LAUNCH_BLOCKING=1 (ROCm: AMD_SERIALIZE_KERNEL=3); "
          "after ECC or Xid errors test the GPU", "torch, c10/cuda/CUDAException.cpp"),
)  # fmt: skip

_DEEPSPEED = (
    Known("loss-scale", r"Current loss scale already at minimum"
          r"|OVERFLOW! Rank \d{1,9} Skipping step\. Attempted loss scale: 1(?:\.0)?, "
          r"reducing to 1\b",
          "fp16 overflows at every step, down to the least loss scale",
          "use bf16 (models pretrained in bf16 need it), a smaller learning rate, or look for "
          "NaN in the data; initial_scale_power: 32 gives the scaler more steps",
          "transformers, docs/source/en/deepspeed.md, NaN loss", any_level=True),
    Known("batch-sizes", r"train_batch_size is not equal to micro_batch_per_gpu"
          r"|Check batch related parameters",
          "the batch sizes do not fit the number of ranks",
          "train_batch_size = micro batch x accumulation steps x ranks; leave one of the "
          "three out", "DeepSpeed, runtime/config.py"),
    Known("batch-missing", r"Either train_batch_size or train_micro_batch_size_per_gpu needs",
          "the DeepSpeed config has no batch size",
          "set train_micro_batch_size_per_gpu", "DeepSpeed, runtime/config.py"),
    Known("hf-mismatch", r"Please correct the following DeepSpeed config values that mismatch",
          "the DeepSpeed config and the Trainer's arguments differ",
          "set these values to \"auto\" in the DeepSpeed config; `dslaunch config lint` names them",
          "shibing624/MedicalGPT#191"),
    Known("mixed-precision", r"`--mixed_precision` arg cannot be set to `(\w{1,20})` when",
          "accelerate's precision ({0}) and the DeepSpeed config's differ",
          "set both to the same, or fp16 and bf16 to \"auto\" in the DeepSpeed config",
          "shibing624/MedicalGPT#288"),
    Known("world-size", r"The checkpoint being loaded used a DP world size of (\d{1,9}) but the "
          r"current world size is (\d{1,9})",
          "the checkpoint was saved by {0} data-parallel ranks, the job has {1}",
          "start {0} ranks, or convert it: a universal checkpoint (`checkpoint.load_universal`) "
          "or `dslaunch checkpoint consolidate`", "deepspeedai/DeepSpeed#2898, #3810"),
    Known("zero-optimizer", r"You are using ZeRO-Offload with a client provided optimizer"
          r"|zero_force_ds_cpu_optimizer|You are using an untested ZeRO Optimizer",
          "DeepSpeed does not accept this optimizer with ZeRO",
          "name the optimizer in the DeepSpeed config, or set zero_allow_untested_optimizer "
          "(with offload: zero_force_ds_cpu_optimizer: false)", "DeepSpeed, runtime/engine.py"),
    Known("mixed-dtypes", r"assert len\(set\(t\.dtype for t in tensors\)\) == 1",
          "ZeRO-3 needs all trained parameters in one precision",
          "load the model in the precision of the config (torch_dtype, bf16 or fp16)",
          "hiyouga/LlamaFactory#2774", any_level=True),
    Known("op-build",
          r"Error building extension|Ninja is required|ninja: build stopped"
          r"|Unable to JIT load the \w{1,60} op|has no attribute 'ds_opt_adam"
          r"|cannot find -l(?:curand|cuda|cudart|aio)\b",
          "a DeepSpeed extension cannot be compiled on that node",
          "install ninja and a CUDA toolkit of torch's version, or set DS_BUILD_OPS=0 at install",
          "deepspeedai/DeepSpeed#4257, #6567"),
    Known("no-toolkit", r"CUDA_HOME (?:does not exist|environment variable is not set)"
          r"|MissingCUDAException|No such file or directory: '[^']{0,300}/nvcc'",
          "there is no CUDA toolkit on that node",
          "install one or set CUDA_HOME; DS_IGNORE_CUDA_DETECTION=1 where none is needed",
          "DeepSpeed, op_builder/builder.py; erew123/alltalk_tts#4"),
    Known("toolkit-mismatch",
          r"^(?>.*?installed CUDA version ).* does not match the version torch was compiled with"
          r"|CUDAMismatchException",
          "torch and the CUDA toolkit differ",
          "install the toolkit that torch was built with, or set DS_SKIP_CUDA_CHECK=1",
          "DeepSpeed, op_builder/builder.py"),
    Known("no-mpi4py", r"No module named 'mpi4py'",
          "DeepSpeed finds no RANK and tries MPI: the script was not started by a launcher",
          "start it by `dslaunch run`; in the script, keep RANK, LOCAL_RANK and WORLD_SIZE",
          "DeepSpeed, comm/comm.py, init_distributed"),
    Known("zero-partitioned", r"size mismatch for .{1,300}: copying a param with shape "
          r"torch\.Size\(\[\d+(?:, \d+){0,6}\]\) from checkpoint, the shape in current model is "
          r"torch\.Size\(\[0\]\)",
          "weights are loaded into a model that ZeRO-3 has partitioned",
          "load them before the engine is made, or under deepspeed.zero.GatheredParameters",
          "transformers, integrations/deepspeed.py"),
)  # fmt: skip

_CHECKPOINTS = (
    Known("truncated-checkpoint",
          r"PytorchStreamReader failed|failed finding central directory|unexpected pos \d{1,20} vs"
          r"|Error while deserializing header|MetadataIncompleteBuffer|HeaderTooLarge"
          r"|SafetensorError: .{0,80}(?:incomplete|too large)|Ran out of input|^EOFError$"
          r"|UnpicklingError: (?:pickle data was truncated|invalid load key)"
          r"|Unsupported operand 118",
          "a checkpoint or weights file is incomplete or not what its name says",
          "compare its size with the original: an interrupted copy or save, a full disk, or a "
          "Git LFS pointer; use the checkpoint before it or fetch it again",
          "CompVis/stable-diffusion#93, safetensors"),
    Known("state-dict",
          r"Error\(s\) in loading state_dict for|(?:Missing|Unexpected) key\(s\) in state_dict"
          r"|size mismatch for \S{1,300}: copying a param",
          "checkpoint and model do not fit: keys are missing or sizes differ",
          "load it with the config it was saved with; a prefix such as `module.` must be removed; "
          "ZeRO-3 shards need `dslaunch checkpoint consolidate` first",
          "deepspeedai/DeepSpeed#5570"),
    Known("weights-only", r"WeightsUnpickler error|Weights only load failed",
          "torch.load refuses objects other than tensors in that file",
          "if the file is trusted: torch.serialization.add_safe_globals, or weights_only=False",
          "torch 2.6 release notes"),
    Known("no-checkpoint", r"No valid checkpoint found in output directory",
          "there is no checkpoint to resume from on that node",
          "storage that is not shared needs `dslaunch checkpoint spread`; check output_dir",
          "transformers, trainer.py"),
    Known("no-weights", r"Error no file named .{0,120}(?:model\.safetensors|pytorch_model\.bin)",
          "the model's directory has no weights on that node",
          "copy them there, or name shared storage", "transformers, modeling_utils.py"),
)  # fmt: skip

_HUB = (
    Known("gated", r"GatedRepoError|Cannot access gated repo|is restricted\. You must have access",
          "the model or dataset is gated, and the job's account may not read it",
          "request access on its page, and give HF_TOKEN to the job (`env_from`)",
          "city96/ComfyUI_ExtraModels#99"),
    Known("hub-401", r"401 Client Error|RepositoryNotFoundError|Invalid (?:user )?token"
          r"|is not a local folder and is not a valid model identifier",
          "the Hugging Face Hub does not know the repository, or the job has no (valid) token",
          "check the name; for private repositories give HF_TOKEN to the job (`env_from`)",
          "huggingface/huggingface_hub#1202"),
    Known("hub-rate", r"429 Client Error: Too Many Requests",
          "the Hugging Face Hub refuses more requests from here",
          "download once to shared storage and set HF_HUB_OFFLINE=1, or give HF_TOKEN to the job",
          "huggingface_hub, utils/_http.py"),
    Known("hub-offline",
          r"OfflineModeIsEnabled|LocalEntryNotFoundError|We couldn't connect to 'https?://"
          r"|Max retries exceeded with url: /.{0,200}huggingface"
          r"|offline mode is enabled\. To disable"
          r"|OfflineModeIsEnabledError|HTTPSConnectionPool\(host='(?:huggingface\.co|cdn-lfs)",
          "the node does not reach the Hugging Face Hub, and the file is not in its cache",
          "download it where there is internet, to storage that the nodes share, and set HF_HOME "
          "and HF_HUB_OFFLINE=1", "instructlab/instructlab#2837"),
    Known("hub-architecture", r"has model type `([^`]{1,80})` but Transformers does not recognize",
          "this transformers does not know the model type {0}",
          "update transformers in the job's environment, the same on every node",
          "transformers, configuration_auto.py"),
    Known("remote-code", r"contains custom code which must be executed",
          "the model needs code from its repository",
          "read that code; if it is trusted, pass trust_remote_code=True",
          "transformers, dynamic_module_utils.py"),
    Known("padding", r"the tokenizer does not have a padding token|does not have one\. .{0,80}pad",
          "the tokenizer has no padding token",
          "set tokenizer.pad_token = tokenizer.eos_token before batches are made",
          "huggingface/trl#466"),
    Known("tokenizer", r"Tokenizer class (\S{1,80}) does not exist or is not currently imported"
          r"|Couldn't instantiate the backend tokenizer|Can't load tokenizer for '([^']{1,300})'",
          "the tokenizer cannot be loaded {0}",
          "install sentencepiece, tiktoken and the transformers that the model was saved with; "
          "check that all of its files are on the node", "transformers, tokenization_auto.py"),
    Known("hf-arguments",
          r"Some specified arguments are not used by the HfArgumentParser: (.{1,200})",
          "the script refuses its arguments: {0}",
          "an argument is misspelt or was renamed (evaluation_strategy is eval_strategy since "
          "transformers 4.46)", "transformers, hf_argparser.py"),
    Known("trainer-dataset", r"Trainer: training requires a train_dataset",
          "the script's Trainer has no training data",
          "check the script's data arguments (--do_train, --train_file, --dataset_name)",
          "transformers, trainer.py"),
    Known("accelerate-config", r"The passed configuration file `([^`]{1,300})` does not exist",
          "accelerate's config file {0} is not on that node", "name a file that is shipped, or "
          "storage that the nodes share", "accelerate, commands/config/config_args.py"),
)  # fmt: skip

_RENDEZVOUS = (
    Known("port-taken", r"(?:Address already in use|EADDRINUSE|address already in use)",
          "the port is taken", "another program took it since it was checked; start again",
          "pytorch/pytorch#73320"),
    Known("name-resolution",
          r"gaierror|socket\.herror|host not found: |Unable to find address for: ?(\S{0,200})"
          r"|Unable to resolve hostname|Failed to resolve '([^']{1,200})'",
          "a host name or an interface is not known on that node {0}",
          "correct `network.interface`, GLOO_SOCKET_IFNAME, /etc/hosts or DNS there, or name the "
          "node's `address:`", "pytorch/elastic#113, pytorch-lightning#1542"),
    Known("not-initialized", r"Default process group has not been initialized"
          r"|Default process group is not initialized",
          "the script uses torch.distributed before the process group is initialized",
          "call init_process_group() or deepspeed.init_distributed() first",
          "deepspeedai/DeepSpeed#510"),
    Known("no-rank", r"environment variable (\w{1,60}) expected, but not set",
          "the script was started without {0}",
          "start it by `dslaunch run`, which sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
          "torch/distributed/rendezvous.py"),
    Known("unused-parameters", r"Expected to have finished reduction in the prior iteration",
          "some parameters take no part in the loss, so DistributedDataParallel waits for them",
          "pass find_unused_parameters=True, or let every parameter take part",
          "torch/csrc/distributed/c10d/reducer.cpp; pytorch/pytorch#57473"),
    Known("nccl-interface",
          r"Bootstrap ?: no socket interface found|no NCCL_SOCKET_IFNAME interface found"
          r"|ncclSocketInit: connecting to address {1,4}with family",
          "NCCL finds no network interface of the name it was given",
          "correct `network.interface` or NCCL_SOCKET_IFNAME there (`ip -br link` lists names)",
          "NVIDIA/nccl#1837", any_level=True),
    Known("nccl-loopback",
          r"socketStartConnect: Connect to (?:127\.0\.\d{1,3}\.\d{1,3}|::1)<",
          "NCCL tries to reach another node by the loopback interface",
          "set `network.interface` (NCCL_SOCKET_IFNAME); correct /etc/hosts where the node's own "
          "name is 127.0.1.1", "awsome-distributed-ai#192", any_level=True),
    Known("ib-timeout",
          r"NET/IBP? ?: ?Got completion from peer .{1,120}(?:status=|error )(?:12|5|4)\b",
          "InfiniBand or RoCE lost packets or the connection to another node",
          "`dslaunch preflight --tier deep`: link state, GID index, PFC/ECN and MTU of both nodes; "
          "NCCL_IB_TIMEOUT=22 bridges short interruptions", "NVIDIA/nccl#1664, #1405",
          any_level=True),
    Known("no-route", r"(?:OSError|Error|failed|error).{0,200}"
          r"(?:No route to host|Network is unreachable)",
          "another node cannot be reached",
          "check routes and firewalls between the nodes; name the right network by `address:`",
          "pytorch/pytorch#85300"),
)  # fmt: skip

_FILES = (
    Known("disk-quota", r"Disk quota exceeded|Errno 122\b", "the user's quota is used up",
          "free space (`quota -s`, `lfs quota`), or move `storage`", "errno EDQUOT"),
    Known("disk-full", r"No space left on device|Errno 28\b", "a disk is full",
          "free space on that node, or move `storage` elsewhere", "errno ENOSPC"),
    Known("read-only", r"Read-only file system: '?([^'\n]{1,500})'?", "{0} cannot be written",
          "check the mount there", "errno EROFS"),
    Known("stale-handle", r"Stale (?:NFS )?file handle|Errno 116\b",
          "a file on a network file system was removed or exported anew while it was open",
          "two ranks must not write or remove one file: give caches (TRITON_CACHE_DIR, "
          "TORCH_EXTENSIONS_DIR, HF_DATASETS_CACHE) a directory of the node; else remount it",
          "modelscope/ms-swift#6695"),
    Known("transport-endpoint", r"Transport endpoint is not connected|Errno 107\b"
          r"|Remote I/O error|Errno 121\b|Input/output error: '?|Errno 5\] Input/output",
          "a file system does not answer", "remount it on that node; look into dmesg there",
          "errno ENOTCONN, EREMOTEIO, EIO"),
    Known("open-files", r"Too many open files", "the limit of open files is too low",
          "raise `ulimit -n` (LimitNOFILE of sshd), or use "
          "torch.multiprocessing.set_sharing_strategy('file_system')", "errno EMFILE"),
    Known("processes",
          r"(?:fork|pthread_create)\b.{0,60}Resource temporarily unavailable"
          r"|can't start new thread|BlockingIOError: \[Errno 11\] Resource temporarily"
          r"|Cannot fork\b|fork: Cannot allocate memory",
          "no more processes or threads may be started",
          "raise `ulimit -u` and the cgroup's pids.max (TasksMax); set OMP_NUM_THREADS, and use "
          "fewer data loader workers", "facebookresearch/detectron2#3900"),
    Known("permission", r"^(?>.*?PermissionError).*Permission denied: '?([^'\n]{1,500})'?"
          r"|^[^:\n]{1,40}: (?:line \d+: )?([^:\n]{1,300}): Permission denied$",
          "{0} may not be used by this user", "let the job's user use {0}", "errno EACCES"),
    Known("exec-format", r"Exec format error|cannot execute binary file",
          "the program is for another processor, or has no `#!` line",
          "x86-64 and ARM nodes need an environment each", "errno ENOEXEC"),
)  # fmt: skip

_ENVIRONMENT = (
    Known("glibc", r"version [`']?((?:GLIBCXX|GLIBC|CXXABI)_[\d.]{1,20})'? not found",
          "the node's C or C++ library is older than {0}, which a package needs",
          "activate the environment's own libstdc++ (conda install libstdcxx-ng, LD_LIBRARY_PATH), "
          "or install packages built for this system", "deepspeedai/DeepSpeed#2886"),
    Known("libcuda", r"(libcuda\.so(?:\.1)?|libnvidia-ml\.so\.1|libamdhip64\.so\S{0,9}): "
          r"cannot open shared object file",
          "{0}, which the GPU's driver brings, is not there",
          "install the driver on that node, or give the container access to the GPU "
          "(`--gpus all`, `--nv`)", "NVIDIA container toolkit guide"),
    Known("library", r"(?:Import|OS)Error: (\S{1,300}\.so\S{0,99}): "
          r"(?:cannot open shared object file|undefined symbol|cannot read file data"
          r"|file too short)"
          r"|error while loading shared libraries: (\S{1,300}):",
          "the library {0} is missing or does not fit",
          "the environment of that node differs; compare `pip list` with another node's, and "
          "rebuild extensions (rm -r ~/.cache/torch_extensions)", "deepspeedai/DeepSpeed#3279"),
    Known("python-home", r"No module named 'encodings'|init_fs_encoding: failed to get the Python",
          "Python does not find its own library",
          "unset PYTHONHOME and PYTHONPATH (~/.bashrc, `env:`, `activate:`), or make the virtual "
          "environment again where its base Python was moved or removed",
          "CPython, Python/pylifecycle.c, init_import_site; docs.python.org, PYTHONHOME"),
    Known("module-missing", r"ModuleNotFoundError: No module named '([^']{1,200})'",
          "the module {0} is not installed there",
          "install {0} for that node's interpreter, or set `python:` or `activate:`",
          "Python"),
    Known("import-name", r"ImportError: cannot import name '([^']{1,200})' from '([^']{1,200})'",
          "{1} there is of another version: it has no {0}",
          "pin one version on all nodes, and name no file of yours like a package", "Python"),
    Known("numpy-abi", r"numpy\.core\.multiarray failed to import|numpy\.dtype size changed"
          r"|A module that was compiled using NumPy 1\.x cannot be run in",
          "a package was built for another NumPy", "install numpy<2, or newer builds of it",
          "NumPy 2.0 migration guide"),
    Known("conda-missing", r"conda: (?:command )?not found|\bactivate: No such file or directory"
          r"|source: not found|Your shell has not been properly configured to use 'conda activate'",
          "conda is not set up in the shell of the job",
          "use `activate: source /path/to/conda/etc/profile.d/conda.sh && conda activate NAME`, or "
          "`python:` with the environment's interpreter", "conda/conda#9193, #13002"),
    Known("conda-environment",
          r"EnvironmentNameNotFound: Could not find conda environment: (\S{1,200})"
          r"|EnvironmentLocationNotFound: Not a conda environment: (\S{1,300})",
          "the conda environment {0} is not on that node",
          "create it there, or name one on shared storage", "conda, exceptions.py"),
    Known("module-command", r"\bmodule: (?:command )?not found",
          "environment modules are not set up in the shell of the job",
          "begin `activate:` with `source /etc/profile.d/modules.sh` (Lmod: lmod.sh)",
          "Environment Modules, INSTALL"),
    Known("modulefile", r"Unable to locate a modulefile for '([^']{1,200})'"
          r"|The following module\(s\) are unknown: \"?([^\"\n]{1,200})",
          "the module {0} does not exist on that node",
          "`module avail` there lists what does; nodes may differ", "Environment Modules, Lmod"),
    Known("command-missing", r"^(?:[\w./-]{1,100}: )?(?:line \d{1,9}: )?([\w.+-]{1,100}): "
          r"(?:command not found|not found)$",
          "the command {0} is not found there", "install it, or extend PATH in `activate:`",
          "POSIX shell"),
    Known("illegal-instruction",
          r"Illegal instruction|\(core dumped\) .{0,40}SIGILL|Signal: SIGILL",
          "a package was built for a newer processor than this node has",
          "install builds for the oldest processor among the nodes", "signal(7), SIGILL"),
    Known("unknown-local-rank",
          r"^(?>.*?unrecognized arguments: )(.{0,400}--local[-_]rank\S{0,40})",
          "the script does not know {0}",
          "read LOCAL_RANK from the environment, or accept --local_rank", "DeepSpeed launcher"),
    Known("script-arguments",
          r"error: (unrecognized arguments: .{1,300}"
          r"|the following arguments are required: .{1,300})",
          "the script refuses its arguments: {0}", "everything behind the script is passed to it",
          "Python argparse"),
    Known("no-script", r"can't open file '([^']{1,500})': \[Errno 2\]",
          "the script {0} is not on that node",
          "paths are relative to the working directory; a file of this machine alone is not there",
          "Python"),
    Known("file-missing", r"^(?>.*?FileNotFoundError).*No such file or directory: '([^']{1,500})'",
          "{0} is not on that node",
          "paths are relative to the working directory; a file of this machine alone is not there",
          "Python"),
)  # fmt: skip

_PROGRAM = (
    Known("nan-loss",
          r"loss is nan|^(?>.*?[Ll]oss)(?>.*?\bNaN\b).*(?:stop|abort|exit)"
          r"|\b(?:lm )?loss['\"]?\s{0,3}[:=]\s{0,3}['\"]?nan\b|'grad_norm': '?nan\b",
          "the loss is not a number",
          "lower the learning rate, clip gradients, look for bad data; a model pretrained in bf16 "
          "needs bf16 or fp32", "transformers, docs/source/en/deepspeed.md, NaN loss",
          any_level=True),
    Known("mixed-devices", r"Expected all tensors to be on the same device",
          "tensors are on different devices",
          "move inputs and modules to the rank's device (LOCAL_RANK) before they are used together",
          "torch, aten/src/ATen/TensorIterator.cpp"),
    Known("mixed-dtype", r"must have the same dtype, but got (\w{1,20} and \w{1,20})"
          r"|expected (?:m1 and m2|scalar type \w{1,20}) .{0,60}but found \w{1,20}",
          "tensors of different precision are combined {0}",
          "use autocast, or let inputs have the model's precision", "torch, aten"),
    Known("index-range", r"IndexError: index out of range in self"
          r"|Assertion `srcIndex < srcSelectDim",
          "an index is larger than the table, often a token id larger than the vocabulary",
          "resize the embeddings (model.resize_token_embeddings) or use the model's own tokenizer",
          "torch, aten/src/ATen/native/Embedding.cpp"),
    Known("thread-outlived", r"terminate called without an active exception",
          "a thread of native code outlived what it belongs to, often gloo's at the program's end",
          "let the script call destroy_process_group() last, and import torch.distributed.nn "
          "before init_process_group(): imported later, it keeps the group alive",
          "pytorch/pytorch#76913"),
    Known("native-crash",
          r"Fatal Python error: (Segmentation fault|Aborted|Bus error|Illegal instruction)"
          r"|(Segmentation fault) \(core dumped\)|Caught signal 11 \((Segmentation fault):",
          "native code crashed: {0}",
          "PYTHONFAULTHANDLER=1 shows where; extensions must be built for this torch and CUDA",
          "AMDResearch/hpcfund#3, Python faulthandler"),
)  # fmt: skip

_VICTIMS = (
    _v("gloo-closed",
       r"^(?>.*?gloo).*(?:Connection closed by peer|Connection reset by peer|Broken pipe)",
       "gloo lost its connection to another rank", "gloo, transport/tcp/pair.cc"),
    _v("gloo-timeout", r"^(?>.*?gloo).*[Tt]imed out waiting",
       "gloo waited for another rank until its timeout", "gloo, transport/tcp/unbound_buffer.cc",
       waited=True),
    _v("nccl-timeout",
       r"Watchdog caught collective operation timeout|^(?>.*?Collectives? ).*timed? ?out"
       r"|Some NCCL operations have failed or timed out|wait\(\) timed out|"
       r"monitoredBarrier.{0,80}timed out",
       "a NCCL collective waited for another rank until its timeout",
       "torch, ProcessGroupNCCL.cpp", waited=True),
    _v("nccl-remote",
       r"^(?>.*?NCCL).*remote process (?:has )?(?:exited|terminated)|ncclRemoteError"
       r"|socketProgress\w{0,6}: Connection closed by remote peer"
       r"|Call to recv from .{1,80} failed : Connection reset by peer",
       "NCCL lost its connection to another rank", "NVIDIA/nccl, src/misc/socket.cc"),
    _v("store-gone",
       r"^(?>.*?DistNetworkError).*(?:reset by peer|Broken pipe|recvValue failed|sendBytes failed)"
       r"|recvValue failed|Failed to recv, got 0 bytes|failed to check the \"should dump\" flag"
       r"|Connection was likely closed\. Did the remote server shutdown",
       "the store on the master is gone", "torch, TCPStore.cpp"),
    _v("rendezvous-timeout",
       r"DistStoreError|Timed out after \d{1,9} seconds waiting for clients|wait timeout after"
       r"|RendezvousTimeoutError|RendezvousConnectionError|connect\(\) timed out"
       r"|The client socket has timed out after \d{1,9} ?m?s"
       r"|The client socket has failed to connect to any network address",
       "the ranks did not all arrive at the rendezvous",
       "pytorch/pytorch#107021, #69197", waited=True),
    _v("rendezvous-closed", r"RendezvousClosedError|RendezvousGracefulExitError"
       r"|The node '[^']{1,300}' has failed to (?:send a keep-alive|shutdown the rendezvous)",
       "the rendezvous was closed by another node", "torch, dynamic_rendezvous.py"),
    _v("asked-to-end", r"^(?>.*?SignalException).*Process \d{1,9} got signal: (?:15|2)\b"
       r"|^(?>.*?deepspeed).*Killing subprocess|Received SIGTERM: 15|Sending process \d{1,9} "
       r"closing signal SIGTERM", "it was asked to end", "torch elastic, DeepSpeed launcher"),
)  # fmt: skip

_GENERAL = (
    Known("nccl-usage", r"^(?>.*?NCCL).*invalid usage|ncclInvalidUsage|ncclInvalidArgument",
          "NCCL was used in a way that it refuses",
          "often two ranks with one GPU or differing NCCL versions: run with NCCL_DEBUG=WARN",
          "NVIDIA NCCL guide, errors"),
    Known("nccl-system", r"^(?>.*?NCCL).*unhandled system error|ncclSystemError",
          "NCCL met an error of the system, mostly the network",
          "run with NCCL_DEBUG=INFO and look for the first WARN; check the interface and firewall",
          "NVIDIA/nccl#834, #975"),
    Known("nccl-cuda", r"^(?>.*?NCCL).*unhandled cuda error|ncclUnhandledCudaError",
          "NCCL met a CUDA error",
          "run with NCCL_DEBUG=INFO; check the driver and `nvidia-smi -q`",
          "pytorch/pytorch#130113"),
    Known("nccl-internal", r"^(?>.*?NCCL).*internal error|ncclInternalError",
          "an internal check of NCCL failed",
          "run with NCCL_DEBUG=INFO: interface names, topology files and plugins are the usual "
          "causes", "NVIDIA/nccl-tests#166"),
    _v("child-failed", r"ChildFailedError|returned non-zero exit status \d{1,4}\.$",
       "a launcher passes on that its rank failed", "torch elastic; accelerate launch"),
)  # fmt: skip

BUILT_IN = (
    *_MEMORY,
    *_SCHEDULER,
    *_DEVICES,
    *_DEEPSPEED,
    *_CHECKPOINTS,
    *_HUB,
    *_RENDEZVOUS,
    *_FILES,
    *_ENVIRONMENT,
    *_PROGRAM,
    *_VICTIMS,
    *_GENERAL,
)
"""All that are built in, special ones first."""


@cache
def known_endings() -> tuple[Known, ...]:
    """Return all known endings, those of plugins first: they know their program better.

    A broken plugin must not hide why a run failed: it is left out, with a warning in the log.
    """
    try:
        return (*_installed(), *BUILT_IN)
    except PluginError as error:
        logging.getLogger(__name__).warning("%s", error)
        return BUILT_IN


def _installed() -> Iterator[Known]:
    """Yield the endings of plugins that can be used. Raises PluginError."""
    codes = {known.code for known in BUILT_IN}
    for name, known in ENDINGS.installed(taken=codes).items():
        if known.code != name:
            raise broken_plugin([ENDINGS.entries()[name]], f"has the code `{known.code}`")
        try:
            re.compile(known.pattern)
            known.what.format("", "")
            known.advice.format("", "")
        except (re.error, LookupError, ValueError) as error:
            raise broken_plugin([ENDINGS.entries()[name]], f"cannot be used: {error}") from None
        yield known


def is_node_fault(code: str | None) -> bool:
    """Whether an ending of this code is a fault of the node's hardware or driver."""
    return any(known.node_fault for known in known_endings() if known.code == code)
