"""The memory of objects, without a copy."""

from __future__ import annotations

import ctypes
import re
from typing import Any

_DEVICES = {
    3: "CUDA's pinned host memory",
    4: "OpenCL",
    7: "Vulkan",
    8: "Metal",
    10: "ROCm",
    11: "ROCm's pinned host memory",
    13: "CUDA's managed memory",
    14: "oneAPI",
    15: "WebGPU",
    16: "Hexagon",
}

_CPU, _CUDA = 1, 2


def array_of(buffer: Any) -> Any:
    """Returns a ctypes array over the object's own memory, with address and length; or the capsule of DLPack.

    As long as the array is there, an object with the buffer protocol cannot free, move or resize its memory. A tensor of
    DLPack can: its program must not.
    """
    try:
        view = memoryview(buffer)
    except TypeError:
        if not hasattr(buffer, "__dlpack__"):
            kind = type(buffer).__name__
            raise TypeError(f"buffer must have the buffer protocol or DLPack, and {kind} has neither") from None
        return _capsule_of(buffer)
    except (ValueError, BufferError) as error:
        raise ValueError(f"buffer does not show its memory: {error}") from error
    if view.readonly:
        raise ValueError("buffer is read-only: the engine needs memory that can be written, such as a bytearray")
    if not view.c_contiguous:
        raise ValueError("buffer is not contiguous in C order: make such a copy, or register what it is a part of")
    # What is between colons is the name of a field.
    if "O" in re.sub(":[^:]*:", "", view.format):
        raise ValueError("buffer has references to objects of Python: register memory of numbers or bytes")
    if view.nbytes == 0:
        raise ValueError("buffer is empty: it must have at least 1 byte")
    array = (ctypes.c_char * view.nbytes).from_buffer(view)
    return array, ctypes.addressof(array), view.nbytes


def _capsule_of(tensor: Any) -> Any:
    device, index = tensor.__dlpack_device__()
    if device not in (_CPU, _CUDA):
        name = _DEVICES.get(int(device), f"device type {int(device)} of DLPack")
        raise ValueError(f"buffer is in the memory of a device ({name}, number {index}): copy it to the CPU first")
    try:
        try:
            return tensor.__dlpack__(max_version=(1, 0))
        except TypeError:
            # It is older than DLPack 1.
            return tensor.__dlpack__()
    except (BufferError, RuntimeError, ValueError) as error:
        raise ValueError(f"buffer does not show its memory: {error}") from error


def array_at(address: int, length: int, owner: object) -> Any:
    """Returns a ctypes array over memory that `owner` keeps."""
    array = (ctypes.c_char * length).from_address(address)
    setattr(array, "_owner", owner)
    return array
