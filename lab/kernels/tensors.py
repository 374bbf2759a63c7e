"""What the kernels ask of a tensor: one span of memory, and a result that lies in it or wholly elsewhere."""

from dataclasses import dataclass

import torch

from lab.errors import LabError

DTYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


@dataclass(frozen=True)
class Obstacle:
    """Why a call falls back: of a kind, which is what is logged once, and in words, for the tensor at hand."""

    kind: str
    text: str


def is_flat(tensor: torch.Tensor) -> bool:
    """Whether the elements fill one span of memory, each place once, in whatever order of dimensions."""
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def obstacle(tensor: torch.Tensor, device: torch.device) -> Obstacle | None:
    """What of a tensor the kernels cannot take. Looks at type, shape and strides, which agree on all ranks."""
    if tensor.layout != torch.strided:
        return Obstacle("layout", f"layout {tensor.layout} is not strided")
    if tensor.device != device:
        return Obstacle("device", f"tensor on {tensor.device}, communicator on {device}")
    if tensor.dtype not in DTYPES:
        return Obstacle("type", f"type {tensor.dtype} is not one of float32, float16, bfloat16")
    if tensor.numel() == 0:
        return Obstacle("empty", "no elements")
    if tensor.is_neg():
        return Obstacle("negative", "its elements are stored with the other sign")
    if not is_flat(tensor):
        return Obstacle("strides", "its elements overlap or leave gaps in memory")
    return None


def refuse_grad(tensor: torch.Tensor) -> None:
    """An all-reduce has no gradient here, on no path. LabError for a tensor that wants one."""
    if tensor.requires_grad and torch.is_grad_enabled():
        raise LabError(
            "the lab's collectives have no gradient, and this tensor requires one",
            hint="call them under torch.no_grad() or torch.inference_mode(), or on tensor.detach()",
        )


def refuse_out(tensor: torch.Tensor, out: torch.Tensor) -> None:
    """LabError where the sum of `tensor` cannot be put into `out`.

    It can where `out` is `tensor`, or has its type, shape, device and (where the tensor is flat) strides and shares no
    memory with it.
    """
    if _plainly_apart(tensor, out):
        return
    if out.dtype != tensor.dtype or out.shape != tensor.shape:
        raise LabError("out must have the type, shape and strides of the tensor", value=(out.dtype, tuple(out.shape)))
    if out.device != tensor.device:
        raise LabError("out must be on the tensor's device", value=str(out.device), hint=f"it is on {tensor.device}")
    if out.stride() != tensor.stride() and is_flat(tensor) and is_flat(out):
        raise LabError("out must have the type, shape and strides of the tensor", value=out.stride())
    if out.numel() > 1 and _overlaps_itself(out):
        raise LabError("elements of out share memory with each other", value=out.stride())
    if out.is_neg():
        raise LabError("out stores its elements with the other sign", hint="give a tensor of its own")
    same = out.data_ptr() == tensor.data_ptr() and out.stride() == tensor.stride()
    if not same and _share_memory(tensor, out):
        raise LabError("out overlaps the tensor in part", hint="give the tensor itself, or memory of its own")


def _plainly_apart(tensor: torch.Tensor, out: torch.Tensor) -> bool:
    """Whether two tensors are what nearly all are: alike, contiguous, and one wholly behind the other. Quick to say."""
    if out.dtype != tensor.dtype or out.shape != tensor.shape or out.device != tensor.device:
        return False
    if not tensor.is_contiguous() or not out.is_contiguous() or out.is_neg():
        return False
    return abs(out.data_ptr() - tensor.data_ptr()) >= tensor.nbytes


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """First byte and the one behind the last."""
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (reach + 1) * tensor.element_size()


def _share_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.numel() == 0 or b.numel() == 0:
        return False
    (first, end), (other, other_end) = _span(a), _span(b)
    return first < other_end and other < end


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two indices may name one place: exact for every view that slicing, transposing and expanding make."""
    reach = 0
    for stride, size in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False
