"""Compile the kernels for a target on first use; keep the result in a cache keyed by content.

A target is "host" (the CPU, one fiber per GPU thread), an AMD architecture ("gfx942") or an NVIDIA one ("sm_90").
"""

import functools
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.cache import user_cache
from lab.errors import LabError, UnknownNameError

HIP = Path(__file__).parent / "hip"
KERNELS = ("one_shot", "two_shot", "low_latency", "reduce_scatter", "all_gather")
ALL_REDUCE = ("one_shot", "two_shot", "low_latency")
PULL = ("pull", "pull_two_stage")
FUSED = ("add_rmsnorm", "add_rmsnorm_two_stage")
EVERY_KERNEL = (*KERNELS, *PULL, *FUSED)
ROUNDINGS = ("RNE", "RTZ", "RNA", "RU", "RD", "RAZ", "RTO", "SR")  # the order of lab::Rounding
REFUSED = {  # LLVM knows them; what a kernel relies on there has been looked at by nobody
    "gfx1250": "its memory model (clusters, several dies) and its buffer descriptors differ from gfx950's",
    "gfx1251": "its memory model (clusters, several dies) and its buffer descriptors differ from gfx950's",
}
OUTPUTS = {"host": (".so",), "amd": (".hsaco", ".s"), "nvidia": (".cubin",)}


@dataclass(frozen=True)
class Artifact:
    """A compiled file and how it came to be.

    Attributes:
        path: the file, in the cache.
        compiler: the compiler's own first line about itself.
        command: what was run; its last word is the output's path at that time.
        cached: True when an earlier build was found.
    """

    path: Path
    compiler: str
    command: tuple[str, ...]
    cached: bool


def default_cache() -> Path:
    """Where compiled files go unless the caller says otherwise."""
    return user_cache()


def vendor_of(target: str) -> str:
    """Return "host", "amd" or "nvidia" for a target; LabError for anything else."""
    if target == "host":
        return "host"
    if target.startswith("gfx"):
        return "amd"
    if target.startswith("sm_"):
        return "nvidia"
    raise LabError("unknown target", value=target, hint='use "host", an AMD "gfx..." or an NVIDIA "sm_..."')


@functools.cache
def _compiler(vendor: str) -> tuple[tuple[str, ...], str]:
    """The compiler's command and its version line; LabError that says what to install."""
    if vendor == "host":
        found = shutil.which("g++") or shutil.which("clang++")
        command = (found,) if found else None
        hint = "install g++ 12 or newer, or clang 15 or newer"
    elif vendor == "nvidia":
        found = shutil.which("nvcc")
        command = (found,) if found else None
        hint = "install the CUDA toolkit and put nvcc on the PATH"
    else:
        found = shutil.which("hipcc")
        zig = importlib.util.find_spec("ziglang")
        command = (found,) if found else (sys.executable, "-m", "ziglang", "clang") if zig else None
        hint = "install ROCm's hipcc, or: pip install ziglang"
    if command is None:
        raise LabError(f"no compiler for the {vendor} target", hint=hint)
    said = subprocess.run([*command, "--version"], capture_output=True, text=True).stdout.strip().splitlines()
    line = said[-2] if vendor == "nvidia" and len(said) > 1 else said[0] if said else command[0]
    return command, f"{Path(command[-1]).name if len(command) == 1 else 'ziglang clang'}: {line}"


def compiler_of(target: str) -> str:
    """Say which compiler builds for `target`; LabError with what to install when there is none."""
    return _compiler(vendor_of(target))[1]


def build(
    target: str,
    *,
    world: int,
    rounding: str = "RNE",
    kernels: Sequence[str] = KERNELS,
    trace: bool = False,
    output: str | None = None,
    source: Path = HIP,
    cache: Path | None = None,
) -> Artifact:
    """Compile `kernels` into one file for `target`, or find it in the cache.

    Args:
        target: "host", "gfx..." or "sm_...".
        world: 2 to 8 ranks; loops over ranks are unrolled.
        rounding: one of ROUNDINGS, for 16-bit results.
        kernels: file stems, relative to `source`.
        trace: compile the phase stamps in.
        output: ".so" (host), ".hsaco" or ".s" (AMD), ".cubin" (NVIDIA); the target's first when None.
        source: the folder of the .hip and .hpp files.
        cache: folder for compiled files; default_cache() when None.

    Raises:
        LabError: no compiler, a name that does not exist, or source that does not compile.
    """
    vendor = vendor_of(target)
    if target in REFUSED:
        raise LabError(f"the kernels are not made for {target}: {REFUSED[target]}", hint="use torch.distributed there")
    output = output or OUTPUTS[vendor][0]
    if output not in OUTPUTS[vendor]:
        raise UnknownNameError(f"output for {target}", output, OUTPUTS[vendor])
    if not 2 <= world <= 8:
        raise LabError("world is out of range", value=world, hint="use 2 to 8 ranks")
    if rounding not in ROUNDINGS:
        raise UnknownNameError("rounding mode", rounding, ROUNDINGS)
    for stem in kernels:
        if not (source / f"{stem}.hip").is_file():
            raise UnknownNameError("kernel", stem, [path.stem for path in source.glob("*.hip")])

    command, version = _compiler(vendor)
    options = [f"-DLAB_WORLD={world}", f"-DLAB_ROUND={ROUNDINGS.index(rounding)}", f"-DLAB_TRACE={int(trace)}"]
    command = (*command, *_flags(vendor, target, output, command), *options, f"-I{source}")
    lines = [f'#include "{stem}.hip"' for stem in kernels]
    if vendor == "host":
        lines.append('#include "host_run.hpp"')
    text = "\n".join(lines) + "\n"
    assemble_for = target if vendor == "amd" and output == ".hsaco" and "ziglang" in command else None
    return _compile(text, command, version, output, [source], cache, assemble_for=assemble_for)


