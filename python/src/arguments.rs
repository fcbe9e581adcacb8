//! Arguments of Python. Each error names the argument: it is a `TypeError` for another type, else a `ValueError`.

use std::fmt::Display;
use std::net::IpAddr;
use std::time::Duration;

use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView, PyString, PyTuple};
use weft_transfer_engine::{Access, EngineAddress, MrDescriptor, PagedWrites, Pages, SingleWrite};

use crate::failure::wrong_value;
use crate::memory::MemoryRegion;

type Any<'a, 'py> = &'a Bound<'py, PyAny>;

fn type_name(value: Any<'_, '_>) -> String {
    let name = value.get_type().name();
    name.map_or_else(|_| "?".to_owned(), |name| name.to_string())
}

pub(crate) fn wrong_type(name: &str, wanted: impl Display, value: Any<'_, '_>) -> PyErr {
    PyTypeError::new_err(format!("{name} must be {wanted}, not {}", type_name(value)))
}

/// A whole number from 0 to `most`.
fn number(name: &str, value: Any<'_, '_>, most: u64) -> PyResult<u64> {
    let range = || wrong_value(name, format!("is {value}: it must be 0 to {most}"));
    match value.extract::<u64>() {
        Ok(number) if number <= most => Ok(number),
        Ok(_) => Err(range()),
        Err(error) if error.is_instance_of::<PyOverflowError>(value.py()) => Err(range()),
        Err(_) => Err(wrong_type(name, "an int", value)),
    }
}

pub(crate) fn u64_of(name: &str, value: Any<'_, '_>) -> PyResult<u64> {
    number(name, value, u64::MAX)
}

pub(crate) fn u32_of(name: &str, value: Any<'_, '_>) -> PyResult<u32> {
    number(name, value, u32::MAX.into()).map(|number| number as u32)
}

pub(crate) fn u16_of(name: &str, value: Any<'_, '_>) -> PyResult<u16> {
    number(name, value, u16::MAX.into()).map(|number| number as u16)
}

pub(crate) fn immediate_of(value: Option<Any<'_, '_>>) -> PyResult<Option<u32>> {
    value.map(|value| u32_of("immediate", value)).transpose()
}

/// A time in seconds.
pub(crate) fn seconds(name: &str, value: Any<'_, '_>) -> PyResult<Duration> {
    let range = || wrong_value(name, format!("is {value}: it must be 0 to 1e19 seconds"));
    let seconds: f64 = match value.extract() {
        Ok(seconds) => seconds,
        Err(error) if error.is_instance_of::<PyOverflowError>(value.py()) => return Err(range()),
        Err(_) => return Err(wrong_type(name, "a number of seconds", value)),
    };
    Duration::try_from_secs_f64(seconds).map_err(|_| range())
}

/// Something to call, or `None`.
pub(crate) fn callable(name: &str, value: Any<'_, '_>) -> PyResult<Py<PyAny>> {
    match value.is_callable() {
        true => Ok(value.clone().unbind()),
        false => Err(wrong_type(name, "callable", value)),
    }
}

fn text(name: &str, wanted: &str, value: Any<'_, '_>) -> PyResult<String> {
    match value.cast::<PyString>() {
        Ok(text) => text.extract(),
        Err(_) => Err(wrong_type(name, wanted, value)),
    }
}

pub(crate) fn address_of(name: &str, value: Any<'_, '_>) -> PyResult<EngineAddress> {
    let text = text(name, "the main_address of an engine, a str", value)?;
    text.parse()
        .map_err(|error| wrong_value(name, format!("is wrong: {error}")))
}

pub(crate) fn addresses_of(name: &str, value: Any<'_, '_>) -> PyResult<Vec<EngineAddress>> {
    // A str would be taken as a list of letters.
    if value.is_instance_of::<PyString>() {
        return Err(wrong_type(name, "a list of addresses", value));
    }
    let items = value.try_iter();
    let items = items.map_err(|_| wrong_type(name, "a list of addresses", value))?;
    items.map(|item| address_of(name, &item?)).collect()
}

fn descriptor_of(name: &str, value: Any<'_, '_>) -> PyResult<MrDescriptor> {
    let text = text(
        name,
        "the descriptor of a region, a str, or (descriptor, offset)",
        value,
    )?;
    text.parse()
        .map_err(|error| wrong_value(name, format!("is wrong: {error}")))
}

fn region_of(name: &str, value: Any<'_, '_>) -> PyResult<weft_transfer_engine::MemoryRegion> {
    match value.cast::<MemoryRegion>() {
        Ok(region) => Ok(region.get().region.clone()),
        Err(_) => Err(wrong_type(
            name,
            "a MemoryRegion of this engine, or (region, offset)",
            value,
        )),
    }
}

/// `X` or `(X, second)`.
fn pair<'py>(value: Any<'_, 'py>) -> (Bound<'py, PyAny>, Option<Bound<'py, PyAny>>) {
    if let Ok(tuple) = value.cast::<PyTuple>()
        && let Ok((first, second)) = tuple.extract()
    {
        return (first, Some(second));
    }
    (value.clone(), None)
}

fn offset_of(name: &str, offset: Option<Bound<'_, PyAny>>) -> PyResult<u64> {
    offset.map_or(Ok(0), |offset| {
        u64_of(&format!("the offset of {name}"), &offset)
    })
}

/// A region of this engine, with an offset or without.
pub(crate) fn local(
    name: &str,
    value: Any<'_, '_>,
) -> PyResult<(weft_transfer_engine::MemoryRegion, u64)> {
    let (region, offset) = pair(value);
    Ok((region_of(name, &region)?, offset_of(name, offset)?))
}

