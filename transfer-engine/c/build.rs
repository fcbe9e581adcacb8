//! Names the shared object: a program that was linked with another interface of it does not start.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libweft.so.0");
}
