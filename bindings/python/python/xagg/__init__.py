"""XAgg sums the gradients of distributed training in the network, on ordinary servers.

PyTorch users need `xagg.torch` only::

    import xagg.torch

    group = xagg.torch.connect("job.toml", rank)
    model = DistributedDataParallel(model)
    model.register_comm_hook(group, xagg.torch.all_reduce_hook)
"""

from ._native import XaggError
from ._native import __VERSION__ as __version__

__all__ = ["XaggError", "__version__"]
