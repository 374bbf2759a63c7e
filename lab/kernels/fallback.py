"""torch.distributed, over the right ranks, for what the kernels do not take."""

import torch
import torch.distributed as dist

from lab.errors import LabError

# Their names since torch 2.13, and before.
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class Fallback:
    """Collectives of a group whose ranks are those of a communicator, in the same order.

    Attributes:
        group: in use; None where one rank needs none.
    """

    def __init__(self, group: "dist.ProcessGroup", given: "dist.ProcessGroup | None"):
        """Take `given`, or the default group where it has these very ranks, or else the communicator's own group.

        No group is made here: that may hang where the same ranks have had one before (their addresses stay in the
        store). The communicator's own group does the sum in any case; over gloo that is slow.

        Raises:
            LabError: `given` has other ranks.
        """
        ranks = dist.get_process_group_ranks(group)
        if given is not None and dist.get_process_group_ranks(given) != ranks:
            raise LabError(
                "the fallback group has other ranks than the communicator",
                value=dist.get_process_group_ranks(given), hint=f"give a group of the ranks {ranks}, or None",
            )  # fmt: skip
        whole = ranks == dist.get_process_group_ranks(dist.group.WORLD)
        self.group = None if len(ranks) == 1 else given if given is not None else dist.group.WORLD if whole else group

    def all_reduce(self, tensor: torch.Tensor, out: torch.Tensor) -> None:
        """The sum of `tensor` over all ranks, in `out` (which may be `tensor`)."""
        if out.data_ptr() != tensor.data_ptr() or out.stride() != tensor.stride():
            out.copy_(tensor)
        if self.group is None:
            return
        if out.is_contiguous():
            dist.all_reduce(out, group=self.group)
        else:
            dense = out.contiguous()
            dist.all_reduce(dense, group=self.group)
            out.copy_(dense)

    def reduce_scatter(self, tensor: torch.Tensor, out: torch.Tensor) -> None:
        """This rank's part of the sum: `tensor` holds one part a rank, one behind the other, all contiguous."""
        if self.group is None:
            out.copy_(tensor.view(out.shape))
        elif tensor.is_cuda and "nccl" not in dist.get_backend(self.group):  # gloo scatters on the CPU only
            whole = tensor.clone()
            dist.all_reduce(whole, group=self.group)
            out.copy_(whole.view(-1, *out.shape)[dist.get_rank(self.group)])
        else:
            _reduce_scatter(out.view(-1), tensor.view(-1), group=self.group)

    def all_gather(self, tensor: torch.Tensor, out: torch.Tensor) -> None:
        """Every rank's `tensor`, one behind the other in `out`, all contiguous."""
        if self.group is None:
            out.copy_(tensor.view(out.shape))
        else:
            _all_gather(out.view(-1), tensor.view(-1), group=self.group)
