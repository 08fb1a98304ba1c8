//! Clients that do not answer, and the limits on their cost to other clients.

mod common;

use afs_proto::cb::{self, InterfaceAddr};
use afs_proto::fs::{AfsStoreStatus, Reply, Request};
use afs_proto::{Abort, AfsFid, CallBackType, List, Reader, Uuid, prefix, to_bytes};
use afs_server::Config;
use common::{Cell, PATIENCE, config};
use rx::{Call, Port, Service, Settings, Timeouts};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Decides whether a call is answered.
type Answers = fn(&cb::Request) -> bool;

/// Client that answers selected calls.
struct Stranger {
    port: Port,
    server: std::net::SocketAddr,
    /// Number of times that it was told that all promises have ended.
    ended: Arc<AtomicUsize>,
    /// Calls that it answers.
    answers: Arc<Mutex<Answers>>,
}

impl Stranger {
    fn new(cell: &Cell, answers: Answers) -> Stranger {
        Stranger::at(Ipv4Addr::LOCALHOST, cell, answers)
    }

    fn at(address: Ipv4Addr, cell: &Cell, answers: Answers) -> Stranger {
        let (ended, answers) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(answers)));
        let (told, asked) = (Arc::clone(&ended), Arc::clone(&answers));
        let serve = move |call: &mut Call| {
            let bytes = call.read_to_end(4096)?;
            let (request, _) = prefix::<cb::Request>(&bytes).expect("a request");
            while !asked.lock().expect("a function")(&request) {
                std::thread::sleep(Duration::from_millis(5));
            }
            if matches!(request, cb::Request::InitCallBackState3 { .. }) {
                told.fetch_add(1, Ordering::Relaxed);
            }
            let mut bytes = Vec::new();
            answer(&request).write(&mut bytes);
            Ok(call.write(bytes)?)
        };
        let service = Service {
            id: cb::SERVICE,
            handler: Arc::new(serve),
        };
        let mut stranger = Stranger::with(address, cell, vec![service]);
        (stranger.ended, stranger.answers) = (ended, answers);
        stranger
    }

    /// Creates a client with the given services.
    fn with(address: Ipv4Addr, cell: &Cell, services: Vec<Service>) -> Stranger {
        let settings = Settings {
            listen: (address, 0).into(),
            ..Settings::default()
        };
        Stranger {
            port: Port::open(&settings, services).expect("a port"),
            server: cell.server.file_service(),
            ended: Arc::default(),
            answers: Arc::new(Mutex::new(ALL)),
        }
    }

    fn start(&self, request: &Request<'_>) -> Call {
        let (server, timeouts) = (self.server, Timeouts::default());
        let connection = self.port.connect(server, afs_proto::fs::SERVICE, timeouts);
        let mut call = connection.call().expect("a call");
        call.write(to_bytes(request)).expect("written");
        call.finish().expect("sent");
        call
    }

    fn ask(&self, request: &Request<'_>) -> Result<Vec<u8>, Abort> {
        match self.start(request).read_to_end(1 << 20) {
            Ok(bytes) => Ok(bytes),
            Err(rx::Error::Ended(rx::End::Aborted(code))) => Err(Abort(code)),
            Err(error) => panic!("a call broke: {error}"),
        }
    }

    /// Fetches the status of a file and returns the kind of the promise.
    fn look(&self, fid: AfsFid) -> Result<CallBackType, Abort> {
        let request = Request::FetchStatus { fid };
        let bytes = self.ask(&request)?;
        let mut from = Reader::new(&bytes);
        match afs_proto::fs::read_reply(request.opcode(), &mut from).expect("a reply") {
            Reply::FetchStatus { callback, .. } => Ok(callback.kind),
            other => panic!("{other:?}"),
        }
    }

    /// Fetches the status until the server no longer answers `VBUSY`.
    fn look_again(&self, fid: AfsFid) -> CallBackType {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.look(fid) {
                Ok(kind) => return kind,
                Err(code) => assert_eq!(code, Abort::VBUSY),
            }
            assert!(Instant::now() < until, "it is not served");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        // Dropping the port waits for its handlers, so let them answer.
        *self.answers.lock().expect("a function") = ALL;
    }
}

fn answer(request: &cb::Request) -> cb::Reply {
    match request {
        cb::Request::CallBack { .. } => cb::Reply::CallBack {},
        cb::Request::InitCallBackState3 { .. } => cb::Reply::InitCallBackState3 {},
        cb::Request::TellMeAboutYourself {} => cb::Reply::TellMeAboutYourself {
            address: InterfaceAddr {
                uuid: Uuid([9; 16]),
                interfaces: List::new(Vec::new()).expect("none"),
            },
            capabilities: List::new(Vec::new()).expect("none"),
        },
        other => panic!("a client was asked {other:?}"),
    }
}

