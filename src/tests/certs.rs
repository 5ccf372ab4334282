//! Certificate authorities and certificates for tests, made on the spot.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
};
use std::path::{Path, PathBuf};

/// An authority.
pub(super) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate with its key, both in PEM.
pub(super) struct Issued {
    pub(super) cert: String,
    pub(super) key: String,
}

impl Authority {
    pub(super) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(super) fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for these names that ends in the year.
    pub(super) fn issue_until(&self, names: &[&str], year: i32) -> Issued {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.not_before = rcgen::date_time_ymd(2000, 1, 1);
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.0).unwrap();
        Issued { cert: cert.pem(), key: key.serialize_pem() }
    }

    /// A certificate for these names.
    pub(super) fn issue(&self, names: &[&str]) -> Issued {
        self.issue_until(names, 4000)
    }
}

/// Files of a test, in a folder that goes away with it.
pub(super) struct Files(tempfile::TempDir);

impl Files {
    pub(super) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Replaces a file at once, as orchestrators do.
    pub(super) fn write(&self, name: &str, content: &str) -> String {
        let temporary = self.path("new");
        std::fs::write(&temporary, content).unwrap();
        std::fs::rename(&temporary, self.path(name)).unwrap();
        text(&self.path(name))
    }

    /// Writes `NAME.crt` and `NAME.key`, and returns their paths.
    pub(super) fn pair(&self, name: &str, issued: &Issued) -> (String, String) {
        let key = self.write(&format!("{name}.key"), &issued.key);
        (self.write(&format!("{name}.crt"), &issued.cert), key)
    }
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}
