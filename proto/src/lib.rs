//! The protobuf contracts of prefixd and their generated types. Conversion between them and the core's types happens
//! here and nowhere else, so that the wire can grow without the log changing.

#![cfg_attr(test, expect(clippy::unwrap_used, reason = "a test may panic"))]

pub mod codec;
pub mod failure;
pub mod ingest;
pub mod keyed;
pub mod lookups;
pub mod patience;
pub mod policy;

/// The public contract, `inferencecache.v1alpha1`.
#[expect(missing_docs, clippy::allow_attributes, reason = "generated; the comments are in the .proto file")]
pub mod inferencecache {
    tonic::include_proto!("inferencecache.v1alpha1");
}

/// Calls between nodes, `prefixd.node.v1`.
#[expect(missing_docs, clippy::allow_attributes, reason = "generated; the comments are in the .proto file")]
pub mod node {
    tonic::include_proto!("prefixd.node.v1");
}

/// Calls of operators, `prefixd.admin.v1`.
#[expect(missing_docs, clippy::allow_attributes, reason = "generated; the comments are in the .proto file")]
pub mod admin {
    tonic::include_proto!("prefixd.admin.v1");
}

/// The encoded descriptors of all three packages, for gRPC reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
