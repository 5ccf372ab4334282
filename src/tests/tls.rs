//! TLS on the gRPC port: who gets in, what strangers see, and certificates that change under load.

use super::certs::{Authority, Files, Issued};
use super::*;
use crate::watched::Source;
use prefixd_raft::tls::{ClientTls, connector};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What a client dials with that trusts `ca` and shows a certificate or none.
pub(super) fn dialling(files: &Files, ca: &str, own: Option<&Issued>) -> ClientTls {
    let source = |flag, path: String| Source { flag, path: PathBuf::from(path) };
    let ca = source("tls-ca", files.write("dial-ca.crt", ca));
    let own = own.map(|own| files.pair("dial", own));
    let own = own.map(|(cert, key)| (source("tls-cert", cert), source("tls-key", key)));
    let config = crate::tls::dialling(&ca, own.as_ref().map(|(cert, key)| (cert, key))).unwrap();
    Arc::new(move || config.clone())
}

/// Connects to an address with TLS; the error names what was wrong.
pub(super) async fn connect(addr: SocketAddr, name: Option<&str>, tls: ClientTls) -> Result<Channel, String> {
    let endpoint = Endpoint::from_shared(format!("http://{addr}")).unwrap().connect_timeout(PATIENCE);
    let connector = connector(addr.to_string(), name.map(str::to_owned), tls);
    endpoint.connect_with_connector(connector).await.map_err(|error| format!("{error:?}"))
}

async fn looks_up(channel: Channel) -> Result<String, String> {
    let answer = InferenceCacheClient::new(channel).lookup_route(lookup("p")).await;
    answer.map(|answer| answer.into_inner().reason_code).map_err(|status| status.to_string())
}

#[tokio::test]
async fn only_who_trusts_the_certificate_and_its_name_talks_to_the_port() {
    let (files, ca, other) = (Files::new(), Authority::new(), Authority::new());
    let (cert, key) = files.pair("grpc", &ca.issue(&["127.0.0.1", "prefixd.example"]));
    let server = Server::with(&[("tls_cert_file", &cert), ("tls_key_file", &key)]).await;
    assert_eq!(server.series("inferencecache_server_grpc_tls_enabled").await, Some(1.0));
    let ends = server.series("prefixd_tls_certificate_not_after_seconds{port=\"grpc\"}").await.unwrap();
    assert_eq!(ends, 64_060_588_800.0, "the year 4000");
    let trusting = dialling(&files, &ca.pem(), None);
    for name in [None, Some("prefixd.example")] {
        let channel = connect(server.bound.grpc, name, trusting.clone()).await.unwrap();
        looks_up(channel).await.unwrap();
    }
    let wrong_name = connect(server.bound.grpc, Some("elsewhere.example"), trusting).await.unwrap_err();
    assert!(wrong_name.contains("NotValidForName"), "{wrong_name}");
    let wrong_ca = connect(server.bound.grpc, None, dialling(&files, &other.pem(), None)).await.unwrap_err();
    // Both authorities have the same name, so it is the signature that tells them apart.
    assert!(wrong_ca.contains("BadSignature"), "{wrong_ca}");
    let in_clear = Endpoint::from_shared(format!("http://{}", server.bound.grpc)).unwrap().connect_lazy();
    assert!(looks_up(in_clear).await.is_err(), "nobody talks in clear");
    let failures = "prefixd_tls_handshake_failures_total{port=\"grpc\"}";
    eventually("strangers are counted", async || server.series(failures).await >= Some(3.0)).await;
    server.stop().await;
}

