//! Writes and reads. Each is an operation.

use std::fmt;
use std::mem::MaybeUninit;

use weft_transfer_engine::{PagedWrites, Pages, SingleRead, SingleWrite};

use crate::argument::{array, given};
use crate::engine::{WeftEngine, running};
use crate::memory::WeftMr;
use crate::names::WeftDescriptor;
use crate::operation::{WeftOperation, WeftOptions, give_operation, options};
use crate::status::{Refusal, WeftStatus, call};

/// A write of contiguous bytes.
#[repr(C)]
pub struct WeftSingleWrite<'a> {
    /// The memory to write from. Do not change the bytes before the operation has ended.
    pub source: Option<&'a WeftMr>,
    /// Where in it the bytes begin.
    pub source_offset: u64,
    /// The memory to write to; it needs WEFT_ACCESS_WRITE.
    pub destination: Option<&'a WeftDescriptor>,
    /// Where in it the bytes go.
    pub destination_offset: u64,
    /// How many bytes, at least 1.
    pub bytes: u64,
    /// Counts once at the peer when all bytes are there, if `has_immediate`.
    pub immediate: u32,
    /// Whether the write has an immediate.
    pub has_immediate: bool,
}

/// A read of contiguous bytes.
#[repr(C)]
pub struct WeftSingleRead<'a> {
    /// The memory to read from; it needs WEFT_ACCESS_READ.
    pub source: Option<&'a WeftDescriptor>,
    /// Where in it the bytes begin.
    pub source_offset: u64,
    /// The memory to read to; it needs WEFT_ACCESS_WRITE.
    pub destination: Option<&'a WeftMr>,
    /// Where in it the bytes go.
    pub destination_offset: u64,
    /// How many bytes, at least 1.
    pub bytes: u64,
}

/// Pages of a region: page `indices[i]` begins at `offset + indices[i] * stride` bytes.
#[repr(C)]
pub struct WeftPages {
    /// Which pages: `page_count` numbers.
    pub indices: *const u32,
    /// Bytes from the beginning of a page to that of the next.
    pub stride: u64,
    /// Where page 0 begins.
    pub offset: u64,
}

/// A write of pages, the i-th of the source to the i-th of the destination.
#[repr(C)]
pub struct WeftPagedWrites<'a> {
    /// The memory to write from. Do not change the bytes before the operation has ended.
    pub source: Option<&'a WeftMr>,
    /// The pages to write from.
    pub source_pages: WeftPages,
    /// The memory to write to; it needs WEFT_ACCESS_WRITE.
    pub destination: Option<&'a WeftDescriptor>,
    /// The pages to write to. Where they overlap, any of them may be seen.
    pub destination_pages: WeftPages,
    /// How many pages, at least 1.
    pub page_count: usize,
    /// Bytes of each page, at least 1.
    pub page_bytes: u32,
    /// Counts once at the peer when all pages are there, if `has_immediate`.
    pub immediate: u32,
    /// Whether the write has an immediate.
    pub has_immediate: bool,
}

fn single_write(
    write: &WeftSingleWrite<'_>,
    name: fmt::Arguments<'_>,
) -> Result<SingleWrite, Refusal> {
    let source = given(write.source, format_args!("{name}.source"))?;
    let source = source.region(format_args!("{name}.source"))?;
    let destination = given(write.destination, format_args!("{name}.destination"))?;
    Ok(SingleWrite {
        source: (source, write.source_offset),
        destination: (destination.0.clone(), write.destination_offset),
        bytes: write.bytes,
        immediate: write.has_immediate.then_some(write.immediate),
    })
}

fn pages(pages: &WeftPages, count: usize, name: &str) -> Result<Pages, Refusal> {
    Ok(Pages {
        indices: array(pages.indices, count, name)?.to_vec(),
        stride: pages.stride,
        offset: pages.offset,
    })
}

/// Writes bytes. `options` and `operation` may be NULL.
#[unsafe(no_mangle)]
pub extern "C" fn weft_submit_single_write(
    engine: Option<&WeftEngine>,
    write: Option<&WeftSingleWrite<'_>>,
    options: Option<&WeftOptions>,
    operation: Option<&mut MaybeUninit<*mut WeftOperation>>,
) -> WeftStatus {
    call(|| {
        let engine = running(engine)?;
        let write = single_write(given(write, "write")?, format_args!("write"))?;
        let options = self::options(options)?;
        give_operation(operation, engine.submit_single_write(&write, options)?);
        Ok(())
    })
}

/// Writes to many peers: `count` writes, at least 1, which are one operation. `options` and
/// `operation` may be NULL.
#[unsafe(no_mangle)]
pub extern "C" fn weft_submit_scatter(
    engine: Option<&WeftEngine>,
    writes: *const WeftSingleWrite<'_>,
    count: usize,
    options: Option<&WeftOptions>,
    operation: Option<&mut MaybeUninit<*mut WeftOperation>>,
) -> WeftStatus {
    call(|| {
        let engine = running(engine)?;
        let writes = array(writes, count, "writes")?.iter().enumerate();
        let writes =
            writes.map(|(index, write)| single_write(write, format_args!("writes[{index}]")));
        let writes = writes.collect::<Result<Vec<_>, Refusal>>()?;
        let options = self::options(options)?;
        give_operation(operation, engine.submit_scatter(&writes, options)?);
        Ok(())
    })
}

/// Writes pages of one size. `options` and `operation` may be NULL.
#[unsafe(no_mangle)]
pub extern "C" fn weft_submit_paged_writes(
    engine: Option<&WeftEngine>,
    write: Option<&WeftPagedWrites<'_>>,
    options: Option<&WeftOptions>,
    operation: Option<&mut MaybeUninit<*mut WeftOperation>>,
) -> WeftStatus {
    call(|| {
        let engine = running(engine)?;
        let write = given(write, "write")?;
        let source = given(write.source, "write.source")?.region("write.source")?;
        let destination = given(write.destination, "write.destination")?.0.clone();
        let count = write.page_count;
        let from = pages(&write.source_pages, count, "write.source_pages.indices")?;
        let to = pages(
            &write.destination_pages,
            count,
            "write.destination_pages.indices",
        )?;
        let write = PagedWrites {
            source: (source, from),
            destination: (destination, to),
            page_bytes: write.page_bytes,
            immediate: write.has_immediate.then_some(write.immediate),
        };
        let options = self::options(options)?;
        give_operation(operation, engine.submit_paged_writes(&write, options)?);
        Ok(())
    })
}

/// Reads bytes. `options` and `operation` may be NULL.
#[unsafe(no_mangle)]
pub extern "C" fn weft_submit_read(
    engine: Option<&WeftEngine>,
    read: Option<&WeftSingleRead<'_>>,
    options: Option<&WeftOptions>,
    operation: Option<&mut MaybeUninit<*mut WeftOperation>>,
) -> WeftStatus {
    call(|| {
        let engine = running(engine)?;
        let read = given(read, "read")?;
        let source = given(read.source, "read.source")?.0.clone();
        let destination = given(read.destination, "read.destination")?;
        let destination = destination.region("read.destination")?;
        let read = SingleRead {
            source: (source, read.source_offset),
            destination: (destination, read.destination_offset),
            bytes: read.bytes,
        };
        let options = self::options(options)?;
        give_operation(operation, engine.submit_read(&read, options)?);
        Ok(())
    })
}
