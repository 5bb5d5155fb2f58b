"""Detection of errors that come from a lack of GPU memory."""

import torch


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return True if a lack of memory caused the error, in torch's allocator or a kernel's loading.

    Lack of memory may raise another error later, for example during the capture of a CUDA graph.
    Therefore catch RuntimeError and call this function, which follows the chain of causes.
    """
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error).lower():
            return True
        error = error.__cause__ or error.__context__
    return False
