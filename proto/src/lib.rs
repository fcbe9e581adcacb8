//! The control API between operator and agents; generated code only.
