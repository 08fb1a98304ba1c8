//! Certificates, through rustls.

use crate::{Error, Tls};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::path::Path;
use std::sync::Arc;

fn bad(path: &Path, why: impl ToString) -> Error {
    Error::Certificate {
        path: path.display().to_string(),
        why: why.to_string(),
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path)
        .map_err(|e| bad(path, e))?
        .collect();
    let found = found.map_err(|e| bad(path, e))?;
    if found.is_empty() {
        return Err(bad(path, "it holds no certificate (PEM)"));
    }
    Ok(found)
}

/// The server's side of TLS 1.2 and 1.3.
pub(crate) fn config(tls: &Tls) -> Result<Arc<ServerConfig>, Error> {
    let chain = certificates(&tls.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&tls.key).map_err(|e| bad(&tls.key, e))?;
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
