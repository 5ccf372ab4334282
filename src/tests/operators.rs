//! What commands say and exit with when there is nothing to be had: the command line is at fault, or the cluster.

use super::*;
use crate::cli::{Cli, Command, run};
use clap::Parser;
use std::io::Write;
use std::process::ExitCode;

fn parsed(line: &[&str]) -> Result<Command, clap::Error> {
    Cli::try_parse_from([&["prefixd"], line].concat()).map(|cli| cli.command)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_none_is_a_wrong_use_and_a_node_out_of_reach_is_not() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let ask = ["--tenant", "t", "--model", "m", "--blocks", "0a", "--timeout-ms", "300", "--server", &nobody];
    let report = [&["report", "--replica", "r"], &ask[..]].concat();
    let lookup = [&["lookup"], &ask[..]].concat();
    let bench = vec!["bench", "lookup", "--timeout-ms", "300", "--server", &nobody];
    let ctl = vec!["ctl", "--admin", &nobody, "status"];
    for line in [ctl, report, lookup, bench] {
        let missing = [&line[..], &["--tls-ca", "/no/such/file.pem"]].concat();
        for (line, code) in [(missing, 2), (line, 1)] {
            let exited = run(parsed(&line).unwrap()).await;
            assert_eq!(format!("{exited:?}"), format!("{:?}", ExitCode::from(code)), "{line:?}");
        }
    }
}

#[test]
fn a_backup_goes_into_a_file() {
    let refused = parsed(&["ctl", "backup", "-"]).unwrap_err();
    assert!(refused.exit_code() == 2 && refused.to_string().contains("a backup is written to a file"), "{refused}");
    assert!(parsed(&["ctl", "backup", "./-"]).is_ok());
}

#[tokio::test]
async fn an_order_that_nobody_can_carry_out_is_answered_before_its_deadline() {
    let far = ("peers", "prefixd=127.0.0.1:1,other=127.0.0.1:2");
    let server = Server::unready(&[far, ("node_name", "prefixd")]).await;
    let node = server.bound.node.to_string();
    let mut file = tempfile::Builder::new().suffix(".json").tempfile().unwrap();
    file.write_all(br#"{"version":7,"policies":[]}"#).unwrap();
    let set = ["policy", "set", file.path().to_str().unwrap()];
    for order in [&["transfer-leader"][..], &["member", "remove", "n9"], &["sweep"], &set] {
        let Command::Ctl(args) = parsed(&[&["ctl", "--admin", &node, "--timeout", "2"], order].concat()).unwrap()
        else {
            panic!("it is ctl")
        };
        let told = crate::ctl::ask(&args).await.unwrap_err().to_string();
        assert!(told.contains("belongs to no cluster yet") && !told.contains("--timeout"), "{order:?}: {told}");
    }
    server.stop().await;
}
