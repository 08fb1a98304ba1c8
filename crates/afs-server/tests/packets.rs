//! Malformed packets to a server in a separate process: 100,000, or `EVFS_PACKETS`.
//!
//! Random bytes, altered or truncated packets of all kinds, and calls with random arguments from
//! hundreds of addresses, many of which never answer a ping.
//!
//! Goal: afterwards the server serves as before, its memory stays within a limit, and no thread has
//! died.

mod common;

use afs_client::{Options, PortSet};
use block_testing::Random;
use common::process::{Disk, Process};
use common::{CACHE_BYTES, PATIENCE, seed};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Instant;

const SOCKETS: usize = 200;
/// Limit on the server's memory beside its cache, in bytes.
const MEMORY_MAX: usize = 512 << 20;
/// Number of packets between two checks that the server still serves.
const LOOK: usize = 10_000;

/// Returns packets of each kind, and calls in wire format.
fn samples() -> Vec<Vec<u8>> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus");
    let read = |of: &str, prefix: &str| -> Vec<Vec<u8>> {
        let files = std::fs::read_dir(format!("{root}/{of}")).expect("a corpus");
        let mut paths: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
        paths.sort();
        let is = |path: &std::path::PathBuf| {
            path.file_name()
                .is_some_and(|n| n.to_string_lossy().starts_with(prefix))
        };
        paths.retain(is);
        paths
            .iter()
            .map(|path| std::fs::read(path).expect("read"))
            .collect()
    };
    let mut all = read("rx_packets", "packet_");
    // After two bytes of the fuzz target: the arguments of a call, which are put into one packet.
    for call in read("afs_requests", "fs_")
        .into_iter()
        .chain(read("afs_requests", "cb_"))
    {
        let mut packet = vec![0; 28];
        packet[20..22].copy_from_slice(&[1, 5]);
        packet[27] = 1;
        packet.extend(&call[2..call.len().min(1400)]);
        all.push(packet);
    }
    all
}

fn number(packet: &mut [u8], at: usize, value: u32) {
    if let Some(place) = packet.get_mut(at..at + 4) {
        place.copy_from_slice(&value.to_be_bytes());
    }
}

fn packet(random: &mut Random, samples: &[Vec<u8>]) -> Vec<u8> {
    let below = |random: &mut Random, n: usize| random.below(n as u64) as usize;
    let mut packet = samples[below(random, samples.len())].clone();
    match random.below(8) {
        0 => {
            packet = vec![0; below(random, 2000)];
            random.fill(&mut packet);
        }
        1 => packet.truncate(below(random, packet.len() + 1)),
        2 => {
            // A jumbogram of random bytes.
            packet = vec![0; 28 + 4 * 1416];
            random.fill(&mut packet);
            packet[20..22].copy_from_slice(&[1, 0x21]);
        }
        _ => {}
    }
    if packet.len() >= 28 && random.below(10) > 0 {
        // Few connections and calls, so that packets meet the state left by others.
        number(&mut packet, 0, 0x8000_0000 | random.below(50) as u32);
        number(&mut packet, 4, 0x4000_0000 | random.below(64) as u32);
        number(&mut packet, 8, 1 + random.below(3) as u32);
        number(
            &mut packet,
            12,
            1 + random.below(300) as u32 * (random.below(4) / 3) as u32,
        );
        packet[21] |= u8::from(random.below(8) > 0);
        (packet[26], packet[27]) = (0, 1);
    }
    for _ in 0..random.below(4) {
        if packet.is_empty() {
            break;
        }
        let at = below(random, packet.len());
        packet[at] = random.next_u64() as u8;
    }
    packet
}

/// Answers a ping like a real client would, so that the server runs the pending calls.
fn answer(socket: &UdpSocket, server: SocketAddr) {
    let mut bytes = [0; 1500];
    for _ in 0..4 {
        let Ok((length, _)) = socket.recv_from(&mut bytes) else {
            return;
        };
        let is_ping = length >= 46 && bytes[20] == 2 && bytes[44] == 6;
        if is_ping {
            let serial: [u8; 4] = bytes[16..20].try_into().expect("four bytes");
            let mut back = bytes[..65.min(length)].to_vec();
            back[21] = 1;
            back[40..44].copy_from_slice(&serial);
            back[44] = 7;
            // A failed send counts as packet loss.
            let _ = socket.send_to(&back, server);
        }
    }
}

#[test]
fn a_server_outlives_malformed_packets() {
    let count = std::env::var("EVFS_PACKETS")
        .ok()
        .and_then(|n| n.parse().ok());
    let count: usize = count.unwrap_or(100_000);
    let disk = Disk::new("packets", 256 << 20);
    let server = Process::start(&disk.0, 0);
    let net = PortSet::new();
    let options = || Options {
        retry_time: PATIENCE,
        ..Options::default()
    };
    let client = net
        .client(Ipv4Addr::LOCALHOST, server.address, options())
        .expect("a port");
    let (fid, _) = client.create(server.root(), "file").expect("made");
    let serves = |n: usize| {
        let data = n.to_be_bytes();
        client.store_data(fid, 0, &data, 8).expect("stored");
        client.flush();
        assert_eq!(client.read(fid, 0, 100).expect("read"), data);
    };
    serves(0);
    let threads = server.threads();
    let sockets: Vec<UdpSocket> = (0..SOCKETS)
        .map(|n| {
            let address = Ipv4Addr::new(127, 9, (n / 250) as u8, 1 + (n % 250) as u8);
            let socket = UdpSocket::bind((address, 0)).expect("a socket");
            socket.set_nonblocking(true).expect("set");
            socket
        })
        .collect();
    let (mut random, samples) = (Random::new(seed(1)), samples());
    let (begun, mut sent) = (Instant::now(), 0);
    for n in 1..=count {
        let at = random.below(SOCKETS as u64) as usize;
        let bytes = packet(&mut random, &samples);
        sent += usize::from(sockets[at].send_to(&bytes, server.address).is_ok());
        if at.is_multiple_of(2) {
            answer(&sockets[at], server.address);
        }
        if n % LOOK == 0 {
            serves(n);
        }
    }
    serves(count + 1);
    let beside = server.memory().saturating_sub(CACHE_BYTES as usize);
    println!(
        "{sent} packets in {:?}: {} MiB beside the cache, {} threads before, {} after",
        begun.elapsed(),
        beside >> 20,
        threads,
        server.threads(),
    );
    assert!(sent > count / 2, "they were not sent");
    assert!(server.threads() >= threads, "a thread is gone");
    assert!(beside <= MEMORY_MAX, "{beside} bytes");
    // A client unknown so far is served as well.
    let late = net
        .client(Ipv4Addr::new(127, 0, 0, 77), server.address, options())
        .expect("a port");
    late.fetch_status(server.root()).expect("served");
}
