use std::fs;

use std::sync::atomic::Ordering;

use super::*;

/// Bytes of this process's memory that are backed by pages.
fn resident() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size() as u64
}

#[test]
fn a_region_of_one_gib_touches_no_page_before_it_is_used() {
    let before = resident();
    let regions = [
        Region::share(vec![0; 1 << 30]),
        Arc::new(Region::memfd("weft-test", 1 << 30).unwrap()),
    ];
    for region in &regions {
        region.write(1 << 29, &[1, 2, 3]).unwrap();
        let mut out = [9; 4];
        region.read((1 << 29) - 1, &mut out).unwrap();
        assert_eq!(out, [0, 1, 2, 3]);
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes are resident");
}

#[test]
fn what_lies_beyond_the_region_is_neither_read_nor_written() {
    for region in [
        Region::share(vec![0; 10]),
        Arc::new(Region::memfd("weft-test", 10).unwrap()),
    ] {
        assert_eq!(region.len(), 10);
        assert_eq!(region.write(4, &[7; 6]), Ok(()));
        assert_eq!(region.write(10, &[]), Ok(()));
        for offset in [5, 10, 11, u64::MAX - 2, u64::MAX] {
            let bytes = &mut [8; 6];
            assert_eq!(region.write(offset, bytes), Err(DropReason::Bounds));
            assert_eq!(region.read(offset, bytes), Err(DropReason::Bounds));
            assert_eq!(*bytes, [8; 6]);
        }
        let mut out = [0; 10];
        region.read(0, &mut out).unwrap();
        assert_eq!(out, [0, 0, 0, 0, 7, 7, 7, 7, 7, 7]);
    }
}

#[test]
fn the_owner_of_borrowed_memory_stays_as_long_as_the_region() {
    let owner: Arc<[AtomicU8]> = [1, 2, 3, 4].map(AtomicU8::new).into();
    let start = NonNull::from(&owner[0]).cast::<u8>();
    // SAFETY: `owner` keeps the bytes, which are cells.
    let region = unsafe { Region::borrow(start, 4, Box::new(Arc::clone(&owner))) };
    assert!(region.is_direct() && !region.reads_may_fail());
    region.write(1, &[7, 8]).unwrap();
    assert_eq!(region.write(3, &[1, 1]), Err(DropReason::Bounds));
    let mut out = [0; 4];
    region.read(0, &mut out).unwrap();
    assert_eq!(out, [1, 7, 8, 4]);
    assert_eq!(owner[2].load(Ordering::Relaxed), 8);
    assert_eq!(Arc::strong_count(&owner), 2);
    drop(region);
    assert_eq!(Arc::strong_count(&owner), 1);
}

#[test]
fn memory_is_owned_again_when_nobody_else_can_reach_it() {
    let bytes: Box<[u8]> = vec![1; 100].into();
    let address = bytes.as_ptr();
    let region = Region::share(bytes);
    region.write(50, &[2]).unwrap();
    let other = region.clone();
    let region = Region::into_box(region).unwrap_err();
    drop(other);
    let bytes = Region::into_box(region).unwrap();
    assert_eq!((bytes.as_ptr(), bytes.len()), (address, 100));
    assert_eq!((bytes[49], bytes[50]), (1, 2));
    let memfd = Arc::new(Region::memfd("weft-test", 100).unwrap());
    assert!(
        Region::into_box(memfd).is_err(),
        "another process may hold it"
    );
}

#[test]
fn two_holders_of_a_memfd_see_the_same_bytes() {
    let ours = Region::memfd("weft-test", 8192).unwrap();
    let passed_on = ours.file().unwrap().try_clone_to_owned().unwrap();
    let theirs = Region::from_memfd(passed_on, 8192).unwrap();
    theirs.write(5000, b"hello").unwrap();
    let mut out = [0; 5];
    ours.read(5000, &mut out).unwrap();
    assert_eq!(&out, b"hello");
    drop(ours);
    theirs.read(5000, &mut out).unwrap();
    assert_eq!(&out, b"hello");
    assert!(Region::share(vec![0; 1]).file().is_none());
}

#[test]
fn a_file_that_can_be_made_shorter_is_refused() {
    let unsealed = rustix::fs::memfd_create("weft-test", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&unsealed, 4096).unwrap();
    let unsealed = Region::from_memfd(unsealed, 4096);
    assert!(matches!(unsealed, Err(MemfdError::NotSealed)));
    let plain = fs::File::open("/proc/self/exe").unwrap();
    let plain = Region::from_memfd(plain.into(), 1);
    assert!(matches!(plain, Err(MemfdError::NotSealed)));
    let region = Region::memfd("weft-test", 4096).unwrap();
    assert!(rustix::fs::ftruncate(region.file().unwrap(), 0).is_err());
    let file = region.file().unwrap().try_clone_to_owned().unwrap();
    let longer = Region::from_memfd(file, 4097);
    assert!(matches!(
        longer,
        Err(MemfdError::TooShort {
            has: 4096,
            needs: 4097
        })
    ));
}

#[test]
fn a_source_is_read_in_place_when_nobody_changes_it_and_copied_otherwise() {
    let bytes: Arc<Box<[u8]>> = Arc::new(vec![3; 20].into());
    let sources = [
        Source::from(bytes.clone()),
        Source::from(Region::share(bytes.to_vec())),
    ];
    for source in &sources {
        let in_place = source.in_place(12, 8).unwrap();
        match source {
            Source::Bytes(_) => assert!(std::ptr::eq(in_place.unwrap(), &bytes[12..20])),
            Source::Region(_) => assert_eq!(in_place, None),
        }
        let mut copied = [0; 8];
        assert_eq!(source.copy_out(12, &mut copied), Ok(()));
        assert_eq!(copied, [3; 8]);
        assert_eq!(source.in_place(13, 8), Err(DropReason::Bounds));
        assert_eq!(source.copy_out(13, &mut copied), Err(DropReason::Bounds));
    }
}

#[test]
fn words_are_shared_and_lie_where_they_may() {
    let region = Arc::new(Region::memfd("weft-test", 4096).unwrap());
    let words = Words::new(&region, 16, 2).unwrap();
    words[1].store(7, Ordering::Relaxed);
    let mut out = [0; 8];
    region.read(24, &mut out).unwrap();
    assert_eq!(out, 7u64.to_le_bytes());
    for (offset, count) in [(4, 1), (4096, 1), (0, 513), (8, usize::MAX)] {
        let error = Words::new(&region, offset, count).unwrap_err();
        assert_eq!(error, DropReason::Bounds);
    }
}

#[test]
fn what_comes_by_a_socket_lies_in_the_region_and_what_follows_it_ahead() {
    use std::io::Write as _;
    let (mut from, to) = std::os::unix::net::UnixStream::pair().unwrap();
    for region in [
        Region::share(vec![0; 100]),
        Arc::new(Region::memfd("weft-test", 100).unwrap()),
    ] {
        assert!(region.is_direct());
        from.write_all(&[7; 50]).unwrap();
        let mut ahead = [0; 30];
        assert_eq!(region.receive(20, 40, to.as_fd(), &mut ahead).unwrap(), 50);
        let mut bytes = [1; 100];
        region.read(0, &mut bytes).unwrap();
        let expected = [&[0; 20][..], &[7; 40], &[0; 40]].concat();
        assert_eq!(bytes[..], expected);
        assert_eq!(ahead, [[7; 10], [0; 10], [0; 10]].concat()[..]);
        let beyond = region.receive(61, 40, to.as_fd(), &mut ahead);
        assert_eq!(beyond.unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
    }
    drop(from);
    let region = Region::share(vec![0; 10]);
    assert_eq!(region.receive(0, 10, to.as_fd(), &mut []).unwrap(), 0);
    let part = Part {
        region,
        offset: 0,
        bytes: 10,
    };
    let joined = Region::joined(vec![part]);
    let received = joined.receive(0, 10, to.as_fd(), &mut []);
    assert!(!joined.is_direct() && received.is_err());
}

#[test]
fn bytes_of_this_process_have_an_address_and_joined_ones_have_none() {
    let shared = Region::share(vec![5; 10]);
    let memfd = Arc::new(Region::memfd("weft-test", 10).unwrap());
    memfd.write(0, &[5; 10]).unwrap();
    for region in [&shared, &memfd] {
        let start = region.as_ptr().unwrap();
        assert_eq!(start, NonNull::from(region.bytes()).cast());
    }
    let part = Part {
        region: shared,
        offset: 0,
        bytes: 10,
    };
    assert_eq!(Region::joined(vec![part]).as_ptr(), None);
}
