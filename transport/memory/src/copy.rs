//! Copies to and from bytes that others may read and write at the same time (invariant 1).
//!
//! Each copy is a relaxed atomic load or store of every byte, in any order and in units of any size.
//! On x86-64 these are moves of 64 bytes, and from [`STRING_BYTES_MIN`] on `rep movsb`: the processor's moves
//! are relaxed atomics, and the compiler assumes nothing about what happens inside an assembly block. Other
//! architectures use a loop of words.

#[cfg(any(not(target_arch = "x86_64"), miri, test))]
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::AtomicU8;

use nix::libc;

/// Copies `from` into shared bytes of the same length.
///
/// # Panics
/// When the lengths differ.
pub(crate) fn copy_in(to: &[AtomicU8], from: &[u8]) {
    assert_eq!(to.len(), from.len(), "both sides of a copy");
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: `from` is readable and `to`, of cells, is writable for that many bytes.
    unsafe {
        move_bytes(from.as_ptr(), to.as_ptr().cast_mut().cast(), to.len());
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    words_in(to, from);
}

/// Copies shared bytes into `to`, of the same length.
///
/// # Panics
/// When the lengths differ.
pub(crate) fn copy_out(from: &[AtomicU8], to: &mut [u8]) {
    assert_eq!(to.len(), from.len(), "both sides of a copy");
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: `from` is readable and `to` writable for that many bytes.
    unsafe {
        move_bytes(from.as_ptr().cast(), to.as_mut_ptr(), to.len());
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    words_out(from, to);
}

/// Copies shared bytes to others of the same length.
///
/// # Panics
/// When the lengths differ.
pub(crate) fn copy_across(to: &[AtomicU8], from: &[AtomicU8]) {
    assert_eq!(to.len(), from.len(), "both sides of a copy");
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: `from` is readable and `to`, of cells, is writable for that many bytes. Where they overlap, as memory of one
    // file that is mapped twice may, the moves still read and write within both.
    unsafe {
        move_bytes(
            from.as_ptr().cast(),
            to.as_ptr().cast_mut().cast(),
            to.len(),
        );
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    words_across(to, from);
}

/// Receives from a socket into shared bytes, and what follows into `ahead`, in one call. The kernel writes as another process
/// would. Answers how many bytes it received.
pub(crate) fn receive(
    to: &[AtomicU8],
    socket: BorrowedFd<'_>,
    ahead: &mut [u8],
) -> io::Result<usize> {
    let parts = [
        libc::iovec {
            iov_base: to.as_ptr().cast_mut().cast(),
            iov_len: to.len(),
        },
        libc::iovec {
            iov_base: ahead.as_mut_ptr().cast(),
            iov_len: ahead.len(),
        },
    ];
    loop {
        // SAFETY: `to`, of cells, and `ahead` are writable for so many bytes during the call.
        let read = unsafe { libc::readv(socket.as_raw_fd(), parts.as_ptr(), 2) };
        match usize::try_from(read) {
            Ok(read) => return Ok(read),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

/// From so many bytes on `rep movsb` is as fast as moves of registers are; before, its start costs more. By `rep movsb`
/// and by moves, 1,408 bytes take 21 and 20 ns in the cache, and 82 and 62 ns into memory that no cache holds;
/// 8,904 bytes take 73 and 112 ns, and 364 and 366 ns (AMD EPYC with AVX-512).
#[cfg(all(target_arch = "x86_64", not(miri)))]
const STRING_BYTES_MIN: usize = 4096;

/// # Safety
/// `from` is readable and `to` writable for `bytes` bytes; they do not overlap unless both are shared. Either may be shared
/// with others that access it by atomics only.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
unsafe fn move_bytes(from: *const u8, to: *mut u8, bytes: usize) {
    let by_moves = match bytes < STRING_BYTES_MIN {
        true => bytes / 64,
        false => 0,
    };
    // SAFETY: as the caller promises: the moves take `by_moves` times 64 bytes, the string move takes the
    // rest. The direction flag is clear at every call (System V ABI, 3.4.1).
    unsafe {
        std::arch::asm!(
            "test {moves}, {moves}",
            "jz 3f",
            "2:",
            "movups {a}, [rsi]",
            "movups {b}, [rsi + 16]",
            "movups {c}, [rsi + 32]",
            "movups {d}, [rsi + 48]",
            "movups [rdi], {a}",
            "movups [rdi + 16], {b}",
            "movups [rdi + 32], {c}",
            "movups [rdi + 48], {d}",
            "add rsi, 64",
            "add rdi, 64",
            "dec {moves}",
            "jnz 2b",
            "3:",
            "rep movsb",
            moves = inout(reg) by_moves => _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            inout("rcx") bytes - by_moves * 64 => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack)
        );
    }
}

/// Has the processor fetch `bytes` into its caches while it goes on.
#[inline]
pub(crate) fn prefetch(bytes: &[u8]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in bytes.chunks(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch is a hint: it changes nothing, and every x86-64 processor has it (SSE).
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    let _ = bytes;
}

#[cfg(any(not(target_arch = "x86_64"), miri, test))]
fn words_in(to: &[AtomicU8], from: &[u8]) {
    // SAFETY: an aligned group of 8 bytes that are atomics is one atomic of 8 bytes.
    let (head, words, tail) = unsafe { to.align_to::<AtomicU64>() };
    let (first, rest) = from.split_at(head.len());
    let (middle, last) = rest.as_chunks::<8>();
    for (to, from) in words.iter().zip(middle) {
        to.store(u64::from_ne_bytes(*from), Relaxed);
    }
    for (to, from) in head.iter().zip(first).chain(tail.iter().zip(last)) {
        to.store(*from, Relaxed);
    }
}

#[cfg(any(not(target_arch = "x86_64"), miri, test))]
fn words_out(from: &[AtomicU8], to: &mut [u8]) {
    // SAFETY: as in `words_in`.
    let (head, words, tail) = unsafe { from.align_to::<AtomicU64>() };
    let (first, rest) = to.split_at_mut(head.len());
    let (middle, last) = rest.as_chunks_mut::<8>();
    for (from, to) in words.iter().zip(middle) {
        *to = from.load(Relaxed).to_ne_bytes();
    }
    let ends = head.iter().zip(first).chain(tail.iter().zip(last));
    for (from, to) in ends {
        *to = from.load(Relaxed);
    }
}

/// Piece by piece: the two sides may lie differently within their words.
#[cfg(any(not(target_arch = "x86_64"), miri, test))]
fn words_across(to: &[AtomicU8], from: &[AtomicU8]) {
    let mut piece = [0; 1024];
    for (to, from) in to.chunks(piece.len()).zip(from.chunks(piece.len())) {
        let piece = &mut piece[..to.len()];
        words_out(from, piece);
        words_in(to, piece);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_alignment_is_copied_whole_and_nothing_beside_it() {
        type In = fn(&[AtomicU8], &[u8]);
        type Out = fn(&[AtomicU8], &mut [u8]);
        let pairs: [(In, Out); 2] = [(copy_in, copy_out), (words_in, words_out)];
        // Shorter than a move, several of them with something left, and around the length from which on the processor
        // copies a string.
        let lengths = || (0..200).chain([1_408, 4_095, 4_096, 4_097, 8_904]);
        let source: Vec<u8> = (0..10_000).map(|i| (i % 251) as u8 + 1).collect();
        for (copy_in, copy_out) in pairs {
            for (start, length) in (0..16).flat_map(|start| lengths().map(move |l| (start, l))) {
                let end = start + length;
                let shared: Vec<AtomicU8> = (0..end + 24).map(|_| AtomicU8::new(0)).collect();
                let from = &source[start..end];
                copy_in(&shared[start..end], from);
                let mut whole = vec![0; end + 24];
                copy_out(&shared, &mut whole);
                assert_eq!(&whole[start..end], from);
                assert!(whole[..start].iter().all(|&byte| byte == 0));
                assert!(whole[end..].iter().all(|&byte| byte == 0));
                let mut out = vec![0; length + 24];
                copy_out(&shared[start..end], &mut out[..length]);
                assert_eq!(&out[..length], from);
                assert!(out[length..].iter().all(|&byte| byte == 0));
            }
        }
    }
    #[test]
    fn shared_bytes_are_copied_to_shared_bytes_whole_and_nothing_beside_them() {
        let cells = |byte: fn(usize) -> u8| -> Vec<AtomicU8> {
            (0..10_000).map(|at| AtomicU8::new(byte(at))).collect()
        };
        let from = cells(|at| (at % 251) as u8 + 1);
        for across in [copy_across, words_across] {
            for (start, length) in [(0, 0), (1, 7), (3, 64), (5, 1_030), (8, 4_096), (9, 9_001)] {
                let to = cells(|_| 0);
                across(&to[start + 1..][..length], &from[start..][..length]);
                let byte = |cells: &[AtomicU8], at: usize| cells[at].load(Relaxed);
                for at in 0..to.len() {
                    let wanted = match (start + 1..start + 1 + length).contains(&at) {
                        true => byte(&from, at - 1),
                        false => 0,
                    };
                    assert_eq!(byte(&to, at), wanted, "{length} bytes, at {at}");
                }
            }
        }
    }
}
