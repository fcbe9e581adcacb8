//! What a container runtime gives a verbs program: namespaces of its own, a root file system that it cannot write to, and the
//! system calls of the default seccomp profile.

use std::path::Path;

/// A program in Python that runs another one under the default seccomp profile.
pub const SECCOMP_PROFILE: &str = include_str!("../seccomp/default.py");

/// The line that runs a program as in a container; it has the network of who starts it, as pods with `hostNetwork` have.
/// `profile` is a file with [`SECCOMP_PROFILE`].
#[must_use]
pub fn in_container(profile: &Path, line: &str) -> String {
    let profile = profile.display();
    format!(
        "bwrap --die-with-parent --unshare-pid --unshare-ipc --unshare-uts --ro-bind / / --dev-bind /dev /dev \
         --proc /proc /usr/bin/python3 -B {profile} {line}"
    )
}
