"""Memory of Python's objects: without a copy, kept as long as it is needed."""

from __future__ import annotations

import array
import ctypes
import gc
import mmap
import weakref

import pytest
from conftest import PATIENCE, until

import weft

numpy = pytest.importorskip("numpy")


class OnlyDLPack:
    """An array of numpy that shows itself by DLPack only, as a tensor does."""

    def __init__(self, of, versioned=True, device=(1, 0)):
        self.of, self.versioned, self.device = of, versioned, device

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **version):
        if version and not self.versioned:
            raise TypeError("unexpected keyword argument 'max_version'")
        return self.of.__dlpack__(**version)


class OnGpu(ctypes.Structure):
    """The beginning of a `DLTensor`. A capsule of numpy gets another place."""

    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32), ("number", ctypes.c_int32)]

    @staticmethod
    def of(array, address):
        class Tensor(OnlyDLPack):
            def __dlpack__(self):
                capsule = self.of.__dlpack__()
                pointer = ctypes.pythonapi.PyCapsule_GetPointer
                pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
                tensor = OnGpu.from_address(pointer(capsule, b"dltensor"))
                tensor.data, tensor.device, tensor.number = address, 2, 0
                return capsule

        return Tensor(array, device=(2, 0))


class Driver:
    """What the test needs of NVIDIA's driver, to have memory of a GPU without the engine."""

    def __init__(self, library):
        self.library = library
        context = ctypes.c_void_p()
        self("cuInit", 0)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self("cuCtxSetCurrent", context)

    def __call__(self, function, *arguments):
        assert getattr(self.library, function)(*arguments) == 0, function

    def zeros(self, length):
        address = ctypes.c_uint64()
        self("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(length))
        self("cuMemsetD8_v2", address, ctypes.c_ubyte(0), ctypes.c_size_t(length))
        return address.value

    def read(self, address, length):
        bytes_there = ctypes.create_string_buffer(length)
        self("cuMemcpyDtoH_v2", bytes_there, ctypes.c_uint64(address), ctypes.c_size_t(length))
        return bytes_there.raw


@pytest.fixture
def driver():
    try:
        return Driver(ctypes.CDLL("libcuda.so.1"))
    except OSError:
        pytest.skip("gpu: not run: no GPU")


def address_of(memory: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


BUFFERS = {
    "bytearray": lambda: bytearray(4096),
    "array": lambda: array.array("d", [0.0] * 512),
    "mmap": lambda: mmap.mmap(-1, 4096),
    "memoryview": lambda: memoryview(bytearray(5000))[100:4196],
    "ctypes": lambda: (ctypes.c_int * 1024)(),
    "numpy": lambda: numpy.zeros((4, 128), numpy.float64),
    "numpy structured": lambda: numpy.zeros(256, numpy.dtype("i4, f8, f4")),
    "numpy part": lambda: numpy.zeros((10, 1024), numpy.uint8)[3:7],
}


@pytest.mark.parametrize("kind", BUFFERS)
def test_a_buffer_is_registered_where_it_lies(pair, kind):
    a, b = pair
    buffer = BUFFERS[kind]()
    region = b.reg_mr(buffer, weft.Access.ALL)
    assert (len(region), region.memory.nbytes, region.memory.format) == (4096, 4096, "B")
    here = memoryview(buffer)
    assert address_of(region.memory) == address_of(here)
    # A write of a peer is seen in the object, and a change of the object by a peer that reads.
    a.submit_single_write(a.reg_mr(bytearray(b"written")), (region.descriptor, 1), deadline=PATIENCE).wait()
    assert here.tobytes()[:8] == b"\0written"
    region.memory[2:3] = b"R"
    back = a.alloc(8)
    a.submit_read(region.descriptor, back, deadline=PATIENCE).wait()
    assert bytes(back.memory) == b"\0wRitten"


@pytest.mark.parametrize("versioned", [True, False], ids=["DLPack 1", "DLPack before 1"])
def test_a_tensor_with_dlpack_is_registered_where_it_lies(pair, versioned):
    a, b = pair
    of = numpy.zeros((3, 1, 5), numpy.int16)
    region = b.reg_mr(OnlyDLPack(of, versioned), weft.Access.ALL)
    assert len(region) == 30
    assert address_of(region.memory) == of.ctypes.data
    a.submit_single_write(a.reg_mr(bytearray(b"\x01\x02")), (region.descriptor, 28), deadline=PATIENCE).wait()
    assert of[2, 0, 4] == 0x0201
    # A part that begins elsewhere.
    part = b.reg_mr(OnlyDLPack(of[1:], versioned))
    assert (address_of(part.memory), len(part)) == (of.ctypes.data + 10, 20)


def test_a_tensor_of_torch_is_registered_where_it_lies(pair):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    a, b = pair
    tensor = torch.zeros(2, 4, dtype=torch.float32)
    region = b.reg_mr(tensor, weft.Access.ALL)
    assert (address_of(region.memory), len(region)) == (tensor.data_ptr(), 32)
    source = torch.arange(8, dtype=torch.float32)
    a.submit_single_write(a.reg_mr(source), region.descriptor, deadline=PATIENCE).wait()
    assert torch.equal(tensor.flatten(), source)
    with pytest.raises(ValueError, match="buffer is not contiguous"):
        a.reg_mr(tensor.t())
    with pytest.raises(ValueError, match="buffer does not show its memory"):
        a.reg_mr(torch.zeros(2, requires_grad=True))


def test_memory_of_a_gpu_is_written_and_read(pair, driver):
    a, b = pair
    length = 1_000_001
    address = driver.zeros(length + 1)
    tensor = numpy.zeros(length, numpy.uint8)
    there = b.reg_mr(OnGpu.of(tensor, address), weft.Access.ALL)
    assert len(there) == length
    with pytest.raises(ValueError, match="the region is memory of a GPU"):
        there.memory  # noqa: B018
    sent = bytes(range(251)) * 3984 + b"end"
    source = a.reg_mr(bytearray(sent))
    a.submit_single_write(source, (there.descriptor, 1), len(sent), deadline=PATIENCE).wait()
    assert driver.read(address, length + 1) == b"\0" + sent + bytes(length - len(sent))
    # From the GPU, too.
    back = a.alloc(length)
    b.submit_single_write(there, back.descriptor, deadline=PATIENCE).wait()
    assert bytes(back.memory)[1 : 1 + len(sent)] == sent
    with pytest.raises(ValueError, match="are not in one allocation of a GPU"):
        b.reg_mr(OnGpu.of(numpy.zeros(1 << 30, numpy.uint8), address))


def test_memory_of_a_gpu_needs_a_driver_that_knows_it(engine):
    a = engine()
    # Without a driver, and where there is one.
    says = "buffer is in the memory of a GPU: (libcuda.so.1 cannot be loaded|address 0x1000 and the 8 bytes)"
    with pytest.raises((OSError, ValueError), match=says):
        a.reg_mr(OnGpu.of(numpy.zeros(1), 0x1000))
    assert a.counts().regions == 0


@pytest.mark.parametrize("dlpack", [False, True], ids=["buffer", "DLPack"])
def test_the_object_is_kept_while_it_is_registered_and_no_longer(engine, dlpack):
    a = engine()
    of = numpy.zeros(1000)
    gone = weakref.ref(of)
    region = a.reg_mr(OnlyDLPack(of) if dlpack else of)
    del of, region
    gc.collect()
    assert a.counts().regions == 1
    assert gone() is not None
    a.close()
    assert until(lambda: gone() is None)


@pytest.mark.parametrize("dlpack", [False, True], ids=["buffer", "DLPack"])
def test_a_region_that_is_deregistered_lets_the_object_go(engine, dlpack):
    a = engine()
    of = numpy.zeros(1000)
    gone = weakref.ref(of)
    with a.reg_mr(OnlyDLPack(of) if dlpack else of) as region:
        del of
        assert gone() is not None
    with pytest.raises(ValueError, match="source is not registered with this engine"):
        a.submit_single_write(region, a.alloc(8000).descriptor)
    del region
    assert until(lambda: a.counts() and gone() is None)


def test_the_memory_of_a_region_outlives_region_and_engine(engine):
    a = engine()
    allocated, of_numpy = a.alloc(5000), a.reg_mr(numpy.ones(10, numpy.uint8))
    memory, ones = numpy.frombuffer(allocated.memory, numpy.uint8), of_numpy.memory
    del allocated, of_numpy
    a.close()
    memory[4999] = 7
    assert (memory.sum(), sum(ones)) == (7, 10)


def test_parts_of_an_object_that_overlap_are_registered_each_by_itself(pair):
    a, b = pair
    data = bytearray(30)
    first = b.reg_mr(memoryview(data)[:20], weft.Access.WRITE)
    second = b.reg_mr(memoryview(data)[10:], weft.Access.WRITE)
    here = a.reg_mr(bytearray(b"a" * 20 + b"b" * 20))
    a.submit_single_write(here, first.descriptor, 20, deadline=PATIENCE).wait()
    a.submit_single_write((here, 20), second.descriptor, deadline=PATIENCE).wait()
    assert bytes(data) == b"a" * 10 + b"b" * 20
    # The end of one leaves the other open, also where they overlap.
    first.deregister()
    with pytest.raises(weft.TransferFailed) as refused:
        a.submit_single_write(here, first.descriptor, 20, deadline=PATIENCE).wait()
    assert refused.value.cause == "KeyRefused"
    a.submit_single_write(here, second.descriptor, 20, deadline=PATIENCE).wait()
    assert bytes(data) == b"a" * 10 + b"a" * 20


def test_a_bytearray_cannot_be_resized_while_it_is_registered(engine):
    data = bytearray(10)
    region = engine().reg_mr(data)
    with pytest.raises(BufferError):
        data.extend(b"more")
    region.deregister()
    del region
    data.extend(b"more")


READ_ONLY = numpy.zeros(4)
READ_ONLY.flags.writeable = False


def test_who_releases_the_memory_of_a_region_has_released_one_view_of_it(engine):
    region = engine().alloc(4)
    with region.memory as memory:
        memory[0] = 7
    assert bytes(region.memory) == b"\7\0\0\0"


def test_the_name_of_a_field_is_no_reference_to_an_object(engine):
    engine().reg_mr(numpy.zeros(3, [("Object", "f8")]))


@pytest.mark.parametrize(
    ("buffer", "kind", "says"),
    [
        (b"bytes", ValueError, "buffer is read-only"),
        (READ_ONLY, ValueError, "buffer is read-only"),
        (OnlyDLPack(READ_ONLY), ValueError, "buffer is read-only"),
        (OnlyDLPack(READ_ONLY, versioned=False), ValueError, "buffer does not show its memory: .*readonly"),
        (numpy.zeros((4, 4))[:, 1], ValueError, "buffer is not contiguous"),
        (numpy.asfortranarray(numpy.zeros((2, 3))), ValueError, "buffer is not contiguous"),
        (OnlyDLPack(numpy.zeros((4, 4))[:, 1]), ValueError, "buffer is not contiguous"),
        (OnlyDLPack(numpy.zeros((4, 4)).T), ValueError, "buffer is not contiguous"),
        (numpy.zeros(3, object), ValueError, "buffer has references to objects of Python"),
        (numpy.zeros(3, [("a", "f8"), ("b", "O")]), ValueError, "buffer has references"),
        (bytearray(), ValueError, "buffer is empty"),
        (numpy.zeros((3, 0)), ValueError, "buffer is empty"),
        (OnlyDLPack(numpy.zeros((3, 0))), ValueError, "buffer is empty"),
        (OnlyDLPack(numpy.zeros((5, 4, 0))[::2, ::2]), ValueError, "buffer is empty"),
        (OnlyDLPack(numpy.zeros(3), device=(10, 1)), ValueError, r"the memory of a device \(ROCm, number 1\)"),
        (OnlyDLPack(numpy.zeros(3), device=(99, 0)), ValueError, r"\(device type 99 of DLPack, number 0\)"),
        (numpy.zeros(3, "M8[s]"), ValueError, "buffer does not show its memory"),
        ("text", TypeError, "buffer must have the buffer protocol or DLPack, and str has neither"),
        (17, TypeError, "buffer must have the buffer protocol or DLPack, and int has neither"),
    ],
)
def test_memory_that_cannot_be_used_is_refused_with_the_reason(engine, buffer, kind, says):
    a = engine()
    with pytest.raises(kind, match=says):
        a.reg_mr(buffer)
    assert a.counts().regions == 0
