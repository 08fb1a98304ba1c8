//! TLS configuration from certificates, through rustls.

use crate::{Error, Tls};
use rustls::RootCertStore;
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use std::fs::File;
use std::io::BufReader;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

fn bad(path: &Path, why: impl ToString) -> Error {
    Error::Certificate {
        path: path.display().to_string(),
        why: why.to_string(),
    }
}

fn open(path: &Path) -> Result<BufReader<File>, Error> {
    File::open(path)
        .map(BufReader::new)
        .map_err(|e| bad(path, e))
}

/// Builds the TLS configuration of the server.
pub(crate) fn config(tls: &Tls) -> Result<Arc<ServerConfig>, Error> {
    let certificates = |path: &Path| {
        let found: Result<Vec<_>, _> = rustls_pemfile::certs(&mut open(path)?).collect();
        let found = found.map_err(|e| bad(path, e))?;
        if found.is_empty() {
            Err(bad(path, "it holds no certificate (PEM)"))
        } else {
            Ok(found)
        }
    };
    let chain = certificates(&tls.certificate)?;
    let key = open(&tls.key)?;
    let mode = key
        .get_ref()
        .metadata()
        .map_err(|e| bad(&tls.key, e))?
        .mode();
    if mode & 0o077 != 0 {
        let why = format!(
            "other users may use this private key (mode {:04o}): chmod 600 it",
            mode & 0o7777
        );
        return Err(bad(&tls.key, why));
    }
    let key = rustls_pemfile::private_key(&mut { key }).map_err(|e| bad(&tls.key, e))?;
    let key = key.ok_or_else(|| bad(&tls.key, "it holds no private key (PEM)"))?;
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
