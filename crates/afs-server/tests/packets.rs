//! Malformed packets at a server that runs in a process of its own: 100,000, or `EVFS_PACKETS`.
//!
//! Random bytes, packets of all kinds with parts changed or cut off, calls with rubbish for arguments from
//! hundreds of addresses, of which many never answer a ping.
//!
//! Goal: the server serves afterwards as before, its memory stays within a limit, and no thread is gone.

mod common;

use afs_client::{Net, Options};
use block::Random;
use common::process::{Disk, Process, serve_if_told};
use common::{CACHE_BYTES, PATIENCE, seed};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Instant;

const SOCKETS: usize = 200;
/// Bytes beside the cache that the server may use.
const MEMORY_MAX: usize = 512 << 20;
/// Packets between two looks at whether it serves.
const LOOK: usize = 10_000;

#[test]
fn serves_when_it_is_told_to() {
    serve_if_told();
}

/// Packets of each kind, and calls as they are on the wire.
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
    // Behind the two bytes of the fuzz target: the arguments of a call, which becomes one packet.
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
            // A jumbogram of rubbish.
            packet = vec![0; 28 + 4 * 1416];
            random.fill(&mut packet);
            packet[20..22].copy_from_slice(&[1, 0x21]);
        }
        _ => {}
    }
    if packet.len() >= 28 && random.below(10) > 0 {
        // Few connections and calls, so that packets meet what others left.
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

/// Answers a ping, as if there were a client: what it asked for is run then.
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
            // What the network does not take is lost, as packets are.
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
    let net = Net::new();
    let options = || Options {
        patience: PATIENCE,
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
    // Somebody who was not there before is served as well.
    let late = net
        .client(Ipv4Addr::new(127, 0, 0, 77), server.address, options())
        .expect("a port");
    late.fetch_status(server.root()).expect("served");
}