const ALL: fn(&cb::Request) -> bool = |_| true;
const NONE: fn(&cb::Request) -> bool = |_| false;
const NO_CHANGES: fn(&cb::Request) -> bool = |r| !matches!(r, cb::Request::CallBack { .. });

/// Goal: known clients are served while the server waits for an unknown one that makes as many
/// calls as there are threads, from one port or from many.
#[test]
fn a_stranger_who_does_not_answer_holds_no_more_than_half_of_the_threads() {
    // Exceeds the duration of the test: a call that waits for the unknown client would fail it.
    let long = Duration::from_secs(3600);
    let cell = Cell::with(Config {
        answer_time: long,
        ..config()
    });
    let client = cell.client();
    client.status(client.root).expect("served");
    let request = Request::FetchStatus { fid: client.root };
    let strangers: Vec<_> = (0..20).map(|_| Stranger::new(&cell, NONE)).collect();
    let one = (0..40).map(|_| &strangers[0]);
    let calls: Vec<Call> = one.chain(&strangers).map(|s| s.start(&request)).collect();
    for n in 0..20 {
        client
            .create(client.root, &format!("f{n}"))
            .expect("served");
    }
    drop(calls);
}

/// Goal: known clients are served while unknown ones, at more addresses than there are threads,
/// have stalled in the middle of sending data; and the stalled calls end.
#[test]
fn strangers_who_do_not_send_hold_no_more_than_half_of_the_threads() {
    const STRANGERS: u8 = 24;
    let cell = Cell::new();
    let client = cell.client();
    let made = (0..STRANGERS).map(|n| client.create(client.root, &format!("f{n}")));
    let fids: Vec<AfsFid> = made.map(|made| made.expect("made").0).collect();
    let strangers = fids.iter().zip(1..).map(|(fid, n)| {
        let stranger = Stranger::at(Ipv4Addr::new(127, 0, 1, n), &cell, ALL);
        stranger.look(*fid).expect("served");
        stranger
    });
    let strangers: Vec<Stranger> = strangers.collect();
    let store = |stranger: &Stranger, fid: AfsFid| {
        let (server, timeouts) = (stranger.server, Timeouts::default());
        let connection = stranger
            .port
            .connect(server, afs_proto::fs::SERVICE, timeouts);
        let mut call = connection.call().expect("a call");
        let mut bytes = to_bytes(&Request::StoreData64 {
            fid,
            wanted: AfsStoreStatus::default(),
            position: 0,
            length: 1 << 20,
            file_length: 1 << 20,
        });
        bytes.extend([7; 4096]);
        call.write(bytes).expect("written");
        call
    };
    let begun = Instant::now();
    let pairs = strangers.iter().zip(&fids);
    let mut calls: Vec<Call> = pairs.map(|(s, fid)| store(s, *fid)).collect();
    let (done, served) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for n in 0..20 {
            let name = format!("g{n}");
            client.create(client.root, &name).expect("served");
        }
        done.send(()).expect("somebody waits");
    });
    served.recv_timeout(PATIENCE).expect("others are served");
    let mut codes = Vec::new();
    for call in &mut calls {
        match call.read_by(Some(begun + 3 * PATIENCE)) {
            Err(rx::Error::Ended(rx::End::Aborted(code))) => codes.push(code),
            other => panic!("{other:?}"),
        }
    }
    let late = codes.iter().filter(|c| **c == rx::code::CALL_TIMEOUT);
    assert!(late.count() <= 8, "{codes:?}");
    assert!(codes.contains(&Abort::VBUSY.0), "{codes:?}");
}

/// Goal: an unreachable client is detected by one call, however many clients change files it
/// watches.
#[test]
fn many_who_change_files_wait_for_a_dead_client_together() {
    const WRITERS: usize = 12;
    let cell = Cell::with(Config {
        answer_time: Duration::from_millis(500),
        ..config()
    });
    let clients: Vec<_> = (0..WRITERS).map(|_| cell.client()).collect();
    let fids: Vec<AfsFid> = (0..WRITERS)
        .map(|n| {
            let made = clients[n].create(clients[n].root, &format!("f{n}"));
            made.expect("made").0
        })
        .collect();
    let dead = Stranger::new(&cell, ALL);
    for fid in &fids {
        assert_eq!(dead.look(*fid), Ok(CallBackType::Shared));
    }
    let before = cell.server.stats().counts.breaks;
    *dead.answers.lock().expect("a function") = NONE;
    std::thread::scope(|scope| {
        for (client, fid) in clients.iter().zip(&fids) {
            scope.spawn(|| client.store(*fid, 0, b"x", 1).expect("stored"));
        }
    });
    assert_eq!(cell.server.stats().counts.breaks - before, 1);
}

