//! Generates the types of every .proto file, in pure Rust: no protoc is needed.

use protox::prost::Message;
use std::path::{Path, PathBuf};

const FILES: [&str; 3] =
    ["inferencecache/v1alpha1/inferencecache.proto", "prefixd/node/v1/node.proto", "prefixd/admin/v1/admin.proto"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = Path::new("proto");
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(FILES, [root])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    let mut prost = tonic_prost_build::Config::new();
    prost.bytes([".inferencecache.v1alpha1", ".prefixd.node.v1"]);
    tonic_prost_build::configure().codec_path("crate::codec::Codec").compile_fds_with_config(descriptors, prost)?;
    Ok(())
}