#[tokio::test]
async fn clients_need_certificates_where_a_ca_is_set_for_them() {
    let (files, ca, clients, other) = (Files::new(), Authority::new(), Authority::new(), Authority::new());
    let (cert, key) = files.pair("grpc", &ca.issue(&["127.0.0.1"]));
    let client_ca = files.write("clients.crt", &clients.pem());
    let flags = [("tls_cert_file", &*cert), ("tls_key_file", &key), ("tls_client_ca_file", &client_ca)];
    let server = Server::with(&flags).await;
    let good = clients.issue(&["gateway"]);
    let channel = connect(server.bound.grpc, None, dialling(&files, &ca.pem(), Some(&good))).await.unwrap();
    looks_up(channel).await.unwrap();
    for (what, own) in [
        ("none", None),
        ("expired", Some(clients.issue_until(&["gateway"], 2001))),
        ("of another CA", Some(other.issue(&["gateway"]))),
        ("of the server's CA", Some(ca.issue(&["gateway"]))),
    ] {
        let connected = connect(server.bound.grpc, None, dialling(&files, &ca.pem(), own.as_ref())).await;
        // In TLS 1.3 a client learns that it was refused when it first reads.
        let answer = match connected {
            Ok(channel) => looks_up(channel).await,
            Err(error) => Err(error),
        };
        assert!(answer.is_err(), "{what}: {answer:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn the_client_speaks_tls_and_sends_its_token() {
    let (files, ca, clients) = (Files::new(), Authority::new(), Authority::new());
    let (cert, key) = files.pair("grpc", &ca.issue(&["localhost", "127.0.0.1"]));
    let (client_ca, tokens) = (files.write("clients.crt", &clients.pem()), files.write("tenants", "secret t\n"));
    let server = Server::with(&[
        ("tls_cert_file", &*cert),
        ("tls_key_file", &key),
        ("tls_client_ca_file", &client_ca),
        ("tenant_token_file", &tokens),
    ])
    .await;
    let config = || {
        let mut config = prefixd_client::Config::new([format!("https://localhost:{}", server.bound.grpc.port())]);
        config.tls = Some(dialling(&files, &ca.pem(), Some(&clients.issue(&["gateway"])))());
        config.read_deadline = PATIENCE;
        config
    };
    let allowed = prefixd_client::Client::new(config().with_token("secret").unwrap()).unwrap();
    allowed.report(vec![update("p", 100)]).await.unwrap();
    assert_eq!(allowed.lookup(lookup("p")).await.unwrap().message.reason_code, "PREFIX_MATCH");
    let stranger = prefixd_client::Client::new(config()).unwrap();
    let refused = stranger.lookup(lookup("p")).await.unwrap_err();
    assert!(!refused.is_transient() && refused.to_string().contains("Unauthenticated"), "{refused}");
    server.stop().await;
}

#[tokio::test]
async fn certificates_rotate_under_load_without_a_failed_call() {
    let (files, old, new) = (Files::new(), Authority::new(), Authority::new());
    let (cert, key) = files.pair("grpc", &old.issue(&["127.0.0.1"]));
    let flags = [("tls_cert_file", &*cert), ("tls_key_file", &key), ("reload_interval", "20ms")];
    let server = Server::with(&flags).await;
    let both = dialling(&files, &format!("{}{}", old.pem(), new.pem()), None);
    let (stop, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let load: Vec<_> = (0..4)
        .map(|_| {
            let (addr, both, stop, calls) = (server.bound.grpc, both.clone(), stop.clone(), calls.clone());
            tokio::spawn(async move {
                let mut kept = connect(addr, None, both.clone()).await.unwrap();
                while !stop.load(Ordering::Relaxed) {
                    looks_up(kept.clone()).await.unwrap();
                    let fresh = connect(addr, None, both.clone()).await.unwrap();
                    looks_up(fresh.clone()).await.unwrap();
                    kept = if calls.fetch_add(1, Ordering::Relaxed).is_multiple_of(8) { fresh } else { kept };
                }
            })
        })
        .collect();
    let only_new = dialling(&Files::new(), &new.pem(), None);
    assert!(connect(server.bound.grpc, None, only_new.clone()).await.is_err());
    // The key changes before the certificate does: for a moment they don't fit, and the old ones stay in force.
    let next = new.issue(&["127.0.0.1"]);
    files.write("grpc.key", &next.key);
    let refused = "prefixd_file_reloads_total{file=\"tls-cert-file\",result=\"error\"}";
    eventually("the half change is refused", async || server.series(refused).await == Some(1.0)).await;
    assert!(connect(server.bound.grpc, None, only_new.clone()).await.is_err());
    files.write("grpc.crt", &next.cert);
    eventually("the new certificate is shown", async || {
        connect(server.bound.grpc, None, only_new.clone()).await.is_ok()
    })
    .await;
    files.write("grpc.crt", &new.issue_until(&["127.0.0.1"], 2001).cert);
    eventually("an expired one is refused", async || server.series(refused).await >= Some(2.0)).await;
    let before = calls.load(Ordering::Relaxed);
    eventually("the load goes on", async || calls.load(Ordering::Relaxed) > before + 8).await;
    stop.store(true, Ordering::Relaxed);
    for one in load {
        one.await.expect("no call failed");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_file_that_is_no_certificate_is_refused_by_its_flag_at_start() {
    let (files, ca) = (Files::new(), Authority::new());
    let (cert, key) = files.pair("grpc", &ca.issue(&["127.0.0.1"]));
    let (_, other_key) = files.pair("other", &ca.issue(&["127.0.0.1"]));
    let expired = files.pair("expired", &ca.issue_until(&["127.0.0.1"], 2001));
    let none = files.write("none", "hello");
    let (dir, missing) = (files.path("").display().to_string(), "/nonexistent/c".to_owned());
    let open = |port: &str, cert: &str, key: &str, ca: Option<(&str, &str)>| {
        let mut args = ServeArgs::default();
        let files = [(format!("{port}tls_cert_file"), cert), (format!("{port}tls_key_file"), key)];
        let ca = ca.map(|(flag, path)| (flag.to_owned(), path));
        for (flag, path) in files.into_iter().chain(ca) {
            args.said.flags.insert(flag, path.into());
        }
        crate::security::Security::open(&Config::resolve(&args, None).unwrap()).err().unwrap()
    };
    for (cert, key, at_fault, part) in [
        (&missing, &key, "cert", "No such file"),
        (&cert, &missing, "key", "No such file"),
        (&dir, &key, "cert", "directory"),
        (&none, &key, "cert", "no certificate in PEM"),
        (&cert, &none, "key", "no private key in PEM"),
        (&cert, &other_key, "key", "is not the key of --"),
        (&expired.0, &expired.1, "cert", "has expired"),
    ] {
        let path = if at_fault == "cert" { cert } else { key };
        let good_ca = files.write("ca.crt", &ca.pem());
        for (port, ca) in [("", None), ("internal_", None), ("node_", Some(("node_tls_ca_file", &*good_ca)))] {
            let error = open(port, cert, key, ca);
            let start = format!("--{}tls-{at_fault}-file {path}: ", port.replace('_', "-"));
            assert!(error.starts_with(&start) && error.contains(part), "{start}{part}: {error}");
        }
    }
    for (port, flag) in [("", "tls_client_ca_file"), ("node_", "node_tls_ca_file")] {
        for path in [&missing, &none, &dir] {
            let error = open(port, &cert, &key, Some((flag, path)));
            assert!(error.starts_with(&format!("--{} {path}: ", flag.replace('_', "-"))), "{error}");
        }
    }
}

#[test]
fn a_client_names_the_flag_of_a_file_that_is_none_as_a_node_does() {
    use clap::Parser;
    let (files, ca) = (Files::new(), Authority::new());
    let (cert, key) = files.pair("own", &ca.issue(&["operator"]));
    let (_, other_key) = files.pair("other", &ca.issue(&["operator"]));
    let (trusted, none) = (files.write("ca.crt", &ca.pem()), files.write("none", ""));
    for (flags, start) in [
        (vec!["--tls-ca", "/nonexistent/ca"], "--tls-ca /nonexistent/ca: No such file".to_owned()),
        (vec!["--tls-ca", &none], format!("--tls-ca {none}: no certificate in PEM")),
        (
            vec!["--tls-ca", &trusted, "--tls-cert", &cert, "--tls-key", &other_key],
            format!("--tls-key {other_key}: is not the key of --tls-cert {cert}"),
        ),
        (
            vec!["--tls-ca", &trusted, "--tls-cert", &none, "--tls-key", &key],
            format!("--tls-cert {none}: no certificate in PEM"),
        ),
        (vec!["--token-file", &none], format!("--token-file {none}: holds no token")),
    ] {
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            target: crate::cli::target::Target,
        }
        let line = Line::try_parse_from([&["client"], &flags[..]].concat()).map_err(|error| error.to_string()).unwrap();
        let error = line.target.client().err().unwrap();
        assert!(error.starts_with(&start), "{flags:?}: {error}");
    }
}

/// The status line of GET on the controller's port over TLS; the error says why there was none.
async fn ask_controllers_port(addr: SocketAddr, path: &str, ca: &str) -> Result<String, String> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = prefixd_raft::tls::dial(&addr.to_string(), None, crate::tls::trust(ca.as_bytes())?)
        .await
        .map_err(|e| e.to_string())?;
    let request =
        format!("GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer sesame\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.map_err(|e| e.to_string())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.map_err(|e| e.to_string())?;
    Ok(answer.lines().next().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn the_controllers_port_speaks_tls_alone_once_it_has_a_certificate() {
    let (files, old, new) = (Files::new(), Authority::new(), Authority::new());
    let (cert, key) = files.pair("internal", &old.issue(&["127.0.0.1"]));
    let tokens = files.write("tokens", "sesame\n");
    let flags = [
        ("internal_tls_cert_file", &*cert),
        ("internal_tls_key_file", &key),
        ("policy_token_file", &files.write("policy-tokens", "other\n")),
        ("controller_token_file", &tokens),
        ("reload_interval", "20ms"),
    ];
    let server = Server::with(&flags).await;
    let asked = async |ca: &Authority| ask_controllers_port(server.bound.internal, "/snapshot", &ca.pem()).await;
    assert_eq!(asked(&old).await.unwrap(), "HTTP/1.1 200 OK");
    assert!(asked(&new).await.is_err(), "signed by a stranger");
    let mut clear = tokio::net::TcpStream::connect(server.bound.internal).await.unwrap();
    let mut answer = Vec::new();
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    clear.write_all(b"GET /snapshot HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    // A reset is as good as an alert.
    let _ = clear.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP"), "nobody talks in clear");
    let failures = "prefixd_tls_handshake_failures_total{port=\"internal\"}";
    eventually("strangers are counted", async || server.series(failures).await >= Some(2.0)).await;
    let next = new.issue(&["127.0.0.1"]);
    files.write("internal.key", &next.key);
    files.write("internal.crt", &next.cert);
    eventually("the new certificate is shown", async || asked(&new).await.is_ok()).await;
    assert!(asked(&old).await.is_err());
    server.stop().await;
}
