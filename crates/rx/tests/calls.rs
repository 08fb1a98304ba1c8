//! Calls between ports of this process, over the loopback network.

mod common;

use common::{PATIENCE, SERVICE, bytes, check_echo, client, connect, echo, serve, serve_with};
use rx::{
    Abort, Bytes, Call, Connection, End, Error, Handler, Port, Service, Settings, Timeouts, code,
};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

/// Waits until `holds` returns true.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until a count stays the same while the server handles many other calls.
fn until_it_stands(what: &str, client: &Port, server: &Port, count: impl Fn() -> u64) -> u64 {
    const OTHERS: usize = 500;
    // Calls that need no thread of the server, because the service does not exist.
    let nobody = client.connect(server.address(), SERVICE + 1, Timeouts::default());
    let refused = Err(Error::Ended(End::Aborted(code::INVALID_OPERATION)));
    let mut before = 0;
    until(what, || {
        for _ in 0..OTHERS {
            assert_eq!(nobody.request(vec![0], 0), refused);
        }
        let now = count();
        now > 0 && std::mem::replace(&mut before, now) == now
    });
    before
}

/// Waits until a thread of this process sleeps; `task` is the target of its `/proc/thread-self`.
fn until_asleep(task: &std::path::Path) {
    let stat = std::path::Path::new("/proc").join(task).join("stat");
    until("a thread that sleeps", || {
        let stat = std::fs::read_to_string(&stat).unwrap();
        let state = stat.rsplit_once(") ").unwrap().1;
        state.starts_with('S')
    });
}

#[test]
fn requests_and_replies_of_any_length_arrive_whole() {
    for sockets in [1, 3] {
        let (server, client) = (serve(sockets, echo), client());
        let connection = connect(&client, &server);
        for (tag, len) in [0, 1, 4, 1411, 1412, 1413, 2824, 65_536, 5_000_000]
            .iter()
            .enumerate()
        {
            check_echo(&connection, tag as u64, *len).unwrap();
        }
        // A ping of the reach check, and no malformed packets or failed sends.
        let stats = server.stats();
        assert_eq!(stats.send_errors, 0);
        assert!(stats.sockets.iter().all(|s| s.malformed == 0));
    }
}

#[test]
fn many_callers_at_once_get_their_own_replies() {
    let server = serve(2, echo);
    // A client with several sockets: replies arrive at the socket that the kernel selects.
    let settings = Settings {
        sockets: 3,
        ..Settings::default()
    };
    let client = Port::open(&settings, Vec::new()).unwrap();
    std::thread::scope(|scope| {
        for caller in 0..24 {
            let connection = connect(&client, &server);
            scope.spawn(move || {
                for call in 0..20 {
                    let len = 7 + (caller * call * 977) % 40_000;
                    check_echo(&connection, (caller * 1000 + call) as u64, len).unwrap();
                }
            });
        }
        // One connection, more callers than channels.
        let shared = connect(&client, &server);
        for caller in 0..9 {
            let shared = shared.clone();
            scope.spawn(move || {
                for call in 0..20 {
                    check_echo(&shared, 50_000 + caller * 100 + call, 3000).unwrap();
                }
            });
        }
    });
    assert_eq!(client.stats().calls, 0);
    until("calls that stay at the server", || {
        server.stats().calls == 0
    });
}

#[test]
fn a_page_is_sent_from_where_it_is_and_let_go() {
    let page: Arc<dyn AsRef<[u8]> + Send + Sync> = Arc::new(bytes(5, 100_000));
    let for_server = Arc::clone(&page);
    let server = serve(1, move |call: &mut Call| {
        call.write(vec![1; 4])?;
        call.write(Bytes::from_owner(Arc::clone(&for_server)))?;
        call.write(vec![2; 4])?;
        Ok(())
    });
    let client = client();
    let reply = connect(&client, &server).request(vec![0], 200_000).unwrap();
    assert!(reply[4..100_004] == *(*page).as_ref());
    assert_eq!((&reply[..4], &reply[100_004..]), (&[1; 4][..], &[2; 4][..]));
    until("a page that is kept", || Arc::strong_count(&page) == 2);
}

