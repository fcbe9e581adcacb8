//! Names the shared object, and its version nodes.
//!
//! The nodes are empty: `.symver` in `src/symbols.rs` puts each symbol into its own. A node with patterns would make the
//! linker drop one of two symbols of one name. Private names have no version, and glibc lets such a definition satisfy a
//! reference with any version of a node that is there: so one file serves every release of rdma-core's libraries.
//! `WEFT_LIBRARY` has no symbol: by it `weft device doctor` tells this library from others.

use std::fmt::Write as _;
use std::path::PathBuf;

/// The newest node of public names (rdma-core 60).
const PUBLIC_MAX: u32 = 18;
/// The nodes of private names: one for each of rdma-core's private interfaces, older and newer ones.
const PRIVATE: std::ops::RangeInclusive<u32> = 20..=120;

fn main() {
    let mut script = String::from("WEFT_LIBRARY { };\nIBVERBS_1.0 { };\n");
    for minor in 1..=PUBLIC_MAX {
        let before = minor - 1;
        let _ = writeln!(script, "IBVERBS_1.{minor} {{ }} IBVERBS_1.{before};");
    }
    for number in PRIVATE {
        let _ = writeln!(
            script,
            "IBVERBS_PRIVATE_{number} {{ }} IBVERBS_1.{PUBLIC_MAX};"
        );
    }
    let out = std::env::var_os("OUT_DIR").map(PathBuf::from);
    let out = out.expect("cargo sets OUT_DIR");
    let path = out.join("versions");
    std::fs::write(&path, script).expect("cargo's directory can be written to");
    // What unwinds is linked in: a container's image may have no libgcc_s.so.1.
    std::fs::write(out.join("libgcc_s.so"), "INPUT(-lgcc_eh -lgcc)\n")
        .expect("cargo's directory can be written to");
    println!("cargo::rustc-link-search=native={}", out.display());
    println!("cargo::rerun-if-changed=build.rs");
    println!(
        "cargo::rustc-cdylib-link-arg=-Wl,--version-script={}",
        path.display()
    );
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
}
