//! Tensors of other libraries, by DLPack (<https://dmlc.github.io/dlpack/latest/c_api.html>): where the bytes lie.

use std::ffi::c_void;
use std::ptr::NonNull;

use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::arguments::wrong_value;

/// `kDLCPU`.
const CPU: i32 = 1;

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
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: Tensor,
}

/// The bytes of the tensor of a capsule, as long as the capsule is there. The capsule keeps the tensor: this consumer does
/// not take it over, so the capsule's own destructor gives it back.
pub(crate) fn bytes_of(
    name: &str,
    capsule: &Bound<'_, PyCapsule>,
) -> PyResult<(NonNull<u8>, usize)> {
    let (tensor, is_read_only) = match capsule.pointer_checked(Some(c"dltensor_versioned")) {
        Ok(pointer) => {
            // SAFETY: a capsule with this name has a `DLManagedTensorVersioned`, whose first fields are the same in all
            // versions. `data` is only looked at below, after the version is.
            let versioned = unsafe { pointer.cast::<Versioned>().as_ref() };
            if versioned.major != 1 {
                let version = versioned.major;
                return Err(wrong_value(
                    name,
                    format!("is given by DLPack {version}, and this knows DLPack 1"),
                ));
            }
            (&versioned.tensor, versioned.flags & READ_ONLY != 0)
        }
        Err(_) => {
            let pointer = capsule.pointer_checked(Some(c"dltensor"))?;
            // SAFETY: a capsule with this name has a `DLManagedTensor`, which begins with the tensor.
            (unsafe { pointer.cast::<Tensor>().as_ref() }, false)
        }
    };
    if tensor.device_type != CPU {
        return Err(wrong_value(name, "is not in the memory of the CPU"));
    }
    if is_read_only {
        return Err(wrong_value(
            name,
            "is read-only: the engine needs memory that can be written",
        ));
    }
    let dimensions = usize::try_from(tensor.dimensions).unwrap_or(0);
    let (shape, strides) = match dimensions {
        0 => (&[][..], None),
        _ => {
            // SAFETY: `shape` has as many numbers as there are dimensions.
            let shape = unsafe { std::slice::from_raw_parts(tensor.shape, dimensions) };
            let strides = (!tensor.strides.is_null()).then(|| {
                // SAFETY: `strides` is null or has as many.
                unsafe { std::slice::from_raw_parts(tensor.strides, dimensions) }
            });
            (shape, strides)
        }
    };
    let mut elements = 1i64;
    for (dimension, size) in shape.iter().enumerate().rev() {
        let is_next = strides.is_none_or(|strides| strides[dimension] == elements);
        if *size > 1 && !is_next {
            return Err(wrong_value(
                name,
                "is not contiguous: make a contiguous copy, or register what it is a part of",
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
    let start = (tensor.data as *mut u8).wrapping_add(tensor.byte_offset as usize);
    let start = NonNull::new(start).ok_or_else(|| PyBufferError::new_err("a tensor at null"))?;
    Ok((start, bytes as usize))
}
