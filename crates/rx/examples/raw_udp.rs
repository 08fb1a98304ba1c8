//! Cost of the network stack alone with the batching of this crate: full packets in sends of 45
//! that the kernel segments, coalesced receives, a window of 255 packets, one answer per receive.
//! No protocol, no loss recovery: arriving bytes are counted.
//!
//! ```text
//!   raw_udp [MEGABYTES]
//! ```
//!
//! Prints the same fields as `rxperf`; both ends are threads of one process, so `cpu_s` covers
//! both.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

const PACKET: usize = 1440;
const BATCH: usize = 45 * PACKET;
const WINDOW: u64 = 255 * PACKET as u64;
/// Silence after which missing bytes count as lost.
const SILENCE: Duration = Duration::from_secs(1);

fn main() -> io::Result<()> {
    let megabytes = std::env::args().nth(1).and_then(|n| n.parse().ok());
    let bytes: u64 = megabytes.unwrap_or(1000) * 1_000_000;
    let (sender, receiver) = (socket()?, socket()?);
    sender.connect(receiver.local_addr()?)?;
    receiver.connect(sender.local_addr()?)?;
    option(&sender, libc::SOL_UDP, libc::UDP_SEGMENT, PACKET)?;
    option(&receiver, libc::SOL_UDP, libc::UDP_GRO, 1)?;
    let (start, before) = (Instant::now(), processor_time());
    let arrived = std::thread::scope(|scope| {
        let receives = scope.spawn(|| receive(&receiver, bytes));
        send(&sender, bytes)?;
        receives.join().expect("a thread that counts")
    })?;
    let seconds = start.elapsed().as_secs_f64();
    let spent = (processor_time() - before).as_secs_f64();
    println!(
        "{{\"seconds\":{seconds:.3},\"mb_s\":{:.1},\"cpu_s\":{spent:.3},\"cpu_s_gb\":{:.3},\"lost\":{}}}",
        arrived as f64 / seconds / 1e6,
        spent / arrived as f64 * 1e9,
        bytes - arrived
    );
    Ok(())
}

fn socket() -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.set_read_timeout(Some(SILENCE))?;
    for (own, force) in [
        (libc::SO_RCVBUF, libc::SO_RCVBUFFORCE),
        (libc::SO_SNDBUF, libc::SO_SNDBUFFORCE),
    ] {
        // Exceeding the system's limit requires a privilege.
        option(&socket, libc::SOL_SOCKET, force, 8 << 20)
            .or_else(|_| option(&socket, libc::SOL_SOCKET, own, 8 << 20))?;
    }
    Ok(socket)
}

fn option(socket: &UdpSocket, level: i32, name: i32, value: usize) -> io::Result<()> {
    let value = i32::try_from(value).map_err(io::Error::other)?;
    let bytes = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the value lives until the call returns, and `bytes` is its size.
    let done = unsafe {
        let value = (&raw const value).cast();
        libc::setsockopt(socket.as_raw_fd(), level, name, value, bytes)
    };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sends everything, never more than a window beyond the answered bytes.
fn send(socket: &UdpSocket, bytes: u64) -> io::Result<()> {
    let batch = vec![7; BATCH];
    let (mut sent, mut answered) = (0, 0);
    while sent < bytes {
        if sent - answered + BATCH as u64 > WINDOW {
            let mut answer = [0; 8];
            match socket.recv(&mut answer) {
                Ok(_) => answered = answered.max(u64::from_be_bytes(answer)),
                // Lost: the window opens without them.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => answered = sent,
                Err(e) => return Err(e),
            }
            continue;
        }
        let piece = batch
            .len()
            .min(usize::try_from(bytes - sent).unwrap_or(BATCH));
        sent += socket.send(&batch[..piece])? as u64;
    }
    Ok(())
}

/// Receives until everything has arrived or nothing more arrives; returns the number of bytes.
fn receive(socket: &UdpSocket, bytes: u64) -> io::Result<u64> {
    let mut buffer = vec![0; 65_536];
    let mut arrived = 0;
    while arrived < bytes {
        match socket.recv(&mut buffer) {
            Ok(received) => arrived += received as u64,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
            Err(e) => return Err(e),
        }
        // To a sender that may have ended.
        let _ = socket.send(&arrived.to_be_bytes());
    }
    Ok(arrived)
}

/// Returns the CPU time of this process.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}
