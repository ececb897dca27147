"""Checks of the software that a job finds in its environment."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from dslaunch.launch import launchers
from dslaunch.launch.devices import NAMES
from dslaunch.plural import counted, listed
from dslaunch.preflight.check import (
    AskedOfAll,
    Check,
    Finding,
    Level,
    NodeAnswers,
    Nodes,
    Question,
    Scope,
    UnansweredError,
    passed,
    skipped,
)
from dslaunch.preflight.checks import _builds as builds
from dslaunch.preflight.checks import _job as job
from dslaunch.preflight.checks import _nvidia as nvidia
from dslaunch.preflight.checks._machine import NVIDIA
from dslaunch.preflight.comparison import alike, deviations, read_of_nodes
from dslaunch.preflight.flow import NodeFlow, compared, each, judged
from dslaunch.protocol.programs import Installed
from dslaunch.protocol.values import Vendor
from dslaunch.pysource.imports import USUAL

LONGEST = 8192
"""Characters that are searched; what NVIDIA installs has 3,000."""
_TOOLKIT_VERSIONS = (
    re.compile(r'"cuda"\s*:\s*\{[^{}]*?"version"\s*:\s*"(\d+\.\d+)', re.DOTALL),
    re.compile(r"CUDA Version (\d+\.\d+)"),
    re.compile(r"^Cuda compilation tools, release (\d+\.\d+),", re.MULTILINE),
)
"""As version.json and version.txt have it, and as nvcc prints it."""
TOOLKIT = Question("read", ["/usr/local/cuda/version.json", "/usr/local/cuda/version.txt"])
NVCC = "/usr/local/cuda/bin/nvcc"
COMPILER = Question("run", {"argv": [NVCC, "--version"]}, 10)
"""For toolkits of which only the compiler's package is installed: they have neither file (seen with
NVIDIA's Debian packages of CUDA 13.0). DeepSpeed asks the compiler alone (0.19,
op_builder/builder.py, installed_cuda_version)."""

INTERCHANGEABLE: Mapping[str, tuple[int, ...]] = {
    "10": (0, 1, 2),
    "11": tuple(range(9)),
    "12": (0, 1, 2, 3, 4, 5, 6, 8, 9),
}
"""Versions, minor by major, of which DeepSpeed accepts any toolkit with any torch. There is no
toolkit 12.7."""


def toolkit_version(text: str) -> str:
    """The toolkit's version, as `12.4`, by what its files or its compiler say; empty if none is
    installed where most are."""
    for form in _TOOLKIT_VERSIONS:
        found = form.search(text[:LONGEST])
        if found is not None:
            return found[1]
    return ""


def of_torch(found: Installed) -> str:
    """The CUDA that torch is built with: `12.1` by its own file or version, `12` by its NCCL."""
    own = re.fullmatch(r"(\d{1,3}\.\d{1,3})(?:\.\d{1,9})?", found.torch.get("cuda", ""))
    if own:
        return own[1]
    tag = re.search(r"\+cu(\d{1,3})(\d)$", job.version(found, "torch"))
    if tag:
        return f"{tag[1]}.{tag[2]}"
    return next((n[-2:] for n in found.packages if re.fullmatch(r"nvidia-nccl-cu\d\d", n)), "")


def toolkit_fits(there: str, wanted: str) -> bool | None:
    """Return whether DeepSpeed builds with that toolkit; None: torch's minor version, by which it
    decides, is not known."""
    if there == wanted:
        return True
    major, _, minor = there.partition(".")
    wanted_major, _, wanted_minor = wanted.partition(".")
    accepted = INTERCHANGEABLE.get(major, ())
    if major != wanted_major:
        return False
    if not wanted_minor:
        return True if int(minor) in accepted else None
    return int(minor) in accepted and int(wanted_minor) in accepted


def _ask_sw_cuda_toolkit(scope: Scope) -> AskedOfAll:
    return {**job.ask(scope), "nvidia": NVIDIA, "toolkit": TOOLKIT}


def _flow_sw_cuda_toolkit(a: NodeAnswers) -> NodeFlow:
    if not a["nvidia"]:
        return [skipped("no NVIDIA GPU")]
    found = job.installed(a)
    if found is None:
        return [skipped(job.NOT_ENTERED)]
    there = toolkit_version("\n".join(a["toolkit"].values()))
    if not there:
        a = yield {"compiler": COMPILER}
        there = toolkit_version(a.value(COMPILER)["out"])
    return _sw_cuda_toolkit(there, of_torch(found))


def _sw_cuda_toolkit(there: str, wanted: str) -> Iterator[Finding]:
    if there and wanted:
        yield _toolkit_finding(there, wanted)
    elif there:
        yield skipped("CUDA version of torch not reported")
    else:
        yield skipped("CUDA toolkit not found in /usr/local/cuda")


def _toolkit_finding(there: str, wanted: str) -> Finding:
    fit = toolkit_fits(there, wanted)
    if fit is None:
        words = f"CUDA toolkit {there}, torch built with CUDA {wanted} of unknown minor version"
        return Finding("unknown", words)
    if not fit:
        words = f"CUDA toolkit {there}, torch built with {wanted}"
        return Finding("warn", words, f"CUDA {wanted}")
    if "." in wanted and there != wanted:
        return passed(f"CUDA toolkit {there}, torch built with {wanted}: compatible")
    return passed(f"CUDA toolkit {there} is compatible with torch")


LIBAIO = "/usr/include/libaio.h"
TOOLS = Question("present", ["nvcc", NVCC, "c++", "ninja", LIBAIO])
NEEDS = {"offload": ("cpu_adam",), "zero-infinity": ("async_io", "cpu_adam")}


def _ask_sw_deepspeed_ops(scope: Scope) -> AskedOfAll:
    return {**job.ask(scope), "nvidia": NVIDIA}


def _flow_sw_deepspeed_ops(a: NodeAnswers) -> NodeFlow:
    found = job.installed(a)
    if found is None:
        return [skipped(job.NOT_ENTERED)]
    if "deepspeed" not in found.packages:
        return [skipped("DeepSpeed is not installed")]
    if not a["nvidia"] and not any(purpose in NEEDS for purpose in a.scope.purposes):
        return [skipped("no NVIDIA GPU, and no offloading")]
    # there DeepSpeed writes down which kernels were built when it was installed
    file = f"{found.packages['deepspeed'][1]}/deepspeed/git_version_info_installed.py"
    question = Question("texts", [file], 5)
    a = yield {"built": question, "tools": TOOLS}
    text = "\n".join(a.value(question).values())
    return _sw_deepspeed_ops(a, set(re.findall(r"['\"](\w+)['\"]\s*:\s*True", text)))


def _sw_deepspeed_ops(a: NodeAnswers, built: set[str]) -> Iterator[Finding]:
    tools, gpu = a.value(TOOLS), bool(a["nvidia"])
    needed = [op for purpose in sorted(a.scope.purposes) for op in NEEDS.get(purpose, ())]
    lacks = {
        op: list(_lacks_tools(op, tools, gpu)) for op in dict.fromkeys(needed) if op not in built
    }
    missing = dict.fromkeys(word for words in lacks.values() for word in words)
    if missing:
        which = ", ".join(op for op, lacked in lacks.items() if lacked)
        words = f"{which} cannot be built: {', '.join(missing)} not found"
        yield Finding("fail", words, "prebuilt kernels, or the tools to build them")
    elif not built and not {"nvcc", NVCC} & set(tools) and gpu:
        yield Finding("info", "no prebuilt kernels, and nvcc not found")
    else:
        yield passed("DeepSpeed kernels are prebuilt or can be built")


def _lacks_tools(op: str, tools: Mapping[str, str], gpu: bool) -> Iterator[str]:
    for tool in ("c++", "ninja"):
        if tool not in tools:
            yield tool
    if op == "async_io" and LIBAIO not in tools:
        yield "libaio.h"
    if gpu and op == "cpu_adam" and not {"nvcc", NVCC} & set(tools):
        yield "nvcc"


FIX = "install it for that interpreter, or set `python:` or `activate:` to one that has it"


def _sw_packages(a: NodeAnswers) -> Iterator[Finding]:
    scope = a.scope
    if not launchers.starts_python(scope.job):
        yield skipped("the job does not use Python")
        return
    found = job.installed(a)
    if found is None:
        yield skipped(job.NOT_ENTERED)
        return
    wrong = [*_of_launcher(scope, found), *_of_script(scope, found)]
    yield from wrong or [passed(_packages(found))]


def _of_launcher(scope: Scope, found: Installed) -> Iterator[Finding]:
    absent: dict[str, None] = {}
    for name, module in job.missing(found, launchers.modules_of(scope.launcher)):
        top = name.partition(".")[0]
        if module is None or not module.at:
            absent[top] = None
        elif not module.package:
            words = f"{top} is the file {module.at}, not the package"
            fix = "rename the file: Python finds it before the package"
            yield Finding("fail", words, f"the package {top}", fix)
        else:
            words = f"{top} at {module.at} has no {name}"
            expected = f"{name}, started by launcher `{scope.launcher}`"
            yield Finding("fail", words, expected, FIX)
    if absent:
        verb = "is" if len(absent) == 1 else "are"
        words = f"{' and '.join(absent)} {verb} not installed for {found.executable}"
        words += f", required by launcher `{scope.launcher}`"
        yield Finding("fail", words, " and ".join(absent), FIX)


def _of_script(scope: Scope, found: Installed) -> Iterator[Finding]:
    known = {name.partition(".")[0] for name in launchers.modules_of(scope.launcher)}
    certain = [name for name in scope.imports.certain if name not in known]
    absent = [name for name, _ in job.missing(found, tuple(certain))]
    script = scope.job.program
    if absent:
        words = f"{_listed(absent)} not installed for {found.executable}, and "
        if scope.job.kind == "module" and not scope.imports.read:
            words += f"the module to run is {script}"
        else:
            words += f"{script} imports {'it' if len(absent) == 1 else 'them'}"
        yield Finding("fail", words, "what the script imports", FIX)
    possible = tuple(n for n in scope.imports.possible if n in USUAL and n not in known)
    perhaps = [name for name, _ in job.missing(found, possible)]
    if perhaps:
        words = (
            f"{_listed(perhaps)} not installed for {found.executable}; a part of {script} imports "
        )
        words += "it" if len(perhaps) == 1 else "them"
        yield Finding("warn", words, "what the script imports", FIX)
    unread = script and scope.job.kind != "command" and not scope.imports.read
    if unread and "torch" not in known and "torch" not in found.modules:
        words = f"torch is not installed for {found.executable}"
        expected = f"torch, if {script} imports it: its source is not on this machine"
        yield Finding("warn", words, expected, FIX)


def _listed(names: list[str]) -> str:
    return f"{listed(names, 4)} {'is' if len(names) == 1 else 'are'}"


def _packages(found: Installed) -> str:
    named = [f"{p} {found.packages[p][0]}" for p in job.MUST[:2] if p in found.packages]
    return ", ".join(named) or f"{counted(len(found.packages), 'known package')}, none required"


HIDDEN = {"CUDA_VISIBLE_DEVICES": ("", "-1"), "ACCELERATE_USE_CPU": ("true", "1", "yes")}
"""Variables with values that disable GPUs for a job."""


def _ask_sw_torch_build(scope: Scope) -> AskedOfAll:
    return {**job.ask(scope), **builds.ask(scope)}


def _flow_sw_torch_build(a: NodeAnswers) -> NodeFlow:
    if nvidia.has_driver(a):
        a = yield {"query": nvidia.QUERY}
    return _sw_torch_build(a)


def _sw_torch_build(a: NodeAnswers) -> Iterator[Finding]:
    if not launchers.starts_python(a.scope.job):
        yield skipped("the job does not use Python")
        return
    there = builds.vendors(a)
    found = job.installed(a)
    if not there:
        yield skipped("no accelerators found")
    elif found is None:
        yield skipped(job.NOT_ENTERED)
    elif not found.torch:
        yield skipped("build of torch not reported")
    elif hidden := _hides(a):
        yield skipped(f"the job uses no GPU: {hidden} is set")
    else:
        yield from _torch_fits(a, there, found)


def _torch_fits(a: NodeAnswers, there: tuple[Vendor, ...], found: Installed) -> Iterator[Finding]:
    """One vendor is enough: graphics of a processor may count as a second one."""
    fitting = [vendor for vendor in there if builds.is_for(found, vendor)]
    words = f"torch {found.torch.get('__version__', '')} built for {builds.target(found)}"
    if not fitting:
        level: Level = "fail" if _certain(a.scope) else "warn"
        names = " or ".join(f"{NAMES[vendor]}s" for vendor in there)
        yield Finding(level, words, f"torch built for the node's {names}")
    elif "nvidia" in fitting:
        yield from _cuda_driver(a, found.torch["cuda"])
    else:
        yield passed(words)


def _certain(scope: Scope) -> bool:
    """Whether the job certainly uses torch."""
    return "torch" in {name.partition(".")[0] for name in job.needed(scope)}


def _cuda_driver(a: NodeAnswers, cuda: str) -> Iterator[Finding]:
    """A driver that is too old for torch's CUDA, unless the image brings cuda-compat."""
    major = cuda.partition(".")[0]
    is_known = major.isdecimal() and len(major) < 4
    least = builds.DRIVER_OF_CUDA.get(int(major)) if is_known else None
    has = builds.driver(a)
    if least is not None and has is not None and has < least:
        words = f"torch built with CUDA {cuda}, driver {has}"
        fix = f"update the driver to {least} or newer, or install torch for an older CUDA"
        yield Finding("warn", words, f"driver {least} or newer", fix)
    else:
        yield passed(f"torch built with CUDA {cuda}")