/// Goal: a client that answers identity queries but no breaks delays others by the answer time
/// twice, and then not at all for a while.
#[test]
fn who_never_hears_of_changes_is_served_without_promises() {
    let cell = Cell::with(Config {
        answer_time: Duration::from_millis(300),
        ..config()
    });
    let writer = cell.client();
    let (fid, _) = writer.create(writer.root, "file").expect("made");
    let reader = Stranger::new(&cell, NO_CHANGES);
    let before = cell.server.stats().counts.breaks;
    let promised: Vec<_> = (0..6_u8)
        .map(|n| {
            let promised = reader.look_again(fid);
            writer.store(fid, 0, &[n], 1).expect("stored");
            promised
        })
        .collect();
    assert_eq!(cell.server.stats().counts.breaks - before, 2);
    assert_eq!(promised[..2], [CallBackType::Shared; 2]);
    assert_eq!(promised[2..], [CallBackType::Dropped; 4]);
}

/// Goal: a client that may trust ended promises gets `VBUSY` until it was told of their end.
#[test]
fn who_may_trust_old_promises_is_not_served_before_it_is_told() {
    let cell = Cell::with(Config {
        answer_time: Duration::from_millis(300),
        ..config()
    });
    let writer = cell.client();
    let (fid, _) = writer.create(writer.root, "file").expect("made");
    // A client that missed a break.
    let lost = Stranger::new(&cell, ALL);
    assert_eq!(lost.look(fid), Ok(CallBackType::Shared));
    *lost.answers.lock().expect("a function") = NONE;
    writer.store(fid, 0, b"x", 1).expect("stored");
    // A client unknown to the server, which has just been started.
    let unknown = Stranger::new(&cell, NONE);
    for stranger in [&lost, &unknown] {
        assert_eq!(stranger.look(fid), Err(Abort::VBUSY));
        assert!(stranger.ask(&Request::GetTime {}).is_ok());
        let before = stranger.ended.load(Ordering::Relaxed);
        *stranger.answers.lock().expect("a function") = ALL;
        assert_eq!(stranger.look_again(fid), CallBackType::Shared);
        assert!(stranger.ended.load(Ordering::Relaxed) > before);
    }
}

#[test]
fn who_can_trust_nothing_old_is_served_without_promises() {
    let cell = Cell::with(Config {
        answer_time: Duration::from_millis(200),
        promise_seconds: 1,
        ..config()
    });
    let writer = cell.client();
    let (fid, _) = writer.create(writer.root, "file").expect("made");
    let mute = Stranger::new(&cell, NONE);
    assert_eq!(mute.look_again(fid), CallBackType::Dropped);
}

/// Goal: stateless programs without a callback service are served from the first call on.
#[test]
fn who_does_not_know_callbacks_is_served_at_once_without_promises() {
    let cell = Cell::new();
    let no_state = |call: &mut Call| {
        let bytes = call.read_to_end(4096)?;
        let (request, _) = prefix::<cb::Request>(&bytes).expect("a request");
        if matches!(request, cb::Request::InitCallBackState3 { .. }) {
            return Err(rx::Abort(Abort::RXGEN_OPCODE.0));
        }
        let mut bytes = Vec::new();
        answer(&request).write(&mut bytes);
        Ok(call.write(bytes)?)
    };
    let service = Service {
        id: cb::SERVICE,
        handler: Arc::new(no_state),
    };
    for services in [Vec::new(), vec![service]] {
        let stranger = Stranger::with(Ipv4Addr::LOCALHOST, &cell, services);
        for _ in 0..3 {
            assert_eq!(stranger.look(cell.root()), Ok(CallBackType::Dropped));
        }
    }
}

/// Goal: a liveness probe suffices for a client to be told that its promises have ended.
#[test]
fn a_client_that_asks_for_the_time_is_told_that_promises_are_over() {
    let cell = Cell::new();
    let client = Stranger::new(&cell, ALL);
    assert!(client.ask(&Request::GetTime {}).is_ok());
    assert_eq!(client.ended.load(Ordering::Relaxed), 1);
}
