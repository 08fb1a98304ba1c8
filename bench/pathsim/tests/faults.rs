//! Tests of each fault between real sockets.

use pathsim::{Address, Pathsim};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

/// Starts a server that echoes its input and reports it on the channel.
fn echo() -> (Address, Receiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    let (tell, told) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, tell) = (stream.unwrap(), tell.clone());
            std::thread::spawn(move || {
                let mut bytes = vec![0; 65536];
                while let Ok(read @ 1..) = stream.read(&mut bytes) {
                    let _ = tell.send(bytes[..read].to_vec());
                    let _ = stream.write_all(&bytes[..read]);
                }
            });
        }
    });
    (Address::Tcp(at), told)
}

fn start() -> (Pathsim, TcpStream, Receiver<Vec<u8>>) {
    let (server, told) = echo();
    let sim = Pathsim::start(&Address::Tcp("127.0.0.1:0".into()), server).unwrap();
    let client = connect(&sim);
    (sim, client, told)
}

fn connect(sim: &Pathsim) -> TcpStream {
    let Address::Tcp(at) = sim.address() else {
        panic!("TCP was asked for")
    };
    let client = TcpStream::connect(at).unwrap();
    client
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    client
}

fn round(client: &mut TcpStream, bytes: &[u8]) -> Duration {
    let began = Instant::now();
    client.write_all(bytes).unwrap();
    let mut back = vec![0; bytes.len()];
    client.read_exact(&mut back).unwrap();
    assert!(back == bytes);
    began.elapsed()
}

/// Waits as long as 500 round trips through another proxy take.
fn meanwhile() {
    let (_sim, mut client, _told) = start();
    for _ in 0..500 {
        round(&mut client, b"meanwhile");
    }
}

/// Checks that no data has arrived.
fn silent(client: &TcpStream) {
    client.set_nonblocking(true).unwrap();
    let error = client.peek(&mut [0; 16]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    client.set_nonblocking(false).unwrap();
}

#[test]
fn it_passes_much_and_in_order() {
    let (sim, mut client, _told) = start();
    let mut reader = client.try_clone().unwrap();
    let total = 64 << 20;
    let sender = std::thread::spawn(move || {
        for n in 0..total / 4096 {
            let bytes = vec![(n % 251) as u8; 4096];
            client.write_all(&bytes).unwrap();
        }
        client
    });
    let mut bytes = vec![0; 4096];
    for n in 0..total / 4096 {
        reader.read_exact(&mut bytes).unwrap();
        assert!(bytes.iter().all(|b| *b == (n % 251) as u8), "block {n}");
    }
    drop(sender.join().unwrap());
    // Delivered bytes are counted with a short delay.
    let end = Instant::now() + Duration::from_secs(20);
    while (sim.stats().up, sim.stats().down) != (total as u64, total as u64) {
        assert!(
            Instant::now() < end,
            "{} {}",
            sim.stats().up,
            sim.stats().down
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_rate_holds_and_a_delay_delays() {
    let (sim, mut client, _told) = start();
    round(&mut client, b"warm");
    // The settings imply a minimum time, independent of the machine's speed. A tenth of the data
    // may pass at once.
    let (rate, bytes) = (4_000_000, 2_000_000);
    sim.run(&format!("rate={rate}")).unwrap();
    let took = round(&mut client, &vec![7; bytes]);
    let least = Duration::from_secs(1) * bytes as u32 / rate;
    assert!(took >= least * 9 / 10, "{took:?}");
    sim.run("pass").unwrap();
    let delay = Duration::from_millis(150);
    sim.run(&format!("delay={}", delay.as_millis())).unwrap();
    sim.run("jitter=30").unwrap();
    let took = round(&mut client, b"late");
    assert!(took >= 2 * delay, "{took:?}");
}

#[test]
fn a_hole_is_silent_and_ends() {
    let (sim, mut client, told) = start();
    round(&mut client, b"before");
    sim.run("hole").unwrap();
    client.write_all(b"lost?").unwrap();
    let mut second = connect(&sim);
    second.write_all(b"second").unwrap();
    meanwhile();
    silent(&client);
    silent(&second);
    sim.run("pass").unwrap();
    let mut back = [0; 5];
    client.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"lost?");
    let mut back = [0; 6];
    second.read_exact(&mut back).unwrap();
    assert!(told.iter().take(3).any(|b| b == b"second"));
}

#[test]
fn what_is_held_arrives_after_its_sender_is_gone() {
    let (sim, mut client, told) = start();
    round(&mut client, b"before");
    assert_eq!(told.recv().unwrap(), b"before");
    sim.run("hold").unwrap();
    client.write_all(b"ghost").unwrap();
    let until = Instant::now() + Duration::from_secs(10);
    while sim.stats().held < 5 {
        assert!(Instant::now() < until);
    }
    drop(client);
    meanwhile();
    assert_eq!(told.try_recv(), Err(TryRecvError::Empty));
    sim.run("pass").unwrap();
    assert_eq!(
        told.recv_timeout(Duration::from_secs(10)).unwrap(),
        b"ghost"
    );
}

#[test]
fn resets_refusals_and_half_closes() {
    let (sim, mut client, _told) = start();
    round(&mut client, b"before");
    sim.run("rst").unwrap();
    let error = client.read(&mut [0; 16]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    sim.run("refuse").unwrap();
    let Address::Tcp(at) = sim.address().clone() else {
        panic!()
    };
    let until = Instant::now() + Duration::from_secs(10);
    while TcpStream::connect(&at).is_ok() {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(10));
    }
    sim.run("pass").unwrap();
    while TcpStream::connect(&at).is_err() {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut client = connect(&sim);
    round(&mut client, b"again");
    sim.run("half-close=down").unwrap();
    assert_eq!(client.read(&mut [0; 16]).unwrap(), 0);
}

#[test]
fn a_bit_is_flipped_and_a_stream_replayed() {
    let (sim, mut client, told) = start();
    round(&mut client, b"before");
    sim.run("corrupt=once").unwrap();
    client.write_all(&[0; 100]).unwrap();
    let mut back = [0; 100];
    client.read_exact(&mut back).unwrap();
    assert_eq!(back.iter().filter(|b| **b != 0).count(), 1);
    sim.run("record").unwrap();
    drop(client);
    let mut client = connect(&sim);
    round(&mut client, b"again!");
    drop(client);
    let count = || told.try_iter().filter(|b| b == b"again!").count();
    assert_eq!(count(), 1);
    // A stream can be replayed as soon as the proxy has seen its end.
    let until = Instant::now() + Duration::from_secs(20);
    let replayed = loop {
        sim.run("replay").unwrap();
        let replayed = count();
        if replayed > 0 {
            break replayed;
        }
        assert!(Instant::now() < until, "nothing is replayed");
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(replayed, 1);
    assert!(sim.run("rate=0").is_err() && sim.run("explode").is_err());
}