def _hides(a: NodeAnswers) -> str:
    """Return the variable that disables GPUs for the job; empty: none does."""
    env = job.variables(a)
    return next((n for n, values in HIDDEN.items() if env.get(n, "?").lower() in values), "")


def _compare_sw_versions(nodes: Nodes) -> Iterator[Finding]:
    said: dict[str, Installed] = {}
    for host, found in read_of_nodes(nodes, job.installed):
        if isinstance(found, UnansweredError):
            yield Finding("unknown", str(found), hosts=(host,))
        elif found is None:
            yield Finding("skip", job.NOT_ENTERED, hosts=(host,))
        else:
            said[host] = found
    differ: set[str] = set()
    for package in (*job.MUST, *job.SHOULD):
        versions = {host: job.version(found, package) for host, found in said.items()}
        for odd in deviations(versions):
            differ |= set(odd.hosts)
            has = f"{package} {odd.value}" if odd.value else f"{package} not installed"
            others = f"{package} {odd.common}" if odd.common else "none"
            level: Level = "fail" if package in job.MUST else "warn"
            yield Finding(level, has, odd.as_on(others), hosts=odd.hosts)
    for host, found in said.items():
        if host not in differ:
            named = [f"{p} {v}" for p in job.MUST if (v := job.version(found, p))]
            # what a job lacks is said by sw.packages: here nothing is to be compared
            level = "pass" if named else "skip"
            yield Finding(level, ", ".join(named) or "torch is not installed", hosts=(host,))


