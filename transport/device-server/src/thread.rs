//! Threads that never die unseen.

use std::io;

/// A thread whose panic ends the process: its devices would be silent for ever.
pub(crate) fn spawn(name: &'static str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    struct AbortOnPanic(&'static str);
    impl Drop for AbortOnPanic {
        fn drop(&mut self) {
            if std::thread::panicking() {
                tracing::error!(
                    thread = self.0,
                    "a thread of the devices has panicked: the process ends"
                );
                std::process::abort();
            }
        }
    }
    let thread = std::thread::Builder::new().name(name.to_owned());
    thread.spawn(move || {
        let _guard = AbortOnPanic(name);
        body();
    })?;
    Ok(())
}
