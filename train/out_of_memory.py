"""Whether an error says that a GPU's memory was too small."""

import torch


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether that was the reason: of torch's allocator, or of a kernel that was loaded.

    The reason may have led to another error, as in a CUDA graph that was being captured: so catch
    RuntimeError, and ask.
    """
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error).lower():
            return True
        error = error.__cause__ or error.__context__
    return False