NO_LIBRARY = (
    "unset PYTHONHOME (`env:`, `activate:`, ~/.bashrc); or recreate the virtual "
    "environment if its base Python was moved or removed"
)


def _py_interpreter(a: NodeAnswers) -> Iterator[Finding]:
    if not launchers.starts_python(a.scope.job):
        yield skipped("the job does not use Python")
        return
    found = job.entered(a)
    if not found.activated and (a.kind.activate or "").strip():
        yield skipped("`activate:` fails; see py.activate")
    elif found.installed is not None:
        version = ".".join(map(str, found.installed.version))
        yield passed(f"Python {version} at {found.installed.executable}")
    else:
        yield _no_interpreter(a, found)


def _no_interpreter(a: NodeAnswers, found: job.Entered) -> Finding:
    name = a.kind.python or "python3"
    if found.tried["code"] is None:
        words = f"{found.path or name} did not start within {a.limits['seconds']:g} s"
        fix = "check for a hung or overloaded file system in sys.path: `python3 -X importtime`"
        return Finding("fail", words, "a start within a second", fix)
    if not found.path:
        after = "" if a.kind.activate is None else " after the activate line"
        return Finding("fail", f"interpreter {name!r} not found{after}", "a Python interpreter")
    if found.without_library:
        words = f"{found.path} does not start: its standard library is missing"
        return Finding("fail", words, "a Python interpreter", NO_LIBRARY)
    said = f": {found.last_words}" if found.last_words else ""
    words = f"{found.path} fails with exit code {found.tried['code']}{said}"
    return Finding("fail", words, "a Python interpreter")


