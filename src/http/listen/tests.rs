//! Real sockets, on a port of the system's choice, against routes that answer large or late.

use super::*;
use crate::http::rounds::Rounds;
use axum::http::StatusCode;
use axum::routing::get;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Semaphore;

/// Longest wait for what should come soon.
const PATIENCE: Duration = Duration::from_secs(20);
/// A time limit that doesn't end within a test.
const NEVER: Duration = Duration::from_secs(3_600);
/// More than a socket takes in for a peer that doesn't read.
const LARGE_BYTES: usize = 32 << 20;

struct Port {
    addr: SocketAddr,
    room: Room,
    /// What /late waits for.
    go_on: Arc<Semaphore>,
    _closing: tokio_util::sync::DropGuard,
}

impl Port {
    fn open(connections: usize, timeout: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let (room, closing, go_on) =
            (Room::for_newcomers(connections), CancellationToken::new(), Arc::new(Semaphore::new(0)));
        let late = go_on.clone();
        let late = move || async move { late.acquire().await.map(|_| "late\n").map_err(|_| StatusCode::GONE) };
        let routes = Router::new()
            .route("/healthz", get(async || "ok\n"))
            .route("/large", get(async || "x".repeat(LARGE_BYTES)))
            .route("/late", get(late));
        let limits = HttpLimits { room: room.clone(), timeout };
        tokio::spawn(serve(listener, None, routes, limits, closing.clone()));
        Self { addr, room, go_on, _closing: closing.drop_guard() }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.addr).await.unwrap()
    }

    /// One who asks and never reads the answer.
    async fn stalled(&self) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4 << 10).unwrap();
        let mut stream = socket.connect(self.addr).await.unwrap();
        ask(&mut stream, "/large").await;
        stream
    }

    async fn until(&self, what: &str, condition: impl Fn(&Room) -> bool) {
        let end = tokio::time::Instant::now() + PATIENCE;
        while !condition(&self.room) {
            assert!(tokio::time::Instant::now() < end, "not within {PATIENCE:?}: {what}: {:?}", self.room);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn ask(stream: &mut TcpStream, path: &str) {
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).await.unwrap();
}

/// Reads until the answer ends with this, or the connection with what was read so far.
async fn read_until(stream: &mut TcpStream, end: &str) -> Result<(), usize> {
    let mut read = Vec::new();
    let reading = async {
        while !read.ends_with(end.as_bytes()) {
            match stream.read_buf(&mut read).await {
                Ok(0) | Err(_) => return Err(read.len()),
                Ok(_) => {}
            }
        }
        Ok(())
    };
    tokio::time::timeout(PATIENCE, reading).await.expect("neither an answer nor an end in time")
}

async fn is_closed(stream: &mut TcpStream) -> bool {
    read_until(stream, "never said").await.is_err()
}

#[tokio::test]
async fn who_takes_nothing_of_its_answer_loses_its_connection_and_a_slow_one_does_not() {
    let port = Port::open(8, Duration::from_secs(1));
    let mut stalled = port.stalled().await;
    let mut slow = port.connect().await;
    ask(&mut slow, "/large").await;
    let mut taken = 0;
    let mut piece = vec![0; 256 << 10];
    // Reads a piece at a time until the other one is gone.
    let reading = async {
        while port.room.open() == 2 || taken < piece.len() {
            taken += slow.read(&mut piece).await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, reading).await.expect("the one who stalls is closed");
    while taken < LARGE_BYTES {
        let more = slow.read(&mut piece).await.unwrap();
        assert!(more > 0, "the slow one was closed after {taken} bytes");
        taken += more;
    }
    let got = read_until(&mut stalled, "never said").await.unwrap_err();
    assert!(got < LARGE_BYTES, "{got}");
}

#[tokio::test]
async fn at_the_limit_the_silent_and_the_stalled_make_room() {
    let port = Port::open(4, NEVER);
    let mut silent = port.connect().await;
    let mut dawdling = port.connect().await;
    dawdling.write_all(b"GET /healthz HT").await.unwrap();
    let (mut stalled, mut kept) = (port.stalled().await, port.connect().await);
    ask(&mut kept, "/healthz").await;
    read_until(&mut kept, "ok\n").await.unwrap();
    port.until("all places are taken", |room| room.open() == 4).await;
    let mut probes = Vec::new();
    for displaced in 1..=3 {
        let mut probe = port.connect().await;
        ask(&mut probe, "/healthz").await;
        read_until(&mut probe, "ok\n").await.unwrap();
        port.until("one left for it", |room| room.closed() == displaced).await;
        probes.push(probe);
    }
    assert!(is_closed(&mut silent).await && is_closed(&mut dawdling).await && is_closed(&mut stalled).await);
    ask(&mut kept, "/healthz").await;
    read_until(&mut kept, "ok\n").await.expect("it came last, and goes on");
    let mut again = port.connect().await;
    ask(&mut again, "/healthz").await;
    read_until(&mut again, "ok\n").await.unwrap();
    assert!(is_closed(&mut kept).await, "now it has been there longest");
    let mut kept = port.connect().await;
    for _ in 0..3 {
        ask(&mut kept, "/healthz").await;
        read_until(&mut kept, "ok\n").await.expect("a client goes on after it connected anew");
    }
}

#[tokio::test]
async fn one_who_waits_for_an_answer_is_not_the_first_to_leave() {
    let port = Port::open(4, NEVER);
    let mut waits = port.connect().await;
    ask(&mut waits, "/late").await;
    let mut others = Vec::new();
    for _ in 0..8 {
        let mut other = port.connect().await;
        ask(&mut other, "/healthz").await;
        read_until(&mut other, "ok\n").await.unwrap();
        others.push(other);
    }
    assert_eq!(port.room.closed(), 5);
    port.go_on.add_permits(1);
    read_until(&mut waits, "late\n").await.unwrap();
}

#[tokio::test]
async fn a_hundred_who_connect_ask_and_leave_make_one_after_another() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
    let (tell, go_on) = std::sync::mpsc::channel::<()>();
    let go_on = Arc::new(std::sync::Mutex::new(go_on));
    let (rounds, asked) = (Rounds::<&str>::new(), Arc::new(AtomicUsize::new(0)));
    let counted = asked.clone();
    let scan = move || {
        let (rounds, begun, go_on) = (rounds.clone(), begun.clone(), go_on.clone());
        counted.fetch_add(1, SeqCst);
        async move {
            let scan = move || {
                begun.send(()).unwrap();
                // Whoever scans at the same time finds it locked.
                go_on.try_lock().expect("two scans at once").recv_timeout(PATIENCE).unwrap();
                "scanned\n"
            };
            rounds.join(scan).await.unwrap()
        }
    };
    let room = Room::for_newcomers(200);
    let limits = HttpLimits { room: room.clone(), timeout: NEVER };
    tokio::spawn(serve(listener, None, Router::new().route("/scan", get(scan)), limits, CancellationToken::new()));
    let port = Port { addr, room, ..Port::open(1, NEVER) };
    for n in 1..=100 {
        let mut leaves = port.connect().await;
        ask(&mut leaves, "/scan").await;
        port.until("it asked", |_| asked.load(SeqCst) == n).await;
    }
    begins.recv().await.unwrap();
    port.until("all have left", |room| room.open() == 0).await;
    let mut last = port.connect().await;
    ask(&mut last, "/scan").await;
    port.until("the last one asked", |_| asked.load(SeqCst) == 101).await;
    assert!(begins.try_recv().is_err(), "the first scan still goes on");
    tell.send(()).unwrap();
    tell.send(()).unwrap();
    read_until(&mut last, "scanned\n").await.unwrap();
    begins.recv().await.unwrap();
    assert!(begins.try_recv().is_err(), "nothing was scanned for those who left");
}
