//! Members come and go by an operator's commands while clients write and look up: from one node to three and to five and
//! back, with the leader killed in the midst of changes, and a member taken out while it is still on its way in.

use crate::cluster::{Cluster, PATIENCE};
use crate::figures::{chances, rounds_of};
use crate::oracle::{Alive, Latencies, Producer, gateway};
use prefixd_proto::admin::StatusResponse;
use rand::RngExt;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tonic::Status;

const FLAGS: [&str; 2] = ["--snapshot-log-entries=400", "--keep-log-entries=50"];

/// What a run of the command line said.
pub struct Said {
    pub is_ok: bool,
    pub out: String,
    pub err: String,
}

/// Runs the binary to its end.
pub async fn prefixd(args: &[&str]) -> Said {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_prefixd"));
    command.args(args).env_remove("PREFIXD_ADMIN").kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, command.output()).await.expect("it ends").unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Said { is_ok: output.status.success(), out: text(output.stdout), err: text(output.stderr) }
}

/// An operator's command to one node.
pub async fn ctl(cluster: &Cluster, node: usize, args: &[&str]) -> Said {
    let admin = format!("{}:9091", cluster.nodes[node].host);
    prefixd(&[&["ctl"], args, &["--admin", &admin]].concat()).await
}

/// The same, which must be obeyed.
pub async fn obeyed(cluster: &Cluster, node: usize, args: &[&str]) -> String {
    let said = ctl(cluster, node, args).await;
    assert!(said.is_ok, "{args:?} by n{node}: {}\n{}", said.err, cluster.logs());
    said.out
}

/// The same, which must be refused with these words.
async fn refused(cluster: &Cluster, node: usize, args: &[&str], words: &[&str]) {
    let said = ctl(cluster, node, args).await;
    assert!(!said.is_ok, "{args:?} by n{node} was obeyed: {}", said.out);
    for part in words {
        assert!(said.err.contains(part), "{args:?}: {part:?} is not in: {}", said.err);
    }
}

fn addr(cluster: &Cluster, node: usize) -> String {
    format!("{}:9091", cluster.nodes[node].host)
}

fn names(status: &StatusResponse, voters: bool) -> Vec<&str> {
    status.members.iter().filter(|m| m.voter || !voters).map(|m| m.name.as_str()).collect()
}

/// Node `i` knows itself as a voter and is ready.
pub async fn is_voter(cluster: &mut Cluster, i: usize) -> StatusResponse {
    let mine = |s: &StatusResponse| s.members.iter().any(|m| m.node_id == s.node_id && m.voter);
    cluster.wait_for(i, "a voter that is ready", |s| s.ready && mine(s)).await
}

/// Node `i` knows that it is out.
async fn is_out(cluster: &mut Cluster, i: usize) {
    let why = |s: &StatusResponse| !s.ready && s.unready_reason.contains("taken out of the membership");
    cluster.wait_for(i, "a member no more", why).await;
}

/// One producer and one gateway a node; only nodes that are up are used.
struct Traffic {
    producers: Vec<Producer>,
    alive: Alive,
    stop: Arc<AtomicBool>,
    asked: Arc<AtomicU64>,
    tasks: Vec<JoinHandle<()>>,
    gateways: Vec<JoinHandle<Vec<Status>>>,
}

