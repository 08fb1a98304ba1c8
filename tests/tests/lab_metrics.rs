//! CPU time that a scrape of the metrics costs.
//!
//! Goal: at one scrape a second, metrics take at most 1 % of a CPU, also under load. Method: CPU time
//! of the server alone, while it is idle, and in seconds with and without a scrape that alternate
//! while a client reads and writes. CPU time does not depend on the other load of the machine as
//! elapsed time does. `EVFS_PAIRS` is the number of pairs of seconds.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tests::web::exchange;
use tests::{Ran, Sandbox};

/// Limit, as part of a CPU.
const PART_MAX: f64 = 0.01;

/// Scrapes of the idle server.
const SCRAPES: u32 = 15;

const GET: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

fn scrape(socket: &Path) {
    let answer = exchange(UnixStream::connect(socket).unwrap(), GET);
    assert!(answer.contains("evfs_io"), "{answer}");
}

/// Reads the CPU time that a process has used.
fn cpu(pid: i32) -> Duration {
    let mut clock = 0;
    // SAFETY: the call writes one number, to a variable that lives through it.
    let found = unsafe { libc::clock_getcpuclockid(pid, &mut clock) };
    assert_eq!(found, 0, "the server has ended");
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: as above.
    let read = unsafe { libc::clock_gettime(clock, &mut time) };
    assert_eq!(read, 0, "the server has ended");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Lets a second pass, with or without a scrape. Returns the CPU seconds of the server for each
/// request, and the number of requests.
fn second(pid: i32, done: &AtomicU64, socket: Option<&Path>) -> (f64, f64) {
    let (begin, from) = (cpu(pid), done.load(Ordering::SeqCst));
    let end = Instant::now() + Duration::from_secs(1);
    if let Some(socket) = socket {
        scrape(socket);
    }
    std::thread::sleep(end.saturating_duration_since(Instant::now()));
    let requests = (done.load(Ordering::SeqCst) - from) as f64;
    assert!(requests > 0.0, "the client makes progress");
    ((cpu(pid) - begin).as_secs_f64() / requests, requests)
}

#[test]
fn a_scrape_each_second_takes_one_percent_of_a_cpu_at_most() {
    let s = Sandbox::new();
    s.volume("a.img", "64M", &[]);
    let mut attach = s.evfs();
    attach.args(["attach", "a.img", "--background"]);
    Ran::of(attach.env("EVFS_METRICS_LISTEN", "metrics.sock")).ok();
    let pid = s.json(&["status", "a"])["volumes"][0]["pid"]
        .as_i64()
        .unwrap() as i32;
    let socket = s.path("run/metrics.sock");
    tests::wait_until("metrics are served", || {
        UnixStream::connect(&socket).is_ok()
    });

    let begin = cpu(pid);
    for _ in 0..SCRAPES {
        scrape(&socket);
        std::thread::sleep(Duration::from_secs(1));
    }
    let idle = (cpu(pid) - begin).as_secs_f64() / f64::from(SCRAPES);
    eprintln!("idle: {:.3} % of a CPU", idle * 100.0);
    assert!(idle < PART_MAX, "{idle} CPU seconds for each scrape");

    let mut client = nbd_client::Client::connect(&s.path("run/a.nbd"), "a").unwrap();
    let (done, stop) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let (counted, stopped) = (Arc::clone(&done), Arc::clone(&stop));
    let load = std::thread::spawn(move || {
        let mut block = vec![7; 64 << 10];
        for round in 0.. {
            if stopped.load(Ordering::SeqCst) {
                break;
            }
            let offset = round % 64 * (64 << 10);
            client.write_at(offset, &block).unwrap();
            client.read_at(offset, &mut block).unwrap();
            counted.fetch_add(2, Ordering::SeqCst);
        }
    });
    let pairs = std::env::var("EVFS_PAIRS").map_or(20, |pairs| pairs.parse().unwrap());
    let parts: Vec<f64> = (0..pairs)
        .map(|pair| {
            // A B B A
            let first = (pair % 2 == 0).then_some(&*socket);
            let one = second(pid, &done, first);
            let other = second(
                pid,
                &done,
                if first.is_none() { Some(&socket) } else { None },
            );
            let (with, without) = if first.is_some() {
                (one, other)
            } else {
                (other, one)
            };
            (with.0 - without.0) * without.1
        })
        .collect();
    stop.store(true, Ordering::SeqCst);
    load.join().unwrap();
    let count = parts.len() as f64;
    let mean = parts.iter().sum::<f64>() / count;
    let variance = parts.iter().map(|part| (part - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let error = 2.0 * (variance / count).sqrt();
    let percent = (mean * 100.0, error * 100.0);
    eprintln!(
        "under load: {:.2} % of a CPU, +- {:.2}",
        percent.0, percent.1
    );
    assert!(mean - error < PART_MAX, "{mean} +- {error} of a CPU");
    s.detach("a");
}