def _python_version(a: NodeAnswers) -> str | None:
    found = job.installed(a) if launchers.starts_python(a.scope.job) else None
    return ".".join(map(str, found.version[:2])) if found is not None else None


CHECKS = {
    "sw.cuda-toolkit": Check(
        title="the CUDA toolkit is compatible with torch",
        why=(
            "DeepSpeed builds its kernels at first use, and raises CUDAMismatchException "
            "if the toolkit's major version is not torch's; since CUDA 13 also if the "
            "minor version differs."
        ),
        fix=(
            "install the toolkit of torch's CUDA version, or DeepSpeed with prebuilt "
            "kernels (DS_BUILD_OPS=1)"
        ),
        see="nvcc --version; python -c 'import torch; print(torch.version.cuda)'",
        source="DeepSpeed 0.19.8 op_builder/builder.py (cuda_minor_mismatch_ok)",
        flow=each(_flow_sw_cuda_toolkit, _ask_sw_cuda_toolkit),
    ),
    "sw.deepspeed-ops": Check(
        title="DeepSpeed kernels are prebuilt or can be built",
        why=(
            "Offloaded optimizers and NVMe need compiled kernels. If these can be "
            "neither loaded nor built, the training fails at its first step."
        ),
        fix=(
            "run `apt-get install g++ ninja-build libaio-dev` and install the CUDA "
            "toolkit; or install DeepSpeed with DS_BUILD_OPS=1"
        ),
        see="ds_report",
        source="DeepSpeed 0.19 op_builder (cpu_adam.py, async_io.py), env_report.py",
        flow=each(_flow_sw_deepspeed_ops, _ask_sw_deepspeed_ops),
    ),
    "sw.packages": Check(
        title="imports of launcher and script are installed",
        tier="gate",
        why=(
            "A launcher without torch, or a script without a module, fails at its first "
            "import; the ranks of the other nodes wait for it."
        ),
        fix=FIX,
        see="python3 -c 'import torch'",
        source="torch 2.13 distributed/run.py, DeepSpeed 0.19.8 launcher/launch.py, accelerate "
        "1.15 commands/launch.py; Python's import system",
        flow=judged(_sw_packages, job.ask),
    ),
    "sw.torch-build": Check(
        title="torch is built for the node's accelerators",
        tier="gate",
        why=(
            "A torch without CUDA finds no GPU: ranks fail when they select their "
            "device, or train on the CPU, a hundred times slower."
        ),
        fix="install torch for these accelerators (pytorch.org, Get Started), or set "
        "`CUDA_VISIBLE_DEVICES: ''` in `env:` for a job on CPUs",
        see="python3 -c 'import torch; print(torch.version.cuda, torch.cuda.is_available())'",
        source="torch 2.13 torch/version.py (cuda, hip, xpu); NVIDIA CUDA Toolkit release notes, "
        "minimum driver versions",
        flow=each(_flow_sw_torch_build, _ask_sw_torch_build),
    ),
    "sw.versions": Check(
        title="torch, DeepSpeed and NCCL versions are equal",
        why=(
            "NCCL refuses or hangs if versions differ; different versions of torch or "
            "DeepSpeed fail in the first collective, or compute different results."
        ),
        fix=("install the environment of all nodes from one lock file, or use one container image"),
        see="python -m pip list",
        source="NCCL 2.27 bootstrap.cc (version check); Google cluster-health-scanner configcheck",
        flow=compared(_compare_sw_versions, job.ask),
    ),
    "py.interpreter": Check(
        title="the job's Python exists, in the same version",
        tier="gate",
        why=(
            "Packages are installed for one version of Python; a node with another "
            "version fails at its first import, and all others wait for it."
        ),
        fix="install the interpreter on the node, or correct `python:` or `activate:`",
        see="command -v python3; python3 -V",
        source="imbue cluster-health: the same container everywhere",
        flow=judged(
            _py_interpreter,
            job.ask,
            compare=alike(
                _python_version,
                level="fail",
                found="Python {value}",
                expected="Python {common}, as on {nodes}",
            ),
        ),
        limits=job.LIMITS,
        limits_mean="seconds in which Python must start",
    ),
}
