//! PEM to certificates and keys. Errors say what is missing and never quote a key.

use crate::watched::Content;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Most certificates in one file.
const MAX_CERTIFICATES: usize = 1_000;

/// A certificate with what leads up to its CA, and its key.
pub(super) struct Pair {
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) key: PrivateKeyDer<'static>,
    /// When the first certificate of the chain to end does so, in seconds since the Unix epoch.
    pub(super) not_after: i64,
}

impl Clone for Pair {
    fn clone(&self) -> Self {
        Self { chain: self.chain.clone(), key: self.key.clone_key(), not_after: self.not_after }
    }
}

/// A certificate chain, the own certificate first, and its key. Errors name the file at fault by its flag.
pub(super) fn pair(cert: &Content, key: &Content) -> Result<Pair, String> {
    let of_cert = |why: String| cert.problem(&why);
    let chain = certificates(&cert.bytes).map_err(of_cert)?;
    let ends = chain.iter().map(not_after).collect::<Result<Vec<_>, _>>().map_err(of_cert)?;
    let not_after = ends.into_iter().min().ok_or_else(|| cert.problem("no certificate"))?;
    let found = PrivateKeyDer::from_pem_slice(&key.bytes).map_err(|_| key.problem("no private key in PEM"))?;
    CertifiedKey::from_der(chain.clone(), found.clone_key(), &super::provider()).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => key.problem(&format!("is not the key of {}", cert.source)),
        other => key.problem(&format!("no use beside {}: {other}", cert.source)),
    })?;
    Ok(Pair { chain, key: found, not_after })
}

/// The certificates of a CA file, as what is trusted.
pub(super) fn roots(ca: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca)? {
        roots.add(certificate).map_err(|error| format!("a certificate in it is no CA's: {error}"))?;
    }
    Ok(roots)
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found = CertificateDer::pem_slice_iter(pem).take(MAX_CERTIFICATES + 1).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|error| format!("broken PEM: {error}"))?;
    match found.len() {
        0 => Err("no certificate in PEM".into()),
        n if n > MAX_CERTIFICATES => Err(format!("more than {MAX_CERTIFICATES} certificates")),
        _ => Ok(found),
    }
}

fn not_after(certificate: &CertificateDer<'_>) -> Result<i64, String> {
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| "a certificate that is none".to_owned())?;
    Ok(parsed.validity().not_after.timestamp())
}
