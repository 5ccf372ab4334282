//! Calls that end at another port than they were meant for: each is told so, by whichever command made it.

use super::*;
use crate::cli::{Cli, Command};
use clap::Parser;
use prefixd_client::{Client, Config};

/// What `prefixd ctl` says when it is sent to this port.
async fn told_by_ctl(addr: SocketAddr, what: &[&str]) -> String {
    let admin = addr.to_string();
    let cli = Cli::try_parse_from([&["prefixd", "ctl", "--admin", &admin], what].concat()).unwrap();
    let Command::Ctl(args) = cli.command else { panic!("it is ctl") };
    crate::ctl::ask(&args).await.unwrap_err().to_string()
}

/// What a client says when it is sent to this port.
async fn told_by_client(addr: SocketAddr) -> String {
    let mut config = Config::new([addr.to_string()]);
    config.read_deadline = Duration::from_millis(500);
    Client::new(config).unwrap().lookup(lookup("p")).await.unwrap_err().to_string()
}

#[tokio::test]
async fn every_port_but_the_right_one_is_asked_after() {
    let server = Server::start().await;
    let Bound { grpc, http, internal, node, .. } = server.bound;
    for addr in [http, internal, node] {
        let told = told_by_client(addr).await;
        assert!(told.contains("is this the gRPC port (--grpc-addr, 9090 by default)"), "{addr}: {told}");
    }
    for addr in [http, internal, grpc] {
        for what in [&["status"][..], &["member", "list"], &["sweep"], &["policy", "get"], &["digest"]] {
            let told = told_by_ctl(addr, what).await;
            assert!(told.contains("is this the node port (--node-addr, 9091 by default)"), "{addr} {what:?}: {told}");
        }
    }
    let told = told_by_ctl(node, &["member", "add", "n9", &grpc.to_string()]).await;
    let start = format!("{node} answered FailedPrecondition: no node answers at {grpc}: it does not know this call");
    assert!(told.starts_with(&start) && told.contains("by default)? Start it with an empty disk"), "{told}");
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let told = told_by_ctl(node, &["member", "add", "n9", &nobody.to_string()]).await;
    let start =
        format!("no node answers at {nobody}: it can't be reached: Connection refused (os error 111). Start it");
    assert!(told.contains(&start) && !told.contains("tonic"), "{told}");
    assert_eq!(
        told_by_ctl(nobody, &["status"]).await,
        format!("--admin {nobody} can't be reached: Connection refused (os error 111)")
    );
    server.stop().await;
}

#[test]
fn what_can_be_no_name_and_no_address_is_not_even_asked_for() {
    for line in [
        &["--admin", "", "status"][..],
        &["--admin", "n0", "status"],
        &["--admin", "n0:0", "status"],
        &["member", "remove", ""],
        &["member", "remove", "n\n0"],
        &["member", "add", "n9", "n9"],
        &["member", "add", "n9", "n\t9:9091"],
        &["member", "promote", "n 9"],
        &["transfer-leader", "--to", ""],
    ] {
        assert!(Cli::try_parse_from([&["prefixd", "ctl"], line].concat()).is_err(), "{line:?}");
    }
}