impl Traffic {
    fn start(cluster: &Cluster) -> Self {
        let size = cluster.nodes.len();
        let (alive, stop, asked) = (Alive::new(size), Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let producers: Vec<Producer> = (0..size).map(Producer::new).collect();
        let (mut tasks, mut gateways) = (Vec::new(), Vec::new());
        for (i, node) in cluster.nodes.iter().enumerate() {
            alive.set(i, false);
            tasks.push(tokio::spawn(producers[i].clone().run(node.client(), i, alive.clone(), stop.clone())));
            let (alive, stop, asked) = (alive.clone(), stop.clone(), asked.clone());
            gateways.push(tokio::spawn(gateway(node.client(), i, alive, stop, asked, Latencies::default())));
        }
        Self { producers, alive, stop, asked, tasks, gateways }
    }

    async fn flows(&self, nodes: &[usize], calls: u64, cluster: &Cluster) {
        for node in nodes {
            self.producers[*node].flows(calls, cluster).await;
        }
    }

    /// Ends it, and holds the nodes that run to all that was acknowledged.
    async fn finish(self, cluster: &mut Cluster) -> (usize, u64) {
        self.stop.store(true, Ordering::SeqCst);
        for task in self.tasks {
            task.await.unwrap();
        }
        for (i, gateway) in self.gateways.into_iter().enumerate() {
            let failures = gateway.await.unwrap();
            assert!(failures.is_empty(), "lookups failed on n{i} while it was up: {failures:?}\n{}", cluster.logs());
        }
        cluster.assert_digests_equal().await;
        let mut chains = 0;
        for producer in &self.producers {
            chains += producer.assert_holds(cluster).await;
            let failures = producer.failures.lock().unwrap().clone();
            assert!(failures.is_empty(), "producers may see UNAVAILABLE alone: {failures:?}\n{}", cluster.logs());
        }
        cluster.assert_no_panic();
        (chains, self.asked.load(Ordering::SeqCst))
    }
}

/// Lets n`i` in by way of node `by` and waits until it votes.
async fn grow(cluster: &mut Cluster, i: usize, by: usize) {
    let name = format!("n{i}");
    cluster.nodes[i].flags.push("--bootstrap=never".into());
    cluster.nodes[i].start();
    let hint = format!("prefixd ctl member add {name}");
    cluster.wait_for(i, "what to run", |s| !s.ready && s.unready_reason.contains(&hint)).await;
    let (said, at) = (addr(cluster, i), addr(cluster, by));
    let added = prefixd(&["ctl", "--admin", &at, "member", "add", &name, &said]).await;
    assert!(added.is_ok && added.out.contains("is a learner now"), "{}{}\n{}", added.out, added.err, cluster.logs());
    is_voter(cluster, i).await;
}

/// Takes n`i` out by way of node `by`; it says so itself, and is stopped.
async fn shrink(cluster: &mut Cluster, traffic: &Traffic, i: usize, by: usize) {
    traffic.alive.set(i, false);
    let said = obeyed(cluster, by, &["member", "remove", &format!("n{i}")]).await;
    assert!(said.contains("is no member any more"), "{said}");
    is_out(cluster, i).await;
    assert!(cluster.nodes[i].stop().await.success(), "{}", cluster.logs());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_node_grows_to_three_and_five_and_shrinks_again_under_load() {
    let began = Instant::now();
    let lists: Vec<Vec<u32>> = (0..5).map(|i| (0..=i).collect()).collect();
    let mut cluster = Cluster::with_lists(&lists, &FLAGS);
    cluster.nodes[0].start();
    cluster.settle().await;
    let traffic = Traffic::start(&cluster);
    traffic.alive.set(0, true);
    traffic.flows(&[0], 50, &cluster).await;
    refused(&cluster, 0, &["member", "remove", "n0"], &["n0 is the last voter"]).await;
    refused(&cluster, 0, &["member", "remove", "n7"], &["NotFound", "\"n7\" is no member", "member list"]).await;
    let nobody = addr(&cluster, 1);
    refused(&cluster, 0, &["member", "add", "n1", &nobody], &["no node answers at", "prefixd serve --node-name=n1"])
        .await;
    for i in 1..5 {
        // The nodes that are in already take turns at being asked.
        grow(&mut cluster, i, i / 2).await;
        traffic.alive.set(i, true);
        traffic.flows(&(0..=i).collect::<Vec<_>>(), 10, &cluster).await;
        if i % 2 == 0 {
            let index = cluster.assert_digests_equal().await;
            println!("{} nodes at log index {index}, {:.1} s", i + 1, began.elapsed().as_secs_f64());
        }
    }
    let table = obeyed(&cluster, 4, &["member", "list"]).await;
    assert_eq!(table.lines().count(), 6, "{table}");
    assert!(table.contains("leader") && table.matches("voter").count() == 4 && !table.contains("never"), "{table}");
    let json: serde_json::Value =
        serde_json::from_str(&obeyed(&cluster, 3, &["--json", "member", "list"]).await).unwrap();
    assert_eq!((&json["from_leader"], json["members"].as_array().unwrap().len()), (&true.into(), 5));
    refused(&cluster, 0, &["member", "add", "n1", &addr(&cluster, 2)], &["was started as n2, not as n1"]).await;
    let said = obeyed(&cluster, 2, &["member", "promote", "n1"]).await;
    assert!(said.contains("n1 is a voter already"), "{said}");

    // The leader is the first to go, whoever it is: it hands over on the way.
    let mut left: Vec<usize> = (0..5).collect();
    while left.len() > 1 {
        let leader = cluster.leader().await;
        let gone = if left.len() % 2 == 1 { leader } else { *left.iter().find(|i| **i != leader).unwrap() };
        left.retain(|i| *i != gone);
        shrink(&mut cluster, &traffic, gone, left[left.len() / 2]).await;
        traffic.flows(&left, 10, &cluster).await;
        let statuses = cluster.settle().await;
        assert!(statuses.iter().all(|s| names(s, true).len() == left.len()), "{statuses:?}");
        if left.len() % 2 == 1 {
            let index = cluster.assert_digests_equal().await;
            println!("{} nodes at log index {index}, {:.1} s", left.len(), began.elapsed().as_secs_f64());
        }
    }
    let (chains, lookups) = traffic.finish(&mut cluster).await;
    println!(
        "CHAOS members | 1 -> 3 -> 5 -> 3 -> 1 under load | {:.1} s | {chains} acknowledged chains held, {lookups} lookups, \
         none failed",
        began.elapsed().as_secs_f64()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_outlive_the_leader_that_makes_them() {
    let (seed, mut chances) = chances("members and a killed leader");
    let lists: Vec<Vec<u32>> = (0..4).map(|i| if i < 3 { (0..3).collect() } else { (0..4).collect() }).collect();
    let mut cluster = Cluster::with_lists(&lists, &FLAGS);
    cluster.nodes[3].flags.push("--bootstrap=never".into());
    cluster.nodes[..3].iter_mut().for_each(|node| node.start());
    cluster.settle().await;
    let traffic = Traffic::start(&cluster);
    (0..3).for_each(|i| traffic.alive.set(i, true));
    let n3 = addr(&cluster, 3);
    let total = rounds_of(2, 30);
    for round in 0..total {
        for order in [vec!["member", "add", "n3", &n3], vec!["member", "remove", "n3"]] {
            let adds = order[1] == "add";
            if adds {
                cluster.nodes[3].start();
                cluster.wait_for(3, "an answer", |s| !s.ready && s.cluster_id.is_empty()).await;
            }
            traffic.flows(&[0, 1, 2], 10, &cluster).await;
            let mut leader = led_by(&cluster).await;
            if leader == 3 {
                obeyed(&cluster, 0, &["transfer-leader", "--to", "n0"]).await;
                leader = led_by(&cluster).await;
            }
            let by = addr(&cluster, (leader + 1) % 3);
            let args: Vec<String> =
                ["ctl", "--admin", &by].into_iter().chain(order.iter().copied()).map(str::to_owned).collect();
            let running =
                tokio::spawn(async move { prefixd(&args.iter().map(String::as_str).collect::<Vec<_>>()).await });
            // Somewhere between the order's arrival and the commit of its second half: chance decides.
            tokio::time::sleep(Duration::from_millis(chances.random_range(0..400))).await;
            traffic.alive.set(leader, false);
            cluster.nodes[leader].kill();
            let said = running.await.unwrap();
            assert!(said.is_ok || !said.err.is_empty());
            // Whatever became of it, the order can be given again, and is obeyed without the dead node.
            let until = Instant::now() + PATIENCE;
            loop {
                let again = ctl(&cluster, (leader + 1) % 3, &order).await;
                let is_done = again.is_ok || (!adds && again.err.contains("is no member"));
                if is_done {
                    break;
                }
                assert!(Instant::now() < until, "round {round}: {order:?}: {}\n{}", again.err, cluster.logs());
            }
            cluster.nodes[leader].start();
            if adds {
                is_voter(&mut cluster, 3).await;
            } else {
                is_out(&mut cluster, 3).await;
                cluster.nodes[3].kill();
                cluster.nodes[3].empty_disk();
            }
            let statuses = cluster.settle().await;
            let expected = if adds { 4 } else { 3 };
            for status in &statuses {
                let unique: BTreeSet<&str> = names(status, false).into_iter().collect();
                assert_eq!((unique.len(), names(status, true).len()), (expected, expected), "{status:?}");
            }
            traffic.alive.set(leader, true);
            traffic.flows(&[0, 1, 2], 5, &cluster).await;
        }
    }
    let (chains, _) = traffic.finish(&mut cluster).await;
    println!(
        "CHAOS members | leader killed while a member is added and removed | {total} rounds, seed {seed} | {chains} chains held"
    );
}

/// The number of the node that leads, by any node's word.
pub async fn led_by(cluster: &Cluster) -> usize {
    let began = Instant::now();
    loop {
        for (i, node) in cluster.nodes.iter().enumerate().filter(|(_, node)| node.runs()) {
            if node.status().await.is_some_and(|status| status.role == "leader") {
                return i;
            }
        }
        assert!(began.elapsed() < PATIENCE, "nobody leads\n{}", cluster.logs());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_taken_out_while_coming_in_stays_out() {
    let mut cluster = Cluster::new(4, &["--max-lag=20"]);
    // The members' --peers lack it: it comes in by an order alone.
    let all = cluster.nodes[0].peers.clone();
    cluster.nodes[..3].iter_mut().for_each(|node| node.peers = all[..3].to_vec());
    cluster.nodes[3].flags.push("--bootstrap=never".into());
    cluster.nodes[..3].iter_mut().for_each(|node| node.start());
    cluster.settle().await;
    let n3 = addr(&cluster, 3);
    for round in 0..rounds_of(2, 20) {
        cluster.nodes[3].start();
        cluster.wait_for(3, "an answer", |s| !s.ready && s.cluster_id.is_empty()).await;
        obeyed(&cluster, 1, &["member", "add", "n3", &n3]).await;
        if round % 2 == 0 {
            cluster.wait_for(3, "a disk of the cluster", |s| !s.cluster_id.is_empty()).await;
        }
        obeyed(&cluster, 2, &["member", "remove", "n3"]).await;
        // It may not even have noticed that it was let in.
        let waits = |s: &StatusResponse| !s.ready && s.unready_reason.contains("prefixd ctl member add n3");
        cluster.wait_for(3, "outside", waits).await;
        let list = obeyed(&cluster, 0, &["member", "list"]).await;
        assert!(!list.contains("n3"), "{list}");
        // A start later it still is, and an operator may have it back with its disk.
        cluster.nodes[3].kill();
        cluster.nodes[3].start();
        cluster.wait_for(3, "outside", waits).await;
        obeyed(&cluster, 1, &["member", "add", "n3", &n3]).await;
        let until = Instant::now() + PATIENCE;
        loop {
            let said = ctl(&cluster, 0, &["member", "promote", "n3"]).await;
            if said.is_ok {
                break;
            }
            assert!(said.err.contains("behind") || said.err.contains("does not answer"), "{}", said.err);
            assert!(Instant::now() < until, "{}\n{}", said.err, cluster.logs());
        }
        is_voter(&mut cluster, 3).await;
        obeyed(&cluster, 0, &["member", "remove", "n3"]).await;
        cluster.nodes[3].kill();
        cluster.nodes[3].empty_disk();
    }
    cluster.settle().await;
    cluster.assert_digests_equal().await;
    cluster.assert_no_panic();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_goes_where_it_is_sent_and_a_stop_hands_it_over() {
    let mut cluster = Cluster::new(3, &[]);
    cluster.start_all();
    let leader = cluster.leader().await;
    let (next, other) = ((leader + 1) % 3, (leader + 2) % 3);
    let to = format!("n{next}");
    let until = Instant::now() + PATIENCE;
    loop {
        let said = obeyed(&cluster, other, &["transfer-leader", "--to", &to]).await;
        assert!(said.starts_with(&to) && said.contains("leads"), "{said}");
        let again = ctl(&cluster, leader, &["transfer-leader", "--to", &to]).await;
        if cluster.leader().await == next && again.is_ok && again.out.contains("leads already") {
            break;
        }
        // An election came between.
        assert!(Instant::now() < until, "{}\n{}", again.err, cluster.logs());
    }
    refused(&cluster, leader, &["transfer-leader", "--to", "n9"], &["NotFound"]).await;
    // A machine that stalls may give leadership back, or to somebody in between: what was ordered is ordered again.
    let until = Instant::now() + PATIENCE;
    let led = loop {
        let from = cluster.leader().await;
        obeyed(&cluster, other, &["transfer-leader"]).await;
        let led = cluster.leader().await;
        if led != from && led != other {
            break led;
        }
        assert!(Instant::now() < until, "leadership stays or goes to n{other}\n{}", cluster.logs());
    };
    cluster.nodes[other].kill();
    // Two of three: neither may go, and the dead one can't lead.
    let living = led;
    let victim = (0..3).find(|i| *i != other && *i != living).unwrap();
    let dead = format!("n{other}");
    let until = Instant::now() + PATIENCE;
    loop {
        let said = ctl(&cluster, living, &["member", "remove", &format!("n{victim}")]).await;
        assert!(!said.is_ok, "{}", said.out);
        if said.err.contains(&format!("{dead} is silent: the cluster would lose its quorum. Start {dead} first")) {
            break;
        }
        assert!(Instant::now() < until, "{}", said.err);
    }
    let until = Instant::now() + PATIENCE;
    loop {
        let said = ctl(&cluster, living, &["transfer-leader", "--to", &dead]).await;
        assert!(!said.is_ok, "{}", said.out);
        if said.err.contains("does not answer the leader") {
            break;
        }
        assert!(Instant::now() < until, "{}", said.err);
    }
    // A stop hands leadership over, and one election is enough for that. On a machine that is starved there may be more, so
    // it is looked for in a few.
    let mut seen = Vec::new();
    while seen.len() < 5 {
        cluster.start_all();
        let leader = cluster.leader().await;
        let term = cluster.nodes[leader].status().await.unwrap().term;
        let handed = |cluster: &Cluster| cluster.nodes[leader].log().matches("leadership was handed over").count();
        let (before, began) = (handed(&cluster), Instant::now());
        assert!(cluster.nodes[leader].stop().await.success());
        let took = began.elapsed();
        let was_handed_over = handed(&cluster) > before;
        let now = cluster.leader().await;
        let elections = cluster.nodes[now].status().await.unwrap().term - term;
        seen.push((was_handed_over, elections));
        if was_handed_over && elections == 1 {
            println!("an orderly stop of the leader took {:.2} s", took.as_secs_f64());
            break;
        }
    }
    assert!(seen.contains(&(true, 1)), "handed over, elections: {seen:?}\n{}", cluster.logs());
    cluster.assert_no_panic();
}
