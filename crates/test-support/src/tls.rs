//! Certificates made by the real openssl.

use crate::installed;
use std::path::Path;
use std::process::Command;

/// Creates a certificate authority in a directory: `ca-cert.pem` and `ca-key.pem`.
///
/// # Panics
/// `openssl` is not installed, or fails.
pub fn create_authority(dir: &Path) {
    let request = "req -x509 -newkey rsa:2048 -nodes -keyout ca-key.pem -out ca-cert.pem -days 2 \
                   -subj /CN=test-ca";
    openssl(dir, request);
}

/// Creates `NAME-cert.pem`, signed by the authority in this directory, and `NAME-key.pem`, for
/// these subject alternative names, as `DNS:localhost,IP:127.0.0.1`.
///
/// # Panics
/// `openssl` fails.
pub fn create_certificate(dir: &Path, name: &str, names: &str) {
    let request = format!(
        "req -newkey rsa:2048 -nodes -keyout {name}-key.pem -out {name}.csr -subj /CN={name}"
    );
    openssl(dir, &request);
    let extensions = format!("subjectAltName={names}\n");
    std::fs::write(dir.join("extensions"), extensions).expect("a file");
    let sign = format!(
        "x509 -req -in {name}.csr -CA ca-cert.pem -CAkey ca-key.pem -CAcreateserial -days 2 \
         -extfile extensions -out {name}-cert.pem"
    );
    openssl(dir, &sign);
}

fn openssl(dir: &Path, args: &str) {
    let output = Command::new(installed("openssl"))
        .args(args.split_whitespace())
        .current_dir(dir)
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "openssl {args}: {said}");
}
