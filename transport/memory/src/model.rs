//! A model of `published` under every interleaving and every memory order that the language allows:
//! the same file, compiled with loom's primitives.

use loom::cell::UnsafeCell;
use loom::thread;

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU64, Ordering, fence};
    pub(crate) use loom::sync::{Arc, Mutex};

    pub(crate) fn relax(_spins: &mut u32) {
        loom::thread::yield_now();
    }
}

#[expect(dead_code, reason = "the model does not use all of it")]
#[path = "published.rs"]
mod published;

use published::{Published, Reader};
use sync::Arc;

/// Memory that a reader writes to. Loom fails a run in which two threads use it at the same time.
type Bytes = Arc<UnsafeCell<u32>>;

/// A published value. Freeing it counts as a use, so loom also fails a run in which a reader uses a value
/// that is freed.
struct Value {
    bytes: Option<Bytes>,
    itself: UnsafeCell<()>,
}

// SAFETY: loom checks every use of the cells; that is what the model is for.
unsafe impl Send for Value {}
// SAFETY: as above.
unsafe impl Sync for Value {}

impl Drop for Value {
    fn drop(&mut self) {
        self.itself.with_mut(|_| ());
    }
}

fn value(bytes: Option<Bytes>) -> Value {
    let itself = UnsafeCell::new(());
    Value { bytes, itself }
}

fn published() -> Arc<Published<Value>> {
    let bytes = Arc::new(UnsafeCell::new(0));
    Arc::new(Published::new(std::iter::once(value(Some(bytes)))))
}

/// What a worker does with a packet: answers whether it was placed.
fn place(reader: &mut Reader<Value>) -> bool {
    let inside = reader.enter();
    let value = inside.get(0);
    value.itself.with(|_| ());
    let Some(bytes) = &value.bytes else {
        return false;
    };
    // SAFETY: loom checks that nobody else uses the cell.
    bytes.with_mut(|bytes| unsafe { *bytes += 1 });
    true
}

/// Takes the memory out and uses it as its only owner.
fn take(published: &Published<Value>) -> u32 {
    let taken = published.replace(0, |old| (value(None), old.bytes.clone()));
    let taken = taken.expect("the memory was there");
    // SAFETY: loom checks that nobody else uses the cell.
    taken.with_mut(|bytes| unsafe {
        *bytes += 10;
        *bytes - 10
    })
}

#[test]
fn after_a_take_no_byte_lands_and_what_landed_before_is_seen() {
    loom::model(|| {
        let published = published();
        let mut reader = Reader::new(&published);
        let worker =
            thread::spawn(move || u32::from(place(&mut reader)) + u32::from(place(&mut reader)));
        let seen = take(&published);
        assert_eq!(worker.join().unwrap(), seen);
    });
}

#[test]
fn a_take_waits_for_every_worker() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let published = published();
        let workers = [(); 2].map(|()| {
            let mut reader = Reader::new(&published);
            thread::spawn(move || {
                let inside = reader.enter();
                // Two that read the same memory do not disturb each other.
                if let Some(bytes) = &inside.get(0).bytes {
                    bytes.with(|_| ());
                }
            })
        });
        take(&published);
        for worker in workers {
            worker.join().unwrap();
        }
    });
}

#[test]
fn a_worker_that_comes_and_goes_is_waited_for_too() {
    loom::model(|| {
        let published = published();
        let worker = thread::spawn({
            let published = published.clone();
            move || u32::from(place(&mut Reader::new(&published)))
        });
        let seen = take(&published);
        assert_eq!(worker.join().unwrap(), seen);
    });
}
