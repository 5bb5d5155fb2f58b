"""Checks that the packages are installed and fit together."""

import ctypes
from importlib import import_module, metadata

import torch
from packaging.requirements import Requirement

from accelssl.benchmarks.doctor.finding import Context, Finding
from accelssl.errors import UserError

DALI_PACKAGES = {12: "nvidia-dali-cuda120", 13: "nvidia-dali-cuda130"}
"""By the major version of CUDA."""


def check_torch(context: Context) -> Finding:
    """Check that torch computes the sum of a product exactly."""
    build = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "for the CPU alone"
    numbers = torch.arange(64, dtype=torch.float64).view(8, 8)
    total = float((numbers @ numbers.T).sum())
    # Sum over columns of the squared column sums: 8 columns of sums 224 + 8c.
    if total != sum((224 + 8 * c) ** 2 for c in range(8)):
        return Finding("torch", "broken", f"a matrix product is {total}", "Install torch anew.")
    threads = f"{torch.get_num_threads()} threads"
    return Finding("torch", "ok", f"{torch.__version__}, {build}, {threads}")


def check_requirements(context: Context) -> Finding:
    """Check that the packages accelssl requires are installed in new enough releases."""
    problems, found = [], []
    for requirement in map(Requirement, metadata.requires("accelssl") or ()):
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = version_of(requirement.name)
        if version is None:
            problems.append(f"{requirement.name} is missing")
        elif not requirement.specifier.contains(version, prereleases=True):
            problems.append(f"{requirement.name} {version} is not {requirement.specifier}")
        found.append(f"{requirement.name} {version}")
    if problems:
        remedy = "Install accelssl again, with what it needs: pip install accelssl"
        return Finding("requirements", "broken", ", ".join(problems), remedy)
    return Finding("requirements", "ok", ", ".join(found))


def check_dali_package(context: Context) -> Finding:
    """Import DALI and check that the driver of a wanted GPU can run DALI's CUDA version."""
    installed = {major: v for major, name in DALI_PACKAGES.items() if (v := version_of(name))}
    wanted = _cuda_major() or max(DALI_PACKAGES)
    remedy = f'Install it with: pip install "accelssl[cu{wanted}]"'
    try:
        import_module("accelssl.pipeline.decode.dali")
    except UserError as error:
        return Finding("DALI", "broken", error.what, remedy)
    if not installed:  # unpacked by hand, or by a build that leaves out who it is
        return Finding("DALI", "ok", f"{_imported_version()}, not installed as a package")
    if len(installed) > 1:
        names = " and ".join(DALI_PACKAGES[major] for major in installed)
        what = f"{names} are installed: one overwrites the other"
        return Finding("DALI", "broken", what, f"Uninstall nvidia-dali-*. {remedy}")
    ((major, version),) = installed.items()
    driver = driver_cuda()
    found = f"{version} for CUDA {major}"
    if context.on_gpu and driver is not None and driver[0] < major:
        what = f"{found}; the driver runs CUDA {driver[0]}.{driver[1]}"
        return Finding("DALI", "broken", what, f"Uninstall {DALI_PACKAGES[major]}. {remedy}")
    if context.on_gpu and major != wanted:
        found += f" (torch is for CUDA {wanted}: both run, each with libraries of its own)"
    return Finding("DALI", "ok", found)


def check_object_storage(context: Context) -> Finding:
    """Check for boto3; only s3:// needs boto3."""
    needed = (context.data or "").startswith("s3://")
    return _extra("s3://", "boto3", 'pip install "accelssl[s3]"', "broken" if needed else "absent")


def check_torchvision(context: Context) -> Finding:
    """Check for torchvision; only comparisons need torchvision."""
    return _extra("comparisons", "torchvision", "pip install torchvision", "absent")


def check_tensorboard(context: Context) -> Finding:
    """Check for TensorBoard; a run's log does not need TensorBoard."""
    return _extra("TensorBoard", "tensorboard", "pip install tensorboard", "absent")


def _extra(name: str, package: str, command: str, otherwise: str) -> Finding:
    try:
        import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        found = f"{package} is not installed"
        if otherwise == "broken":
            return Finding(name, "broken", found, f"Install it with: {command}")
        return Finding(name, "absent", found, f"If you want it: {command}")
    return Finding(name, "ok", f"{package} {version_of(package)}")


def _imported_version() -> str:
    return str(getattr(import_module("nvidia.dali"), "__version__", "of unknown version"))


def version_of(package: str) -> str | None:
    """Return the installed version, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cuda_major() -> int | None:
    return int(torch.version.cuda.partition(".")[0]) if torch.version.cuda else None


def driver_cuda() -> tuple[int, int] | None:
    """Return the newest CUDA (major, minor) that the driver runs; None without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    number = ctypes.c_int()
    if driver.cuDriverGetVersion(ctypes.byref(number)) != 0:
        return None
    return number.value // 1000, number.value % 1000 // 10
