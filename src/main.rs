//! prefixd.
fn main() {}