#[test]
fn codes_reach_the_client_and_a_panic_ends_one_call_only() {
    let server = serve(1, |call: &mut Call| match call.read_to_end(100)?[..] {
        [1] => Err(Abort(-455)),
        [2] => panic!("on purpose"),
        _ => Ok(()),
    });
    let client = client();
    let connection = connect(&client, &server);
    let ends = |request: u8| connection.request(vec![request], 0);
    assert_eq!(ends(1), Err(Error::Ended(End::Aborted(-455))));
    assert_eq!(ends(2), Err(Error::Ended(End::Aborted(code::USER_ABORT))));
    assert_eq!(ends(3), Ok(Vec::new()));
    let too_long = connection.request(vec![9; 200], 0);
    assert_eq!(
        too_long,
        Err(Error::Ended(End::Aborted(code::PROTOCOL_ERROR)))
    );
    let nobody = client.connect(server.address(), SERVICE + 1, Timeouts::default());
    let refused = nobody.request(vec![0], 0);
    assert_eq!(
        refused,
        Err(Error::Ended(End::Aborted(code::INVALID_OPERATION)))
    );
}

#[test]
fn replies_come_from_the_address_that_was_called() {
    let settings = Settings {
        listen: ([0, 0, 0, 0], 0).into(),
        ..Settings::default()
    };
    let (asked, locals) = mpsc::channel();
    let asked = Mutex::new(asked);
    let server = serve_with(&settings, move |call: &mut Call| {
        asked.lock().unwrap().send(call.local()).unwrap();
        echo(call)
    });
    let client = Port::open(&settings, Vec::new()).unwrap();
    for last in [1, 2, 77] {
        let ip = IpAddr::from([127, 0, 0, last]);
        let peer = (ip, server.address().port()).into();
        let connection = client.connect(peer, SERVICE, Timeouts::default());
        check_echo(&connection, 1, 100_000).unwrap();
        assert_eq!(locals.recv().unwrap(), Some(ip));
    }
}

#[test]
fn a_server_calls_back_from_the_port_that_was_called() {
    let server = serve(4, |call: &mut Call| {
        let back = call.connect_back(SERVICE, Timeouts::default());
        let asked = call.read_to_end(100)?;
        call.write(back.request(asked, 100)?)?;
        Ok(())
    });
    let server_address = server.address();
    let handler = move |call: &mut Call| {
        assert_eq!(call.peer(), server_address);
        echo(call)
    };
    let called_back = Service {
        id: SERVICE,
        handler: Arc::new(handler),
    };
    for _ in 0..8 {
        let client = Port::open(&Settings::default(), vec![called_back.clone()]).unwrap();
        check_echo(&connect(&client, &server), 3, 50).unwrap();
    }
}

/// A handler that keeps a connection to its caller, as a file server does for callbacks.
struct Keeps(Mutex<Option<Connection>>);

impl Handler for Keeps {
    fn serve(&self, call: &mut Call) -> Result<(), Abort> {
        let back = call.connect_back(SERVICE, Timeouts::default());
        *self.0.lock().unwrap() = Some(back);
        echo(call)
    }
}

#[test]
fn a_port_that_closes_releases_a_handler_that_keeps_a_connection_of_it() {
    let handler = Arc::new(Keeps(Mutex::default()));
    let released = Arc::downgrade(&handler);
    let service = Service {
        id: SERVICE,
        handler,
    };
    let server = Port::open(&Settings::default(), vec![service]).unwrap();
    let client = Port::open(&Settings::default(), Vec::new()).unwrap();
    check_echo(&connect(&client, &server), 1, 50).unwrap();
    assert!(released.upgrade().unwrap().0.lock().unwrap().is_some());
    let address = server.address();
    drop(server);
    assert!(released.upgrade().is_none(), "the handler is still there");
    let again = Settings {
        listen: address,
        ..Settings::default()
    };
    Port::open(&again, Vec::new()).unwrap();
}

#[test]
fn a_reader_that_does_not_read_holds_the_writer_back() {
    const REPLY: usize = 40_000_000;
    let written = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&written);
    let server = serve(1, move |call: &mut Call| {
        let page = Bytes::from(vec![3; 10_000]);
        while counted.fetch_add(page.len(), Ordering::Relaxed) < REPLY {
            call.write(page.clone())?;
        }
        Ok(())
    });
    let client = client();
    let connection = connect(&client, &server);
    let mut call = connection.call().unwrap();
    call.write(vec![0]).unwrap();
    call.finish().unwrap();
    let first = call.read().unwrap().unwrap();
    // Waits until nothing moves any more: both windows, the inbox and the buffer are full.
    let before = until_it_stands("a writer that goes on", &client, &server, || {
        written.load(Ordering::Relaxed) as u64
    });
    assert!(before < 4_000_000, "{before}");
    let mut read = first.len();
    while let Some(piece) = call.read().unwrap() {
        assert!(piece.as_ref().iter().all(|byte| *byte == 3));
        read += piece.len();
    }
    assert!(read >= REPLY, "{read}");
}

