"""The variables of the environment that accelssl reads. No torch."""

import os

from accelssl.errors import UserError

PREFIX = "ACCELSSL_"
KERNELS = PREFIX + "KERNELS"
TORCH = "torch"
"""Value of KERNELS with which models and optimizers use torch in place of their own kernels."""


def uses_kernels() -> bool:
    """Tell if models and optimizers use their own kernels; ACCELSSL_KERNELS=torch forbids them."""
    return os.environ.get(KERNELS) != TORCH


def given() -> dict[str, str]:
    """Return all variables that begin with ACCELSSL_, unknown ones too."""
    return {name: value for name, value in os.environ.items() if name.startswith(PREFIX)}


def refuse_misfits() -> None:
    """Raise UserError for an unknown variable or value, which would change nothing."""
    for name, value in given().items():
        if name != KERNELS:
            raise UserError(
                f"{name} is set in the environment, and accelssl has no such variable.",
                f"Unset it. {KERNELS}={TORCH} switches off the kernels of models and optimizers.",
            )
        if value != TORCH:
            raise UserError(
                f"{name} is {value!r} in the environment.", f"Set it to {TORCH}, or unset it."
            )
