"""The communicator's calls as torch operators: what torch.compile and captured graphs see.

An operator names its communicator by a string that is the same on every rank and in every run of a program, so that a
compiled graph is found in the cache again. Registered with `torch.library.Library` and one implementation for every
kind of tensor: the schemas are checked here once and not at every call.
"""

import torch

from lab.kernels.registry import registry
from lab.kernels.tensors import refuse_grad

_library = torch.library.Library("lab", "DEF")
_COMPILES = (torch.Tag.pt2_compliant_tag,)


def _define(schema: str) -> None:
    _library.define(schema, tags=_COMPILES)


_define("all_reduce(Tensor tensor, str communicator) -> Tensor")
_define("all_reduce_(Tensor(a!) tensor, str communicator) -> ()")
_define("all_reduce_out(Tensor tensor, Tensor(a!) out, str communicator) -> ()")
_define("reduce_scatter(Tensor tensor, str communicator, int dim=0) -> Tensor")
_define("all_gather(Tensor tensor, str communicator, int dim=0) -> Tensor")


def _all_reduce(tensor: torch.Tensor, communicator: str) -> torch.Tensor:
    return registry.find(communicator).all_reduce(tensor)


def _all_reduce_in_place(tensor: torch.Tensor, communicator: str) -> None:
    registry.find(communicator).all_reduce(tensor, out=tensor)


def _all_reduce_out(tensor: torch.Tensor, out: torch.Tensor, communicator: str) -> None:
    registry.find(communicator).all_reduce(tensor, out=out)


def _reduce_scatter(tensor: torch.Tensor, communicator: str, dim: int = 0) -> torch.Tensor:
    return registry.find(communicator).reduce_scatter(tensor, dim=dim)


def _all_gather(tensor: torch.Tensor, communicator: str, dim: int = 0) -> torch.Tensor:
    return registry.find(communicator).all_gather(tensor, dim=dim)


_library.impl("all_reduce", _all_reduce, "CompositeExplicitAutograd")
_library.impl("all_reduce_", _all_reduce_in_place, "CompositeExplicitAutograd")
_library.impl("all_reduce_out", _all_reduce_out, "CompositeExplicitAutograd")
_library.impl("reduce_scatter", _reduce_scatter, "CompositeExplicitAutograd")
_library.impl("all_gather", _all_gather, "CompositeExplicitAutograd")


@torch.library.register_fake("lab::all_reduce", lib=_library)
def _(tensor: torch.Tensor, communicator: str) -> torch.Tensor:
    refuse_grad(tensor)
    return torch.empty_like(tensor)


@torch.library.register_fake("lab::all_reduce_", lib=_library)
def _(tensor: torch.Tensor, communicator: str) -> None:
    refuse_grad(tensor)


@torch.library.register_fake("lab::all_reduce_out", lib=_library)
def _(tensor: torch.Tensor, out: torch.Tensor, communicator: str) -> None:
    refuse_grad(tensor)


@torch.library.register_fake("lab::reduce_scatter", lib=_library)
def _(tensor: torch.Tensor, communicator: str, dim: int = 0) -> torch.Tensor:
    refuse_grad(tensor)
    return tensor.new_empty(registry.find(communicator).shape_of_part(tensor, dim))


@torch.library.register_fake("lab::all_gather", lib=_library)
def _(tensor: torch.Tensor, communicator: str, dim: int = 0) -> torch.Tensor:
    refuse_grad(tensor)
    return tensor.new_empty(registry.find(communicator).shape_of_whole(tensor, dim))
