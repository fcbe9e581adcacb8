//! What a server logs as a warning.

use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// A warning.
#[derive(Debug, Clone, Default)]
struct Warning {
    device: String,
    message: String,
}

impl Visit for Warning {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = match field.name() {
            "device" => &mut self.device,
            "message" => &mut self.message,
            _ => return,
        };
        let _ = write!(text, "{value:?}");
    }
}

/// All warnings of this process, from its servers' threads as well.
#[derive(Debug, Clone, Default)]
pub(crate) struct Warnings(Arc<Mutex<Vec<Warning>>>);

impl Warnings {
    /// Collects them from now on: those of all tests of this process.
    pub(crate) fn collect() -> Self {
        static ALL: OnceLock<Warnings> = OnceLock::new();
        let all = ALL.get_or_init(|| {
            let warnings = Self::default();
            let set = tracing::subscriber::set_global_default(warnings.clone());
            set.expect("nothing else collects them");
            warnings
        });
        all.clone()
    }

    /// The messages that name a device; those that name none, by no name.
    pub(crate) fn of(&self, device: &str) -> Vec<String> {
        let all = self.lock();
        let own = all.iter().filter(|warning| warning.device == device);
        own.map(|warning| warning.message.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Warning>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() == Level::WARN
    }

    fn event(&self, event: &Event<'_>) {
        let mut warning = Warning::default();
        event.record(&mut warning);
        self.lock().push(warning);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
