//! The devices that a program sees.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fs;
use std::path::{Path, PathBuf};
use std::ptr;

use weft_device::sysfs;
use weft_device_socket::{devices_in, directory, gid};

use weft_verbs_abi::Device;

/// Where the kernel describes devices.
const SYSFS: &str = "/sys/class/infiniband";

/// A device of the list, with room behind it: libmlx5 and libefa look there for what a driver of theirs would have put.
#[repr(C)]
pub(crate) struct OwnDevice {
    device: Device,
    driver: [*mut c_void; 16],
    /// Its directory.
    pub(crate) path: PathBuf,
}

/// Copies a text into an array of C, ended by a 0.
pub(crate) fn put_text<const N: usize>(out: &mut [c_char; N], text: &str) {
    let bytes = text.bytes().take(N - 1).chain(std::iter::once(0));
    for (out, byte) in out.iter_mut().zip(bytes) {
        *out = byte as c_char;
    }
}

fn device(directory: &Path, name: &str) -> Box<OwnDevice> {
    const CHANNEL_ADAPTER: c_int = 1;
    const INFINIBAND: c_int = 0;
    let mut device = Device {
        ops: [None; 2],
        node_type: CHANNEL_ADAPTER,
        transport_type: INFINIBAND,
        name: [0; 64],
        dev_name: [0; 64],
        dev_path: [0; 256],
        ibdev_path: [0; 256],
    };
    put_text(&mut device.name, name);
    put_text(&mut device.dev_name, name);
    put_text(
        &mut device.dev_path,
        &format!("/sys/class/infiniband_verbs/{name}"),
    );
    put_text(&mut device.ibdev_path, &format!("{SYSFS}/{name}"));
    Box::new(OwnDevice {
        device,
        driver: [ptr::null_mut(); 16],
        path: directory.join(name),
    })
}

/// The block that a device is the head of.
///
/// # Safety
/// The device is one of [`get_device_list`] (invariant 1).
pub(crate) unsafe fn own<'d>(device: *mut Device) -> &'d OwnDevice {
    // SAFETY: it is the head of a block (invariant 2), which is never freed.
    unsafe { &*device.cast::<OwnDevice>() }
}

/// `ibv_get_device_list`. Devices are never freed: a program may keep one when it has freed the list, and another open
/// context may use it.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut Device {
    static KNOWN: std::sync::Mutex<Vec<(PathBuf, usize)>> = std::sync::Mutex::new(Vec::new());

    let directory = directory();
    let mut known = KNOWN.lock().unwrap_or_else(|lock| lock.into_inner());
    let names = devices_in(&directory);
    let mut list: Vec<*mut Device> = Vec::with_capacity(names.len() + 1);
    for name in &names {
        let path = directory.join(name);
        let found = known.iter().find(|(other, _)| *other == path);
        let address = found.map(|(_, address)| *address).unwrap_or_else(|| {
            let made = Box::into_raw(device(&directory, name));
            known.push((path, made.expose_provenance()));
            made.expose_provenance()
        });
        list.push(ptr::with_exposed_provenance_mut(address));
    }
    list.push(ptr::null_mut());
    if !count.is_null() {
        // SAFETY: the program passes a number (invariant 1).
        unsafe { *count = names.len() as c_int };
    }
    let bytes = size_of_val(list.as_slice());
    // SAFETY: malloc may be called with any size. The list is freed by `free`, whose size it need not know.
    let out = unsafe { libc::malloc(bytes) }.cast::<*mut Device>();
    if !out.is_null() {
        // SAFETY: both have room for so many pointers.
        unsafe { ptr::copy_nonoverlapping(list.as_ptr(), out, list.len()) };
    }
    out
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(list: *mut *mut Device) {
    // SAFETY: it came from malloc (invariant 1).
    unsafe { libc::free(list.cast()) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_name(device: *mut Device) -> *const c_char {
    // SAFETY: a device of the list (invariant 1).
    unsafe { (&raw const (*device).name).cast() }
}

/// In network byte order.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_guid(device: *mut Device) -> u64 {
    // SAFETY: a device of the list (invariant 1).
    let name = unsafe { own(device) }.path.file_name();
    sysfs::guid(&name.unwrap_or_default().to_string_lossy()).to_be()
}

/// Newer UCX asks the kernel about a device that has an index.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_index(_: *mut Device) -> c_int {
    -1
}

/// What a file says of a device that the kernel does not know.
fn described(path: &str) -> Option<Vec<u8>> {
    let path = Path::new(path).strip_prefix(SYSFS).ok()?;
    let name = path.iter().next()?.to_str()?;
    let gid = gid(&directory().join(name)).ok()?;
    let mut files = sysfs::files(name, gid).into_iter();
    let (_, line) = files.find(|(file, _)| path == Path::new(name).join(file))?;
    Some(line.into_bytes())
}

/// `ibv_read_sysfs_file`, also of a device that the kernel does not know.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_read_sysfs_file(
    directory: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: the program passes two texts (invariant 1).
    let path = unsafe { [directory, file].map(|text| CStr::from_ptr(text)) };
    let path = path.map(|text| text.to_string_lossy()).join("/");
    let Some(bytes) = fs::read(&path).ok().or_else(|| described(&path)) else {
        return -1;
    };
    let bytes = bytes.trim_ascii_end();
    let length = bytes.len().min(size);
    // SAFETY: the buffer has so many bytes (invariant 1).
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr().cast(), buffer, length) };
    if length < size {
        // SAFETY: as before.
        unsafe { *buffer.add(length) = 0 };
    }
    length as c_int
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}
