//! TLS configuration from certificates, through rustls.

use crate::{Error, Tls};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

fn bad(path: &Path, why: impl ToString) -> Error {
    Error::Certificate {
        path: path.display().to_string(),
        why: why.to_string(),
    }
}

/// Builds the TLS configuration of the server.
pub(crate) fn config(tls: &Tls) -> Result<Arc<ServerConfig>, Error> {
    let certificates = |path: &Path| {
        let pem = std::fs::read(path).map_err(|e| bad(path, e))?;
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
        let found = found.map_err(|e| bad(path, e))?;
        if found.is_empty() {
            Err(bad(path, "it holds no certificate (PEM)"))
        } else {
            Ok(found)
        }
    };
    let chain = certificates(&tls.certificate)?;
    let key = File::open(&tls.key).map_err(|e| bad(&tls.key, e))?;
    let mode = key.metadata().map_err(|e| bad(&tls.key, e))?.mode();
    if mode & 0o077 != 0 {
        let why = format!(
            "other users may use this private key (mode {:04o}); run `chmod 600` on it",
            mode & 0o7777
        );
        return Err(bad(&tls.key, why));
    }
    let key = PrivateKeyDer::from_pem_reader(key).map_err(|e| match e {
        pem::Error::NoItemsFound => bad(&tls.key, "it holds no private key (PEM)"),
        e => bad(&tls.key, e),
    })?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|e| bad(&tls.certificate, e))?;
    let builder = match &tls.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|e| bad(path, e))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().map_err(|e| bad(path, e))?)
        }
    };
    let config = builder
        .with_single_cert(chain, key)
        .map_err(|e| bad(&tls.certificate, e))?;
    Ok(Arc::new(config))
}
