//! The `xagg` binary.
fn main() {}