/// Returns a server whose handler reads to the end, and a channel that reports its start and its
/// errors.
fn reading() -> (Port, mpsc::Receiver<Result<(), Error>>) {
    let (tell, heard) = mpsc::channel();
    let tell = Mutex::new(tell);
    let server = serve(1, move |call: &mut Call| {
        let tell = |what| tell.lock().unwrap().send(what).unwrap();
        tell(Ok(()));
        loop {
            match call.read() {
                Ok(Some(_)) => {}
                Ok(None) => return Ok(()),
                Err(e) => {
                    tell(Err(e));
                    return Err(e.into());
                }
            }
        }
    });
    (server, heard)
}

#[test]
fn a_call_that_is_dropped_ends_at_the_server() {
    let ((server, heard), client) = (reading(), client());
    let mut call = connect(&client, &server).call().unwrap();
    call.write(vec![0; 5000]).unwrap();
    assert_eq!(heard.recv_timeout(PATIENCE), Ok(Ok(())));
    drop(call);
    let aborted = Error::Ended(End::Aborted(code::USER_ABORT));
    assert_eq!(heard.recv_timeout(PATIENCE), Ok(Err(aborted)));
}

#[test]
fn a_fifth_call_waits_only_as_long_as_it_may_and_not_for_a_closed_connection() {
    let ((server, heard), client) = (reading(), client());
    let connection = connect(&client, &server);
    let mut calls: Vec<Call> = (0..4)
        .map(|_| {
            let mut call = connection.call_within(Duration::ZERO).unwrap();
            call.write(vec![0; 5000]).unwrap();
            assert_eq!(heard.recv_timeout(PATIENCE), Ok(Ok(())));
            call
        })
        .collect();
    for time in [Duration::ZERO, Duration::from_millis(50)] {
        let late = connection.call_within(time).map(drop);
        assert_eq!(late, Err(Error::Late));
    }
    // No answer is sent before the request ends.
    let late = calls[0].read_by(Some(Instant::now() + Duration::from_millis(50)));
    assert_eq!(late.map(drop), Err(Error::Late));
    // A channel that becomes free is used immediately.
    drop(calls.pop());
    let fourth = connection.call_within(PATIENCE).unwrap();
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let (connection, tell) = (connection.clone(), tell.clone());
            let (begin, begun) = mpsc::channel();
            scope.spawn(move || {
                let task = std::fs::read_link("/proc/thread-self").unwrap();
                begin.send(task).unwrap();
                tell.send(connection.call().map(drop)).unwrap();
            });
            until_asleep(&begun.recv_timeout(PATIENCE).unwrap());
        }
        assert_eq!(told.try_recv(), Err(mpsc::TryRecvError::Empty), "both wait");
        connection.close();
        let closed = Error::Ended(End::Closed);
        for _ in 0..2 {
            assert_eq!(told.recv_timeout(PATIENCE), Ok(Err(closed)));
        }
        assert_eq!(connection.call_within(PATIENCE).map(drop), Err(closed));
        for call in calls.iter_mut() {
            assert_eq!(call.read().map(drop), Err(closed));
        }
    });
    drop((calls, fourth));
    // The server was notified of the end of the dropped call and of the others.
    let mut ended = 0;
    while ended < 4 {
        ended += usize::from(heard.recv_timeout(PATIENCE).unwrap().is_err());
    }
}

#[test]
fn a_port_that_closes_tells_its_clients_to_try_again() {
    let ((server, heard), client) = (reading(), client());
    let mut call = connect(&client, &server).call().unwrap();
    call.write(vec![0; 5000]).unwrap();
    assert_eq!(heard.recv_timeout(PATIENCE), Ok(Ok(())));
    drop(server);
    assert_eq!(heard.recv_timeout(PATIENCE), Ok(Err(Error::Stopped)));
    let ended = Error::Ended(End::Aborted(code::RESTARTING));
    assert_eq!(call.read().unwrap_err(), ended);
    drop(call);
    let orphan = {
        let other = common::client();
        connect(&other, &client)
    };
    assert_eq!(orphan.call().map(drop).unwrap_err(), Error::Stopped);
}

