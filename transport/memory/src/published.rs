//! Values that readers follow without a lock and a writer replaces: read-copy-update, with the time
//! that each reader is inside counted by the reader itself (McKenney, Desnoyers et al., "User-Level
//! Implementations of Read-Copy Update", IEEE TPDS 2012, section 5: general-purpose RCU).
//!
//! A reader makes its own counter odd, follows the pointer, and makes the counter even. A writer
//! replaces the pointer and then waits for each reader whose counter is odd until the counter has
//! changed. Between a side's store and its load stands a sequentially consistent fence, so either the
//! reader sees the new pointer or the writer sees the odd counter.

use super::sync::{Arc, AtomicPtr, AtomicU64, Mutex, Ordering, fence, relax};

/// A reader's counter: odd while the reader is inside. Alone on its cache lines (two, because
/// processors fetch them in pairs), so that readers do not slow each other down.
#[repr(align(128))]
struct Counter(AtomicU64);

/// Several values of one kind, read through [`Reader`]s and replaced one at a time.
pub(crate) struct Published<T> {
    values: Box<[AtomicPtr<T>]>,
    /// The readers there are. Locked by the writer.
    readers: Mutex<Vec<Arc<Counter>>>,
}

impl<T: Send + Sync> Published<T> {
    pub(crate) fn new(values: impl Iterator<Item = T>) -> Self {
        Self {
            values: values
                .map(|value| AtomicPtr::new(Box::into_raw(Box::new(value))))
                .collect(),
            readers: Mutex::new(Vec::new()),
        }
    }

    /// Replaces a value by what `change` makes of it. When this returns, every reader that could see the
    /// old value has left, and what the readers wrote is visible here.
    pub(crate) fn replace<R>(&self, index: usize, change: impl FnOnce(&T) -> (T, R)) -> R {
        let mut readers = lock(&self.readers);
        // SAFETY: only the holder of the lock frees values, after it has taken them out.
        let old = unsafe { &*self.values[index].load(Ordering::Relaxed) };
        let (new, result) = change(old);
        let new = Box::into_raw(Box::new(new));
        let old = self.values[index].swap(new, Ordering::AcqRel);
        readers.retain(|counter| Arc::strong_count(counter) > 1);
        wait_for(&readers);
        // SAFETY: the pointer came from a box and was taken out; no reader that may have loaded it is
        // inside any more, and readers that enter from now on load the new one.
        drop(unsafe { Box::from_raw(old) });
        result
    }

    /// Shows every value, while no writer can replace one.
    pub(crate) fn each(&self, mut show: impl FnMut(&T)) {
        let _readers = lock(&self.readers);
        for value in &self.values {
            // SAFETY: only the holder of the lock frees values.
            show(unsafe { &*value.load(Ordering::Relaxed) });
        }
    }
}

impl<T> Drop for Published<T> {
    fn drop(&mut self) {
        for value in &self.values {
            // SAFETY: every reader holds an Arc of this, so there is none; the pointer came from a box.
            drop(unsafe { Box::from_raw(value.load(Ordering::Relaxed)) });
        }
    }
}

/// Waits until every reader has been outside at least once.
fn wait_for(readers: &[Arc<Counter>]) {
    fence(Ordering::SeqCst);
    for counter in readers {
        let before = counter.0.load(Ordering::Acquire);
        let mut spins = 0;
        while before % 2 == 1 && counter.0.load(Ordering::Acquire) == before {
            relax(&mut spins);
        }
    }
}

/// One reader: a worker.
pub(crate) struct Reader<T> {
    published: Arc<Published<T>>,
    counter: Arc<Counter>,
}

impl<T: Send + Sync> Reader<T> {
    pub(crate) fn new(published: &Arc<Published<T>>) -> Self {
        let counter = Arc::new(Counter(AtomicU64::new(0)));
        lock(&published.readers).push(counter.clone());
        Self {
            published: published.clone(),
            counter,
        }
    }

    /// From here until the guard is dropped, no value that it shows is freed. Writers wait for it.
    pub(crate) fn enter(&mut self) -> Inside<'_, T> {
        let count = self.counter.0.load(Ordering::Relaxed) + 1;
        // Release: a writer that sees this number has also seen what was done before.
        self.counter.0.store(count, Ordering::Release);
        fence(Ordering::SeqCst);
        Inside { reader: self }
    }
}

/// A reader that is inside.
pub(crate) struct Inside<'a, T> {
    reader: &'a mut Reader<T>,
}

impl<T> Inside<'_, T> {
    pub(crate) fn get(&self, index: usize) -> &T {
        let value = self.reader.published.values[index].load(Ordering::Acquire);
        // SAFETY: the value is freed only after the guard, which the result borrows, is dropped.
        unsafe { &*value }
    }
}

impl<T> Drop for Inside<'_, T> {
    fn drop(&mut self) {
        let count = self.reader.counter.0.load(Ordering::Relaxed) + 1;
        self.reader.counter.0.store(count, Ordering::Release);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> impl std::ops::DerefMut<Target = T> + '_ {
    // Nothing under this lock can panic half-way but the caller's `change`, which changes nothing.
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
