//! A network of our own between nodes: each directed pair of nodes has a way with a delay, losses, a rate and a cut of
//! its own, all changeable at run time. Nodes reach each other through it because their `--peers` say so. It carries
//! bytes and knows nothing of what they mean.
//!
//! A connection from i to j is two ways: what i says goes the way (i, j), what j answers goes (j, i). A way that is cut
//! holds bytes, as a network holds them back by sending them again, and delivers them when it heals; nobody connects
//! over a pair of which either way is cut.

use crate::network::Network;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// Bytes that are read at once.
const CHUNK_BYTES: usize = 16 << 10;
/// Chunks that may be on their way in one direction of one connection.
const CHUNKS_UNDER_WAY: usize = 64;
/// How long a lost packet takes to be sent again.
const RESEND: Duration = Duration::from_millis(250);

/// How a way treats what it carries.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct Way {
    /// Holds everything until it heals.
    pub is_cut: bool,
    pub delay: Duration,
    /// Chance of a chunk to be lost, and so to come late, with all behind it.
    pub loss: f64,
    /// Chance of a chunk to end its connection.
    pub reset: f64,
    /// Bytes a second; 0 is no limit.
    pub rate: u64,
}

/// One direction between two nodes, and what it did.
struct Road {
    way: watch::Sender<Way>,
    carried_bytes: AtomicU64,
    /// Chunks that were held by a cut, came late by a loss, or took their connection with them.
    faults: AtomicU64,
}

struct Shared {
    size: usize,
    roads: Vec<Road>,
    targets: Vec<Mutex<String>>,
    seed: AtomicU64,
}

/// The network of one cluster. It runs on a thread of its own, and ends with its value.
pub struct Proxy {
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
}

/// Where node `from` finds node `to` through the proxy.
pub fn link_addr(from_host: &str, to: usize) -> String {
    format!("{from_host}:{}", 9100 + to)
}

impl Proxy {
    /// Links between all nodes at these hosts.
    pub fn new(hosts: &[String], seed: u64) -> Self {
        let size = hosts.len();
        let road = || Road { way: watch::Sender::default(), carried_bytes: 0.into(), faults: 0.into() };
        let shared = Arc::new(Shared {
            size,
            roads: (0..size * size).map(|_| road()).collect(),
            targets: hosts.iter().map(|host| Mutex::new(format!("{host}:9091"))).collect(),
            seed: seed.into(),
        });
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        for (from, host) in hosts.iter().enumerate() {
            for to in (0..size).filter(|to| *to != from) {
                let addr: SocketAddr = link_addr(host, to).parse().unwrap();
                let listener = std::net::TcpListener::bind(addr).unwrap();
                listener.set_nonblocking(true).unwrap();
                runtime.spawn(accept(shared.clone(), listener, from, to));
            }
        }
        Self { shared, runtime: Some(runtime) }
    }

    fn road(&self, from: usize, to: usize) -> &Road {
        self.shared.road(from, to)
    }

    /// Changes one way.
    pub fn set(&self, from: usize, to: usize, change: impl Fn(&mut Way)) {
        self.road(from, to).way.send_modify(change);
    }

    /// Changes all ways.
    pub fn set_all(&self, change: impl Fn(&mut Way)) {
        self.shared.roads.iter().for_each(|road| road.way.send_modify(&change));
    }

    /// Bytes carried so far from one node to another.
    pub fn carried_from(&self, from: usize, to: usize) -> u64 {
        self.road(from, to).carried_bytes.load(Ordering::SeqCst)
    }
}

impl Network for Proxy {
    fn size(&self) -> usize {
        self.shared.size
    }

    fn cut(&self, from: usize, to: usize) {
        self.set(from, to, |way| way.is_cut = true);
    }

    fn heal(&self) {
        self.set_all(|way| *way = Way::default());
    }

    fn carried_bytes(&self) -> u64 {
        self.shared.roads.iter().map(|road| road.carried_bytes.load(Ordering::SeqCst)).sum()
    }

