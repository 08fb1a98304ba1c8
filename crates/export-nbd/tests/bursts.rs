//! Clients that send faster than they read: every request is answered, regardless of how much
//! arrives before the server has room for it.

use block::BlockDevice;
use block_testing::Mem;
use export_nbd::{Config, Export, Listen, Server, Tls};
use nbd_proto::client::{ClientHandshake, ClientOptions, ClientStep, request};
use nbd_proto::constants as c;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const WITHIN: Duration = Duration::from_secs(20);
const SIZE: u64 = 64 << 20;

fn server(tls: Option<Tls>) -> (Server, SocketAddr) {
    let device = Arc::new(Mem::new(SIZE, 512)) as Arc<dyn BlockDevice>;
    let export = Export {
        name: "e".into(),
        description: String::new(),
        device,
        read_only: false,
    };
    let config = Config {
        listen: vec![Listen::Tcp("127.0.0.1:0".parse().unwrap())],
        threads: 1,
        tls,
        ..Config::default()
    };
    let server = Server::start(config, vec![export]).unwrap();
    let Listen::Tcp(address) = server.addresses()[0] else {
        panic!("it listens on TCP")
    };
    (server, address)
}

/// Negotiates until there is an outcome.
fn negotiate<S: Read + Write>(stream: &mut S, mut handshake: ClientHandshake) -> ClientHandshake {
    let mut input = Vec::new();
    loop {
        stream.write_all(&handshake.take_output()).unwrap();
        if handshake.outcome().is_some() {
            return handshake;
        }
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        input.push(byte[0]);
        let used = handshake.handle_input(&input).unwrap();
        input.drain(..used);
    }
}

fn wish(tls: bool) -> ClientOptions {
    ClientOptions {
        export: "e".into(),
        tls,
        ..ClientOptions::default()
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(WITHIN)).unwrap();
    stream.set_write_timeout(Some(WITHIN)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Returns once the server has served a connection that was made after all earlier events.
fn come_round(address: SocketAddr, tls: bool) {
    let later = negotiate(&mut connect(address), ClientHandshake::new(wish(tls)));
    assert!(later.outcome().is_some());
}

/// Waits until the replies to a client that does not read are stuck: the server serves other
/// clients and sends no more to this one.
fn wait_until_stuck(stream: &TcpStream, address: SocketAddr, tls: bool) {
    let until = Instant::now() + WITHIN;
    let mut before = 0;
    loop {
        come_round(address, tls);
        let now = rustix::io::ioctl_fionread(stream).unwrap();
        if now > 0 && now == before {
            return;
        }
        assert!(Instant::now() < until, "the answers are never stuck");
        before = now;
    }
}

fn reads(cookies: std::ops::Range<u64>, len: u32) -> Vec<u8> {
    let read = |cookie| request(c::CMD_READ, 0, cookie, 0, len);
    cookies.flat_map(read).collect()
}

/// Reads the replies to `count` reads of `len` bytes, each once.
fn answers<S: Read>(stream: &mut S, count: u64, len: u32) {
    let mut cookies = Vec::new();
    let mut data = vec![0; len as usize];
    for _ in 0..count {
        let mut head = [0; 28];
        stream.read_exact(&mut head[..16]).unwrap();
        let magic = u32::from_be_bytes(head[..4].try_into().unwrap());
        let cookie = u64::from_be_bytes(head[8..16].try_into().unwrap());
        if magic == c::STRUCTURED_REPLY_MAGIC {
            stream.read_exact(&mut head[16..]).unwrap();
        }
        stream.read_exact(&mut data).unwrap();
        cookies.push(cookie);
    }
    cookies.sort_unstable();
    assert!(cookies.into_iter().eq(0..count), "each answered once");
}

#[test]
fn more_requests_than_a_connection_may_have_under_way() {
    let (_server, address) = server(None);
    let mut stream = connect(address);
    let end = negotiate(&mut stream, ClientHandshake::new(wish(false)));
    assert!(matches!(end.outcome(), Some(ClientStep::Transmission(_))));
    // The number that fits into one receive, so that no data left in the socket wakes the server.
    for _ in 0..20 {
        stream.write_all(&reads(0..290, 512)).unwrap();
        answers(&mut stream, 290, 512);
    }
}

#[test]
fn more_bytes_than_the_server_has_memory_for() {
    let (_server, address) = server(None);
    let mut stream = connect(address);
    negotiate(&mut stream, ClientHandshake::new(wish(false)));
    let len = 24 << 20;
    stream.write_all(&reads(0..12, len)).unwrap();
    // The server accepts as many requests as it can, and their replies wait to be sent.
    wait_until_stuck(&stream, address, false);
    answers(&mut stream, 12, len);
}

fn certificates(folder: &Path) -> (Tls, RootCertStore) {
    test_support::tls::create_authority(folder);
    test_support::tls::create_certificate(folder, "server", "DNS:localhost");
    let pem = std::fs::read(folder.join("ca-cert.pem")).unwrap();
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let tls = Tls {
        certificate: folder.join("server-cert.pem"),
        key: folder.join("server-key.pem"),
        client_ca: None,
    };
    (tls, roots)
}

mod needs_peer {
    use super::*;

    /// A client that fills its socket, sends more, and reads only then.
    #[test]
    fn requests_that_come_while_the_answers_are_stuck_under_tls() {
        let folder = tempfile::tempdir().unwrap();
        let (tls, roots) = certificates(folder.path());
        let (_server, address) = server(Some(tls));
        let mut stream = connect(address);
        let end = negotiate(&mut stream, ClientHandshake::new(wish(true)));
        assert!(matches!(end.outcome(), Some(ClientStep::StartTls)));
        let config =
            ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(roots)
                .with_no_client_auth();
        let name = "localhost".try_into().unwrap();
        let connection = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut stream = StreamOwned::new(connection, stream);
        negotiate(&mut stream, ClientHandshake::under_tls(wish(false)));
        for _ in 0..5 {
            let len = 4 << 20;
            stream.write_all(&reads(0..4, len)).unwrap();
            wait_until_stuck(&stream.sock, address, true);
            stream.write_all(&reads(4..8, len)).unwrap();
            come_round(address, true);
            answers(&mut stream, 8, len);
        }
        // The server answers the close notice with its own, not with a reset.
        let leave = request(c::CMD_DISC, 0, 0, 0, 0);
        stream.write_all(&leave).unwrap();
        come_round(address, true);
        stream.conn.send_close_notify();
        stream.flush().unwrap();
        assert_eq!(stream.read(&mut [0; 16]).unwrap(), 0);
    }
}
