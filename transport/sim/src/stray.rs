//! Writes that their receiver must refuse, as a writer that is wrong or hostile would post them.

/// How a write is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stray {
    /// It begins in a region and ends outside, within its first packet.
    Straddling,
    /// It begins behind a region.
    Behind,
    /// It ends at the last offset that there is.
    AtTheEnd,
    /// Its key opens nothing.
    Key,
    /// Its key opens a region of another tenant, if there is one.
    Tenant,
}

impl Stray {
    /// Every way.
    pub const ALL: [Stray; 5] = [
        Stray::Straddling,
        Stray::Behind,
        Stray::AtTheEnd,
        Stray::Key,
        Stray::Tenant,
    ];
}
