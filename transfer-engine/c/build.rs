//! Names the shared object, so that a program that was linked with another interface of it does not start, and keeps its
//! exports to those of the header.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libweft.so.0");
    // Some crates have functions for C of their own: they are not this library's.
    println!("cargo::rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
}