def build_extension(cache: Path | None = None) -> Artifact:
    """Compile _runtime.pyx, the Cython bridge to GPU runtimes and host runs. LabError when Cython is missing."""
    if importlib.util.find_spec("Cython") is None:
        raise LabError("the runtime bridge needs Cython", hint="pip install cython")
    pyx = Path(__file__).with_name("_runtime.pyx")
    command, version = _compiler("host")
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    flags = ("-x", "c", "-O2", "-fPIC", "-shared", "-w", f"-I{sysconfig.get_path('include')}")
    return _compile(pyx.read_text(), (*command, *flags), version, suffix, [], cache, cython=True)


def _flags(vendor: str, target: str, output: str, command: tuple[str, ...]) -> list[str]:
    if vendor == "host":
        # No contraction: the sum is one fp32 addition after another on every target.
        return [
            "-x",
            "c++",
            "-std=c++17",
            "-O1",
            "-ffp-contract=off",
            "-Wno-unknown-pragmas",
            "-fPIC",
            "-shared",
            "-fno-gnu-unique",
        ]
    if vendor == "nvidia":
        return ["-x", "cu", "-std=c++17", "-O3", f"-arch={target}", "-cubin"]
    flags = ["-x", "hip", "-std=c++17", "-O3", "-ffp-contract=off", f"--offload-arch={target}", "--cuda-device-only"]
    if len(command) > 1:  # ziglang's clang: no HIP headers, no device library, and linking is for _assemble to do
        flags += ["-nogpuinc", "-nogpulib", "-mcode-object-version=5"]
        return [*flags, "-S"]
    return [*flags, "-S"] if output == ".s" else [*flags, "--no-gpu-bundle-output"]


def _assemble(assembly: Path, result: Path, target: str) -> None:
    """Ziglang's way to a code object: its clang assembles, its lld links."""
    zig = [sys.executable, "-m", "ziglang"]
    made = result.with_suffix(".o")
    assemble = ["clang", "-target", "amdgcn-amd-amdhsa", f"-mcpu={target}", "-x", "assembler", "-c"]
    _run([*zig, *assemble, str(assembly), "-o", str(made)])
    _run([*zig, "ld.lld", "-shared", str(made), "-o", str(result)])


def _compile(
    text: str,
    command: tuple[str, ...],
    version: str,
    suffix: str,
    folders: Sequence[Path],
    cache: Path | None,
    cython: bool = False,
    assemble_for: str | None = None,
) -> Artifact:
    digest = hashlib.sha256("\0".join([text, version, *command[:-1]]).encode())
    for folder in folders:
        for path in sorted([*folder.rglob("*.hpp"), *folder.rglob("*.hip")]):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    cache = cache or default_cache()
    result = cache / (digest.hexdigest()[:24] + suffix)
    if result.exists():
        return Artifact(result, version, command, cached=True)
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        if cython:
            unit = Path(scratch) / "_runtime.c"
            pyx = Path(scratch) / "_runtime.pyx"
            pyx.write_text(text)
            _run([sys.executable, "-m", "cython", "-3", str(pyx), "-o", str(unit)])
        else:
            unit = Path(scratch) / "module.cpp"
            unit.write_text(text)
        made = Path(scratch) / f"made{suffix}"
        if assemble_for:
            assembly = Path(scratch) / "made.s"
            _run([*command, str(unit), "-o", str(assembly)])
            _assemble(assembly, made, assemble_for)
        else:
            _run([*command, str(unit), "-o", str(made)])
        os.replace(made, result)  # whole or not at all, also with several processes
    return Artifact(result, version, command, cached=False)


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        tail = "\n".join((done.stderr or done.stdout).strip().splitlines()[:20])
        raise LabError(f"the compiler refused the source\n{tail}", hint="command: " + " ".join(command))
