//! `prefixd recover` among members whose node ports speak mutual TLS: with the node's own certificate it hears them, without
//! one somebody is there.

use crate::cluster::{Cluster, PATIENCE};
use crate::members::{Said, prefixd};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
};
use std::path::Path;
use std::time::{Duration, Instant};

/// A CA, and one certificate of it for all these addresses, as PEM files.
fn certificates(dir: &Path, hosts: &[String]) -> [String; 3] {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let mut params = CertificateParams::new(hosts).unwrap();
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().unwrap();
    let cert = params.signed_by(&key, &ca).unwrap();
    [("node.crt", cert.pem()), ("node.key", key.serialize_pem()), ("ca.crt", ca.pem())].map(|(name, pem)| {
        let path = dir.join(name);
        std::fs::write(&path, pem).unwrap();
        path.to_str().unwrap().to_owned()
    })
}

async fn recover(cluster: &Cluster, flags: &[String]) -> Said {
    let dir = format!("--data-dir={}", cluster.nodes[0].dir.display());
    let peers = format!("--peers={}", cluster.nodes[0].peers.join(","));
    let mut args = vec!["recover", &dir, &peers];
    args.extend(flags.iter().map(String::as_str));
    prefixd(&args).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_under_tls_are_heard_with_a_certificate() {
    let mut cluster = Cluster::new(3, &[]);
    let hosts: Vec<String> = cluster.nodes.iter().map(|node| node.host.clone()).collect();
    let [cert, key, ca] = certificates(cluster.root(), &hosts);
    let tls = [
        format!("--node-tls-cert-file={cert}"),
        format!("--node-tls-key-file={key}"),
        format!("--node-tls-ca-file={ca}"),
    ];
    cluster.nodes.iter_mut().for_each(|node| node.flags.extend(tls.clone()));
    cluster.start_all();
    let admin = format!("{}:9091", hosts[0]);
    let list = ["ctl", "member", "list", "--admin", &admin, "--tls-ca", &ca, "--tls-cert", &cert, "--tls-key", &key];
    let began = Instant::now();
    loop {
        let said = prefixd(&list).await;
        if said.out.contains("leader") && said.out.contains("n0") && said.out.matches("voter").count() == 2 {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "{}{}\n{}", said.out, said.err, cluster.logs());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(cluster.nodes[0].stop().await.success());

    let heard = recover(&cluster, &tls).await;
    assert!(!heard.is_ok && heard.err.contains("n1 answers, n2 answers"), "{}\n{}", heard.out, heard.err);
    let deaf = recover(&cluster, &[]).await;
    let unheard = "n1 takes connections and does not answer, n2 takes connections and does not answer";
    assert!(!deaf.is_ok && deaf.err.contains(unheard), "{}\n{}", deaf.out, deaf.err);
    let insisting = recover(&cluster, &["--yes".to_owned()]).await;
    assert!(!insisting.is_ok && insisting.err.contains("--node-tls-cert-file"), "{}\n{}", insisting.out, insisting.err);
    let halves = recover(&cluster, &tls[..2]).await;
    assert!(!halves.is_ok && halves.err.contains("--node-tls-ca-file"), "{}", halves.err);

    cluster.nodes[1..].iter_mut().for_each(|node| node.kill());
    let lost = recover(&cluster, &tls).await;
    assert!(!lost.is_ok && lost.err.contains("run this again with --yes"), "{}\n{}", lost.out, lost.err);
    let done = recover(&cluster, &[tls.as_slice(), &["--yes".to_owned()]].concat()).await;
    assert!(done.is_ok && done.out.contains("recovered: cluster"), "{}\n{}", done.out, done.err);
    cluster.assert_no_panic();
}
