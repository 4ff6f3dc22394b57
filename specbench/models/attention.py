"""Which of torch's attention kernels may run in this process, for our engines and for the library's own loops.

On Hopper torch takes cuDNN's before all others, also with a mask. It plans every exact shape anew, in 40 to 440 ms:
once for every prompt's length, in the timed prefill (pytorch#191576). So it is off unless a run asks for it.
"""

from __future__ import annotations

import torch


def allow_cudnn_attention(allowed: bool) -> None:
    """Of this process, from now on; the others (flash, memory efficient, plain) stay allowed."""
    torch.backends.cuda.enable_cudnn_sdp(allowed)


def is_cudnn_attention_allowed() -> bool:
    """What a process that is started from this one is to be told."""
    return torch.backends.cuda.cudnn_sdp_enabled()
