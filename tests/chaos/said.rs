//! What operators and producers are told when something is amiss, by real processes: what is so, and what to do. Nobody
//! is blamed who is not at fault.

use crate::cluster::Cluster;
use crate::members::{ctl, obeyed, prefixd};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_leader_it_is_said_that_there_is_none() {
    let mut cluster = Cluster::new(3, &["--propose-timeout=1s"]);
    cluster.start_all();
    cluster.settle().await;
    let left = (cluster.leader().await + 1) % 3;
    let again = obeyed(&cluster, left, &["member", "remove", "n7", "--if-exists"]).await;
    assert!(again.starts_with("nothing to do: \"n7\" is no member"), "{again}");
    (0..3).filter(|i| *i != left).for_each(|i| cluster.nodes[i].kill());
    cluster.wait_for(left, "no leader", |status| status.leader.is_none()).await;
    let dead = format!("n{}", (left + 1) % 3);
    for order in [&["transfer-leader"][..], &["member", "remove", &dead], &["member", "add", "n9", "127.0.0.1:1"]] {
        let said = ctl(&cluster, left, order).await;
        assert!(!said.is_ok, "{order:?}: {}", said.out);
        let or_deaf = said.err.contains("leads, but no quorum answers it now");
        let parts = ["there is no leader now (term ", " led last, and ", "member list", "prefixd recover"];
        assert!(or_deaf || parts.iter().all(|part| said.err.contains(part)), "{order:?}: {}", said.err);
        assert!(!said.err.contains("connect error") && !said.err.contains("does not lead"), "{order:?}: {}", said.err);
    }
    let server = format!("{}:9090", cluster.nodes[left].host);
    let report = async |timeout_ms: &str| {
        let args = ["report", "--server", &server, "--replica", "r", "--blocks", "0a", "--timeout-ms", timeout_ms];
        let said = prefixd(&args).await;
        assert!(!said.is_ok && said.err.contains("waits for a quorum"), "{}", said.err);
        said.err
    };
    let late = report("300").await;
    assert!(late.contains(&format!("{server} did not answer before the deadline of the call")), "{late}");
    let unavailable = report("8000").await;
    assert!(unavailable.contains(&format!("{server} answered Unavailable: ")), "{unavailable}");
    assert!(!unavailable.contains("Cancelled"), "{unavailable}");
    let logs: String = cluster.nodes.iter().map(|node| node.log()).collect();
    for line in logs.lines() {
        let end = line.trim_end_matches('"').trim_end();
        assert!(!end.ends_with(':'), "a line that ends where its reason should be: {line}");
    }
    cluster.assert_no_panic();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_voter_that_is_alone_and_short_of_room_is_not_called_a_learner() {
    let mut cluster = Cluster::with_lists(&[vec![]], &["--bootstrap=solo"]);
    cluster.nodes[0].start();
    cluster.settle().await;
    cluster.nodes[0].flags.push("--disk-reserve-bytes=1000000GiB".into());
    for _ in 0..3 {
        assert!(cluster.nodes[0].stop().await.success(), "{}", cluster.logs());
        cluster.nodes[0].start();
        let short = "the disk is short of room";
        cluster.wait_for(0, "short of room", |s| s.ready && s.unready_reason.contains(short)).await;
    }
    assert!(!cluster.nodes[0].log().contains("a learner"), "{}", cluster.nodes[0].log());
    cluster.assert_no_panic();
}
