//! The policy file on a running node: offered, watched, and overruled by a push for good.

use super::*;
use prefixd_index::policy::PolicySource;
use prefixd_proto::admin::admin_client::AdminClient;
use prefixd_proto::admin::{GetPolicyRequest, SetPolicyRequest};
use std::path::Path;

/// The matched-tokens floor of tenant t that governs.
fn floor(server: &Server) -> Option<i32> {
    server.running.node.view().policies().0.policies.get("t")?.minimum_matched_tokens
}

fn write(path: &Path, floor: u32) {
    let text = format!("version: 7\npolicies:\n- {{namespace: t, minimumMatchedTokens: {floor}}}\n");
    // As an operator's tools do: at once, under another name first.
    let draft = path.with_extension("draft");
    std::fs::write(&draft, text).unwrap();
    std::fs::rename(draft, path).unwrap();
}

#[tokio::test]
async fn a_file_governs_until_a_set_is_pushed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("policy.yaml");
    write(&path, 1);
    let server = Server::with(&[("policy_file", path.to_str().unwrap())]).await;
    eventually("the file governs", async || floor(&server) == Some(1)).await;
    let settled = server.running.node.applied_index();
    write(&path, 2);
    eventually("its change governs", async || floor(&server) == Some(2)).await;
    assert_eq!(server.running.node.applied_index(), settled + 1, "a set that governs is not offered again");
    std::fs::write(&path, "version: 9").unwrap();
    let bad = "prefixd_policy_file_contents_total{result=\"bad\"}";
    eventually("the bad content is counted", async || server.series(bad).await == Some(1.0)).await;
    assert_eq!(floor(&server), Some(2));
    assert_eq!(server.series("prefixd_policy_pushed").await, Some(0.0));

    let (status, ..) = server.internal("POST", "/policy", r#"{"version":7}"#).await;
    assert_eq!((status, floor(&server)), (204, None));
    write(&path, 3);
    let good = "prefixd_policy_file_contents_total{result=\"good\"}";
    eventually("the change is seen", async || server.series(good).await == Some(3.0)).await;
    assert_eq!(floor(&server), None, "the push wins");
    assert_eq!(server.running.node.view().policy_source(), PolicySource::Pushed);
    assert_eq!(server.series("prefixd_policy_pushed").await, Some(1.0));
    server.stop().await;
}

#[tokio::test]
async fn operators_read_and_replace_the_set() {
    let server = Server::start().await;
    let node = format!("http://{}", server.bound.node);
    let mut admin = AdminClient::new(Endpoint::from_shared(node).unwrap().connect().await.unwrap());
    let empty = admin.get_policy(GetPolicyRequest {}).await.unwrap().into_inner();
    assert!(!empty.pushed && empty.document.contains("\"policies\":[]"), "{empty:?}");
    for wrong in ["", "{}", r#"{"version":7,"x":1}"#, r#"{"version":7} x"#, r#"[7,null,null]"#] {
        let refused = admin.set_policy(SetPolicyRequest { document: wrong.into() }).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{wrong}");
    }
    let long = format!("{{\"version\":7}}{}", " ".repeat(1 << 20));
    let refused = admin.set_policy(SetPolicyRequest { document: long }).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    let document = r#"{"version":7,"policies":[{"namespace":"t","minimumMatchedTokens":5}]}"#.to_owned();
    let index = admin.set_policy(SetPolicyRequest { document }).await.unwrap().into_inner().index;
    assert_eq!(floor(&server), Some(5));
    let set = admin.get_policy(GetPolicyRequest {}).await.unwrap().into_inner();
    assert!(set.pushed && set.applied_index >= index && set.document.contains("\"minimumMatchedTokens\":5"), "{set:?}");
    let (status, _, body) = server.internal("POST", "/policy", &set.document).await;
    assert_eq!(status, 204, "{body}");
    server.stop().await;
}
