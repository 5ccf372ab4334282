#![expect(missing_docs, reason = "placeholder")]
fn main() {}
