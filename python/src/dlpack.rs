//! Tensors of other libraries, by DLPack (<https://dmlc.github.io/dlpack/latest/c_api.html>): where the bytes lie.

use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use std::ffi::c_void;

use crate::failure::wrong_value;

/// `kDLCPU`.
const CPU: i32 = 1;

/// `kDLCUDA`.
const CUDA: i32 = 2;

/// `DLPACK_MAJOR_VERSION`, of which this knows the structures.
const MAJOR: u32 = 1;

/// `DLPACK_FLAG_BITMASK_READ_ONLY`.
const READ_ONLY: u64 = 1;

/// `DLTensor`.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    dimensions: i32,
    type_code: u8,
    type_bits: u8,
    type_lanes: u16,
    shape: *const i64,
    /// In elements. Null says that the tensor is contiguous.
    strides: *const i64,
    byte_offset: u64,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct Versioned {
    major: u32,
    minor: u32,
    manager: *mut c_void,
    /// A function, which the capsule calls.
    deleter: *const c_void,
    flags: u64,
    tensor: Tensor,
}

/// Where the bytes of a tensor lie.
pub(crate) struct Bytes {
    /// An address of the CPU, or of the GPU that has them. It is not 0.
    pub(crate) address: usize,
    /// How many there are; at least 1.
    pub(crate) length: usize,
    /// The number of the GPU.
    pub(crate) gpu: Option<usize>,
}

/// The bytes of the tensor of a capsule, as long as the capsule is there. The capsule keeps the tensor: this consumer does
/// not take it over, so the capsule's own destructor gives it back.
pub(crate) fn bytes_of(name: &str, capsule: &Bound<'_, PyCapsule>) -> PyResult<Bytes> {
    let (tensor, is_read_only) = match capsule.pointer_checked(Some(c"dltensor_versioned")) {
        Ok(pointer) => {
            // SAFETY: a capsule with this name has a `DLManagedTensorVersioned`, which begins with the version whatever that
            // is.
            let major = unsafe { pointer.cast::<u32>().read() };
            if major != MAJOR {
                let problem = format!("is given by DLPack {major}, and this knows DLPack {MAJOR}");
                return Err(wrong_value(name, problem));
            }
            // SAFETY: as before, and the version has these fields. The capsule keeps them.
            let versioned = unsafe { pointer.cast::<Versioned>().as_ref() };
            (&versioned.tensor, versioned.flags & READ_ONLY != 0)
        }
        Err(_) => {
            let pointer = capsule.pointer_checked(Some(c"dltensor"))?;
            // SAFETY: a capsule with this name has a `DLManagedTensor`, which begins with the tensor and keeps it.
            (unsafe { pointer.cast::<Tensor>().as_ref() }, false)
        }
    };
    let gpu = match (tensor.device_type, usize::try_from(tensor.device_id)) {
        (CPU, _) => None,
        (CUDA, Ok(number)) => Some(number),
        _ => {
            let problem = "is neither in the memory of the CPU nor in that of an NVIDIA GPU";
            return Err(wrong_value(name, problem));
        }
    };
    if is_read_only {
        return Err(wrong_value(
            name,
            "is read-only: the engine needs memory that can be written",
        ));
    }
    let dimensions = usize::try_from(tensor.dimensions);
    let dimensions = dimensions.map_err(|_| wrong_value(name, "has no shape"))?;
    let numbers = |start: *const i64| {
        // SAFETY: shape and strides are null or have as many numbers as there are dimensions, and the capsule keeps them.
        let numbers = || unsafe { std::slice::from_raw_parts(start, dimensions) };
        (!start.is_null()).then(numbers)
    };
    let (shape, strides) = (numbers(tensor.shape), numbers(tensor.strides));
    let shape = match (dimensions, shape) {
        (0, None) => &[],
        (_, None) => return Err(wrong_value(name, "has no shape")),
        (_, Some(shape)) => shape,
    };
    let is_empty = shape.contains(&0);
    let mut elements = 1i64;
    for (dimension, size) in shape.iter().enumerate().rev() {
        let is_next = strides.is_none_or(|strides| strides[dimension] == elements);
        if *size > 1 && !is_next && !is_empty {
            return Err(wrong_value(
                name,
                "is not contiguous in C order: make such a copy, or register what it is a part of",
            ));
        }
        elements = elements
            .checked_mul(*size)
            .ok_or_else(|| wrong_value(name, "is too long"))?;
    }
    let bits = u64::from(tensor.type_bits) * u64::from(tensor.type_lanes);
    let bytes = u64::try_from(elements)
        .ok()
        .and_then(|elements| Some(elements.checked_mul(bits)?.div_ceil(8)));
    let bytes = bytes.ok_or_else(|| wrong_value(name, "is too long"))?;
    if bytes == 0 {
        return Err(wrong_value(name, "is empty: it must have at least 1 byte"));
    }
    let address = (tensor.data as usize).wrapping_add(tensor.byte_offset as usize);
    if address == 0 {
        return Err(PyBufferError::new_err("a tensor at null"));
    }
    Ok(Bytes {
        address,
        length: bytes as usize,
        gpu,
    })
}
