"""What a communicator asks torch about its GPU."""

from dataclasses import dataclass
from pathlib import Path

import torch

from lab.errors import LabError
from lab.kernels.runtime import gpu


@dataclass(frozen=True)
class Place:
    """Where a rank's GPU is, in words that are the same in every process, also from within containers.

    Attributes:
        host: of the machine's present run.
        gpu: the GPU's own number.
        bus: where it sits on that machine.
    """

    host: str
    gpu: str
    bus: str


class Device:
    """A GPU that torch sees.

    Attributes:
        vendor, architecture: in build.py's words.
        index: of the GPU in this process.
    """

    def __init__(self, device: torch.device):
        """LabError where torch sees no GPU, or `device` is none."""
        if not torch.cuda.is_available():
            raise LabError("torch sees no GPU", hint="run the kernels on the CPU with lab.kernels.host")
        if device.type != "cuda":
            raise LabError("this is no GPU", value=str(device), hint='give torch.device("cuda", index)')
        self._properties = torch.cuda.get_device_properties(device)
        self.index = device.index
        if torch.version.hip:
            self.vendor, self.architecture = "amd", self._properties.gcnArchName.split(":")[0]
        else:
            self.vendor, self.architecture = "nvidia", f"sm_{self._properties.major}{self._properties.minor}"

    def place(self, cache: Path | None) -> Place:
        """Where it is."""
        host = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return Place(host, str(self._properties.uuid), gpu(self.vendor, cache).bus_id(self.index))

    def multiprocessors(self) -> int:
        """How many it has."""
        return self._properties.multi_processor_count

    def stream(self) -> int:
        """The handle of torch's current stream on it."""
        return torch._C._cuda_getCurrentRawStream(self.index)


def describe(device: torch.device) -> tuple[str, str]:
    """(vendor, architecture) of a GPU, in build.py's words."""
    found = Device(device)
    return found.vendor, found.architecture