    fn faults(&self) -> u64 {
        self.shared.roads.iter().map(|road| road.faults.load(Ordering::SeqCst)).sum()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Tests drop it within a runtime, where a blocking end is not allowed.
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

impl Shared {
    fn road(&self, from: usize, to: usize) -> &Road {
        &self.roads[from * self.size + to]
    }
}

impl Road {
    /// Waits until the way is open.
    async fn opens(&self) {
        let mut seen = self.way.subscribe();
        if seen.borrow_and_update().is_cut {
            self.faults.fetch_add(1, Ordering::SeqCst);
            let _open = seen.wait_for(|way| !way.is_cut).await.is_ok();
        }
    }
}

async fn accept(shared: Arc<Shared>, listener: std::net::TcpListener, from: usize, to: usize) {
    let listener = TcpListener::from_std(listener).unwrap();
    loop {
        let Ok((near, _)) = listener.accept().await else { continue };
        tokio::spawn(connect(shared.clone(), near, from, to));
    }
}

async fn connect(shared: Arc<Shared>, near: TcpStream, from: usize, to: usize) {
    // Both ways carry a handshake.
    for (one, other) in [(from, to), (to, from)] {
        shared.road(one, other).opens().await;
    }
    let target = shared.targets[to].lock().unwrap().clone();
    let Ok(Ok(far)) = tokio::time::timeout(Duration::from_secs(2), TcpStream::connect(target)).await else { return };
    for stream in [&near, &far] {
        if stream.set_nodelay(true).is_err() {
            return;
        }
    }
    let ((near_read, near_write), (far_read, far_write)) = (near.into_split(), far.into_split());
    // Whichever ends first ends both: a node that died has no half-open connections.
    tokio::select! {
        () = pump(&shared, near_read, far_write, from, to) => {}
        () = pump(&shared, far_read, near_write, to, from) => {}
    }
}

/// Carries one direction until either end closes, or the way ends the connection.
async fn pump(shared: &Shared, mut read: OwnedReadHalf, mut write: OwnedWriteHalf, from: usize, to: usize) {
    let road = shared.road(from, to);
    let mut chances = StdRng::seed_from_u64(shared.seed.fetch_add(1, Ordering::SeqCst));
    let (send, mut receive) = mpsc::channel::<(Instant, Vec<u8>)>(CHUNKS_UNDER_WAY);
    let taking = async move {
        let mut last = Instant::now();
        loop {
            let mut chunk = vec![0; CHUNK_BYTES];
            let Ok(taken @ 1..) = read.read(&mut chunk).await else { return };
            chunk.truncate(taken);
            let way = *road.way.borrow();
            let lost = way.loss > 0.0 && chances.random_bool(way.loss);
            if way.reset > 0.0 && chances.random_bool(way.reset) {
                road.faults.fetch_add(1, Ordering::SeqCst);
                return;
            }
            road.faults.fetch_add(u64::from(lost), Ordering::SeqCst);
            last = last.max(Instant::now() + way.delay + if lost { RESEND } else { Duration::ZERO });
            if send.send((last, chunk)).await.is_err() {
                return;
            }
        }
    };
    let giving = async {
        while let Some((due, chunk)) = receive.recv().await {
            tokio::time::sleep_until(due).await;
            road.opens().await;
            let rate = road.way.borrow().rate;
            if rate > 0 {
                tokio::time::sleep(Duration::from_secs_f64(chunk.len() as f64 / rate as f64)).await;
            }
            if write.write_all(&chunk).await.is_err() {
                return;
            }
            road.carried_bytes.fetch_add(chunk.len() as u64, Ordering::SeqCst);
        }
    };
    tokio::join!(taking, giving);
}

/// A server that answers every byte with itself.
#[cfg(test)]
async fn echo(addr: String) {
    let listener = TcpListener::bind(addr).await.unwrap();
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        tokio::spawn(async move {
            let (mut read, mut write) = stream.split();
            let _ended = tokio::io::copy(&mut read, &mut write).await;
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ways_are_cut_and_delayed_each_for_itself() {
    let place = crate::cluster::Place::take();
    let hosts = [place.host(0), place.host(1)];
    tokio::spawn(echo(format!("{}:9091", hosts[1])));
    let proxy = Proxy::new(&hosts, 1);
    let mut byte = [0];
    let mut stream = loop {
        // The server may not listen yet.
        let mut stream = TcpStream::connect(link_addr(&hosts[0], 1)).await.unwrap();
        let sent = stream.write_all(b"a").await.is_ok();
        if sent && stream.read_exact(&mut byte).await.is_ok() {
            break stream;
        }
    };
    proxy.set(0, 1, |way| way.delay = Duration::from_millis(80));
    let began = Instant::now();
    stream.write_all(b"b").await.unwrap();
    stream.read_exact(&mut byte).await.unwrap();
    assert!(began.elapsed() >= Duration::from_millis(80) && byte == *b"b");
    proxy.heal();
    let (there, back) = (proxy.carried_from(0, 1), proxy.carried_from(1, 0));
    proxy.cut(1, 0);
    stream.write_all(b"c").await.unwrap();
    assert!(tokio::time::timeout(Duration::from_millis(200), stream.read_exact(&mut byte)).await.is_err());
    assert_eq!((proxy.carried_from(0, 1), proxy.carried_from(1, 0)), (there + 1, back), "only the answer was held");
    let mut new = TcpStream::connect(link_addr(&hosts[0], 1)).await.unwrap();
    new.write_all(b"d").await.unwrap();
    assert!(tokio::time::timeout(Duration::from_millis(200), new.read_exact(&mut byte)).await.is_err());
    proxy.heal();
    stream.read_exact(&mut byte).await.unwrap();
    assert_eq!(byte, *b"c");
    new.read_exact(&mut byte).await.unwrap();
    assert!(byte == *b"d" && proxy.faults() > 0);
}
