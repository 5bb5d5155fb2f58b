"""All checks, in order. A check that raises an error also becomes a finding."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from accelssl.benchmarks.doctor.decoder import (
    check_data_path_on_cpu,
    check_data_path_on_gpu,
    check_decoder_on_cpu,
    check_hardware_decoder,
)
from accelssl.benchmarks.doctor.device import (
    check_bf16,
    check_copies,
    check_gpu,
    check_gpu_memory,
    check_nvrtc,
    check_triton,
)
from accelssl.benchmarks.doctor.finding import Context, Finding
from accelssl.benchmarks.doctor.machine import check_cores, check_waiting_threads
from accelssl.benchmarks.doctor.op_equality import check_op
from accelssl.benchmarks.doctor.packages import (
    check_dali_package,
    check_object_storage,
    check_requirements,
    check_tensorboard,
    check_torch,
    check_torchvision,
)
from accelssl.benchmarks.doctor.queues import check_effect_of_queues, check_queues
from accelssl.benchmarks.doctor.storage import check_disk, check_shards, check_shared_memory
from accelssl.errors import UserError

Check = Callable[[Context], Finding]

# A part that is broken is named before what cannot work without it. Free memory comes before
# anything here takes some.
_FIRST: tuple[Check, ...] = (check_torch, check_requirements, check_gpu)
_OF_GPU: tuple[Check, ...] = (
    check_gpu_memory,
    check_copies,
    check_bf16,
    check_queues,
    check_effect_of_queues,
    check_nvrtc,
    check_triton,
)
_EVERYWHERE: tuple[Check, ...] = (check_op, check_dali_package, check_data_path_on_cpu)
_DECODING_ON_GPU: tuple[Check, ...] = (check_data_path_on_gpu, check_hardware_decoder)
_DECODING_ON_CPU: tuple[Check, ...] = (check_decoder_on_cpu,)
_LAST: tuple[Check, ...] = (
    check_cores,
    check_waiting_threads,
    check_shared_memory,
    check_disk,
    check_shards,
    check_object_storage,
    check_torchvision,
    check_tensorboard,
)


@dataclass(frozen=True)
class Examination:
    """Findings of all checks, and the time they took."""

    findings: tuple[Finding, ...]
    elapsed_s: float

    @property
    def is_broken(self) -> bool:
        return any(finding.verdict == "broken" for finding in self.findings)


def checks_for(context: Context) -> tuple[Check, ...]:
    """Return the checks to run; without a GPU, leave out checks that need a GPU."""
    of_device = _OF_GPU if context.on_gpu else ()
    decoding = _DECODING_ON_GPU if context.on_gpu else _DECODING_ON_CPU
    return (*_FIRST, *of_device, *_EVERYWHERE, *decoding, *_LAST)


def examine(context: Context, progress: Callable[[str], None] = lambda doing: None) -> Examination:
    """Run every check; `progress` hears of each before it starts. Raises nothing of theirs."""
    begin_s = time.perf_counter()
    findings = []
    for check in checks_for(context):
        name = check.__name__.removeprefix("check_").replace("_", " ")
        progress(name)
        try:
            findings.append(check(context))
        except UserError as error:
            findings.append(Finding(name, "broken", error.what, error.remedy))
        except Exception as error:  # whatever breaks it, the other checks go on
            text = str(error).strip() or "no message"
            remedy = "The check itself failed: report it if that text does not say why."
            findings.append(Finding(name, "broken", f"{type(error).__name__}: {text}", remedy))
    return Examination(tuple(findings), time.perf_counter() - begin_s)