/// A region of a peer, with an offset or without.
pub(crate) fn remote(name: &str, value: Any<'_, '_>) -> PyResult<(MrDescriptor, u64)> {
    let (descriptor, offset) = pair(value);
    Ok((descriptor_of(name, &descriptor)?, offset_of(name, offset)?))
}

/// The number of bytes; without one, all from `offset` of `name` to the end of the region.
pub(crate) fn bytes_or_rest(
    name: &str,
    bytes: Option<Any<'_, '_>>,
    region: &weft_transfer_engine::MemoryRegion,
    offset: u64,
) -> PyResult<u64> {
    match bytes {
        Some(bytes) => u64_of("bytes", bytes),
        None => region.bytes().checked_sub(offset).ok_or_else(|| {
            let problem = format!("is {offset}: the region has {} bytes", region.bytes());
            wrong_value(&format!("the offset of {name}"), problem)
        }),
    }
}

/// `weft.SingleWrite`, which is a named tuple, or a plain tuple like it.
pub(crate) fn single_write(write: Any<'_, '_>) -> PyResult<SingleWrite> {
    type Fields<'py> = (
        Bound<'py, PyAny>,
        Bound<'py, PyAny>,
        Option<Bound<'py, PyAny>>,
        Option<Bound<'py, PyAny>>,
    );
    let fields: PyResult<Fields<'_>> = write.extract();
    let (source, destination, bytes, immediate) =
        fields.map_err(|_| wrong_type("each of writes", "a weft.SingleWrite", write))?;
    let source = local("source", &source)?;
    Ok(SingleWrite {
        bytes: bytes_or_rest("source", bytes.as_ref(), &source.0, source.1)?,
        source,
        destination: remote("destination", &destination)?,
        immediate: immediate_of(immediate.as_ref())?,
    })
}

pub(crate) fn single_writes(writes: Any<'_, '_>) -> PyResult<Vec<SingleWrite>> {
    let items = writes.try_iter();
    let items = items.map_err(|_| wrong_type("writes", "a list of weft.SingleWrite", writes))?;
    items.map(|write| single_write(&write?)).collect()
}

/// `weft.Pages`, or a tuple as it is one.
fn pages_of(name: &str, value: Option<Bound<'_, PyAny>>) -> PyResult<Pages> {
    let wanted = format!("{name} must be a pair whose second item is a weft.Pages");
    let value = value.ok_or_else(|| PyTypeError::new_err(wanted.clone()))?;
    let fields: PyResult<(Bound<'_, PyAny>, Bound<'_, PyAny>, Bound<'_, PyAny>)> = value.extract();
    let (indices, stride, offset) = fields.map_err(|_| PyTypeError::new_err(wanted))?;
    let of = |field: &str| format!("{field} of {name}");
    // As a list of small numbers this takes one call; the other way finds the one that is wrong.
    let indices = match indices.extract::<Vec<u32>>() {
        Ok(indices) => indices,
        Err(_) => {
            let items = indices.try_iter();
            let items = items.map_err(|_| wrong_type(&of("indices"), "a list of int", &indices))?;
            items
                .map(|index| u32_of(&of("indices"), &index?))
                .collect::<PyResult<_>>()?
        }
    };
    Ok(Pages {
        indices,
        stride: u64_of(&of("stride"), &stride)?,
        offset: u64_of(&of("offset"), &offset)?,
    })
}

pub(crate) fn paged_writes(
    source: Any<'_, '_>,
    destination: Any<'_, '_>,
    page_bytes: Any<'_, '_>,
    immediate: Option<Any<'_, '_>>,
) -> PyResult<PagedWrites> {
    let (region, from) = pair(source);
    let (descriptor, to) = pair(destination);
    Ok(PagedWrites {
        source: (region_of("source", &region)?, pages_of("source", from)?),
        destination: (
            descriptor_of("destination", &descriptor)?,
            pages_of("destination", to)?,
        ),
        page_bytes: u32_of("page_bytes", page_bytes)?,
        immediate: immediate_of(immediate)?,
    })
}

/// A copy of something like bytes.
pub(crate) fn bytes_of(name: &str, value: Any<'_, '_>) -> PyResult<Vec<u8>> {
    if let Ok(bytes) = value.cast::<PyBytes>() {
        return Ok(bytes.as_bytes().to_vec());
    }
    let view = PyMemoryView::from(value).map_err(|_| wrong_type(name, "like bytes", value))?;
    let bytes = view.call_method0("tobytes")?;
    Ok(bytes.cast::<PyBytes>()?.as_bytes().to_vec())
}

/// `weft.Access`.
pub(crate) fn access_of(value: Any<'_, '_>) -> PyResult<Access> {
    let bits = number("access", value, 7)?;
    let flags = [(1, Access::WRITE), (2, Access::READ), (4, Access::ATOMIC)];
    let given = flags.iter().filter(|(bit, _)| bits & bit != 0);
    Ok(given.fold(Access::NONE, |access, (_, flag)| access.with(*flag)))
}

/// Addresses.
pub(crate) fn nics_of(value: Any<'_, '_>) -> PyResult<Vec<IpAddr>> {
    let wanted = "a list of addresses";
    if value.is_instance_of::<PyString>() {
        return Err(wrong_type("nics", wanted, value));
    }
    let items = value.try_iter();
    let items = items.map_err(|_| wrong_type("nics", wanted, value))?;
    let nic = |item: PyResult<Bound<'_, PyAny>>| {
        let address = text("nics", wanted, &item?)?;
        let parsed = address.parse();
        parsed.map_err(|_| wrong_value("nics", format!("has {address:?}, which is no IP address")))
    };
    items.map(nic).collect()
}