/// Returns an echo server that waits until `together` calls have been served concurrently at some
/// time, the number of calls that it serves now, and the largest number that it served at once.
fn serve_counted(
    settings: &Settings,
    together: usize,
) -> (Port, Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (counts, peak) = (Arc::clone(&now), Arc::clone(&most));
    let server = serve_with(settings, move |call: &mut Call| {
        let running = counts.fetch_add(1, Ordering::SeqCst) + 1;
        peak.fetch_max(running, Ordering::SeqCst);
        until("calls that are served at once", || {
            peak.load(Ordering::SeqCst) >= together
        });
        let result = echo(call);
        counts.fetch_sub(1, Ordering::SeqCst);
        result
    });
    (server, now, most)
}

#[test]
fn more_calls_than_threads_wait_and_are_served() {
    let settings = Settings {
        workers: 2,
        ..Settings::default()
    };
    let (server, _, most) = serve_counted(&settings, 2);
    let client = client();
    std::thread::scope(|scope| {
        for caller in 0..40 {
            let connection = connect(&client, &server);
            scope.spawn(move || check_echo(&connection, caller, 3000).unwrap());
        }
    });
    assert_eq!(most.load(Ordering::SeqCst), 2);
}

#[test]
fn a_host_whose_calls_do_not_end_does_not_stop_the_others() {
    let settings = Settings {
        workers: 8,
        ..Settings::default()
    };
    let (server, now, most) = serve_counted(&settings, 1);
    let host = |last| {
        let settings = Settings {
            listen: ([127, 0, 0, last], 0).into(),
            ..Settings::default()
        };
        Port::open(&settings, Vec::new()).unwrap()
    };
    let (slow, other) = (host(21), host(22));
    let connections = [(); 5].map(|()| connect(&slow, &server));
    let mut calls = Vec::new();
    for connection in &connections {
        for _ in 0..4 {
            let mut call = connection.call().unwrap();
            call.write(vec![7; 5000]).unwrap();
            calls.push(call);
        }
    }
    until("all requests have begun", || server.stats().calls == 20);
    until("some are served", || now.load(Ordering::SeqCst) >= 5);
    let timeouts = Timeouts {
        hard: Some(PATIENCE / 2),
        ..Timeouts::default()
    };
    let connection = other.connect(server.address(), SERVICE, timeouts);
    for round in 0..20 {
        check_echo(&connection, round, 3000).unwrap();
    }
    assert!(now.load(Ordering::SeqCst) == 5 && most.load(Ordering::SeqCst) == 6);
    // Waiting calls are served as soon as the calls before them end.
    for call in &mut calls {
        call.finish().unwrap();
    }
    for mut call in calls {
        assert_eq!(call.read_to_end(5000).unwrap(), [7; 5000]);
    }
}

#[test]
fn a_long_piece_is_not_taken_before_there_is_room() {
    const PIECE: usize = 512 * 1024;
    const LIMIT: usize = 100_000;
    let settings = Settings {
        rx: rx::Config {
            send_bytes_max: LIMIT,
            ..rx::Config::default()
        },
        ..Settings::default()
    };
    let begun = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&begun);
    let server = serve_with(&settings, move |call: &mut Call| {
        call.read_to_end(10)?;
        counts.fetch_add(1, Ordering::SeqCst);
        call.write(vec![3; PIECE])?;
        Ok(())
    });
    let client = client();
    let connections = [(); 2].map(|()| connect(&client, &server));
    let ask = |n: usize| {
        let mut call = connections[n / 4].call().unwrap();
        call.write(vec![0]).unwrap();
        call.finish().unwrap();
        call
    };
    let calls: Vec<Call> = (0..8).map(ask).collect();
    until("all are served", || begun.load(Ordering::SeqCst) == 8);
    let before = until_it_stands("writers that go on", &client, &server, || {
        server.stats().unacknowledged
    });
    // Each call may have sixteen packets above the limit, and a slice of 16 KiB.
    let most = LIMIT + 8 * (16 * 1412 + 16 * 1024);
    assert!(before <= most as u64, "{before}");
    for mut call in calls {
        assert!(call.read_to_end(PIECE).unwrap() == vec![3; PIECE]);
    }
}

#[test]
fn a_port_that_is_taken_is_not_shared() {
    let server = serve(2, echo);
    let settings = Settings {
        listen: server.address(),
        sockets: 2,
        ..Settings::default()
    };
    let taken = Port::open(&settings, Vec::new()).map(drop).unwrap_err();
    assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
}

#[test]
fn calls_go_over_ipv6() {
    let settings = Settings {
        listen: "[::1]:0".parse().unwrap(),
        ..Settings::default()
    };
    let server = serve_with(&settings, echo);
    let client = Port::open(&settings, Vec::new()).unwrap();
    check_echo(&connect(&client, &server), 1, 300_000).unwrap();
}
