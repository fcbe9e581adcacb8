//! The page of a fabric.

/// A fabric's page. Asked for by its name it is an HTML document; watched, it is a stream of server-sent events, each
/// with the part of the document that changes.
#[derive(Clone, Copy, Debug)]
pub struct FabricPage;

impl FabricPage {
    /// Its kind.
    pub const KIND: &str = "FabricPage";
    /// In paths, and in roles.
    pub const RESOURCE: &str = "fabricpages";

    /// Where the document is: what comes after the group's version.
    #[must_use]
    pub fn path(fabric: &str) -> String {
        format!("{}/{fabric}", Self::RESOURCE)
    }

    /// Where the events are. The API server lets only what is watched go on for more than a minute.
    #[must_use]
    pub fn events_path(fabric: &str) -> String {
        format!(
            "{}?watch=true&fieldSelector=metadata.name%3D{fabric}",
            Self::RESOURCE
        )
    }
}
