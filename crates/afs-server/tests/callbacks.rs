//! Callbacks: which clients are notified of changes, when, and how unresponsive ones are handled.

mod common;

use afs_proto::fs::{Reply, Request};
use afs_proto::{AfsCbs, AfsFid, CallBackType, List};
use afs_server::Config;
use block::BlockDevice;
use block_testing::Mem;
use common::{Cell, Client, PATIENCE, config};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Operation, and the files of which other clients are notified.
type Change<'c> = (&'c dyn Fn(), &'c [AfsFid]);

/// Creates a file in the root.
fn file(client: &Client, name: &str) -> AfsFid {
    client.create(client.root, name).expect("made").0
}

/// The file system keeps its device, with the record on it that it is in use.
#[test]
fn a_server_that_ends_releases_the_file_system_after_clients_have_called() {
    let cell = Cell::new();
    let client = cell.client();
    file(&client, "file");
    client.bulk(&[client.root]).expect("there");
    let Cell { server, fs } = cell;
    assert!(Arc::strong_count(&fs) > 1);
    drop(server);
    assert_eq!(Arc::strong_count(&fs), 1, "the server still holds it");
}

#[test]
fn others_are_told_before_a_change_is_answered() {
    let cell = Cell::new();
    let (writer, reader) = (cell.client(), cell.client());
    let (root, fid) = (writer.root, file(&writer, "file"));
    let (dir, _) = writer.make_dir(root, "dir").expect("made");
    let watch = || {
        let (statuses, promises) = reader.bulk(&[root, fid, dir]).expect("there");
        assert!(
            promises
                .iter()
                .all(|promise| promise.kind == CallBackType::Shared)
        );
        assert!(statuses.iter().all(|status| status.error_code.0 == 0));
        writer.bulk(&[root, fid, dir]).expect("there");
    };
    // Each change, and the files whose promises it breaks.
    let changes: [Change<'_>; 7] = [
        (
            &|| {
                writer.store(fid, 0, b"new", 3).expect("stored");
            },
            &[fid],
        ),
        (
            &|| {
                writer.set(fid, afs_client::ANY).expect("set");
            },
            &[fid],
        ),
        (
            &|| {
                writer.create(dir, "a").expect("made");
            },
            &[dir],
        ),
        (
            &|| {
                writer.link(root, "more", fid).expect("linked");
            },
            &[root, fid],
        ),
        (
            &|| {
                writer
                    .rename((root, "more"), (root, "most"))
                    .expect("renamed");
            },
            &[root],
        ),
        (
            &|| {
                writer.remove(root, "most").expect("removed");
            },
            &[root, fid],
        ),
        (
            &|| {
                writer.remove(dir, "a").expect("removed");
            },
            &[dir],
        ),
    ];
    for (at, (change, expected)) in changes.iter().enumerate() {
        watch();
        reader.ears.take();
        change();
        let mut told = reader.ears.take();
        told.sort_unstable();
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        assert_eq!(told, expected, "change {at}");
        // A promise covers a single change.
        change_again(&writer, root, at);
        assert_eq!(reader.ears.take(), [], "change {at}");
    }
    // The writer is notified of one file: the one that kept one of its two names.
    assert_eq!(writer.ears.take(), [fid]);
}

/// Changes a file for which no promise is left.
fn change_again(writer: &Client, root: AfsFid, n: usize) {
    let fid = writer.lookup(root, "file").expect("there");
    if n < 2 {
        writer.store(fid, 0, b"newer", 5).expect("stored");
    }
}

#[test]
fn who_changes_is_told_of_what_the_answer_does_not_say() {
    let cell = Cell::new();
    let writer = cell.client();
    let (root, fid) = (writer.root, file(&writer, "file"));
    let other = file(&writer, "other");
    let (dir, _) = writer.make_dir(root, "dir").expect("made");
    let (below, _) = writer.make_dir(root, "below").expect("made");
    let link = || {
        writer.link(root, "link", fid).expect("linked");
    };
    // One of two names of a file is removed or replaced by another file; a directory is moved.
    let changes: [Change<'_>; 4] = [
        (
            &|| {
                link();
                writer.remove(root, "link").expect("removed");
            },
            &[fid],
        ),
        (
            &|| {
                link();
                writer
                    .rename((root, "other"), (root, "link"))
                    .expect("renamed");
            },
            &[fid],
        ),
        (
            &|| {
                writer
                    .rename((root, "below"), (dir, "below"))
                    .expect("renamed");
            },
            &[below],
        ),
        (
            &|| {
                writer.remove(root, "file").expect("removed");
            },
            &[],
        ),
    ];
    for (at, (change, expected)) in changes.iter().enumerate() {
        writer.bulk(&[root, fid, other, dir, below]).expect("there");
        writer.ears.take();
        change();
        assert_eq!(writer.ears.take(), *expected, "change {at}");
    }
}

#[test]
fn who_may_not_have_seen_the_promise_yet_is_told_again() {
    let cell = Cell::with(Config {
        tell_again: Duration::from_millis(50),
        ..config()
    });
    let (writer, reader) = (cell.client(), cell.client());
    let fid = file(&writer, "file");
    reader.status(fid).expect("there");
    reader.ears.take();
    writer.store(fid, 0, b"new", 3).expect("stored");
    let end = Instant::now() + PATIENCE;
    let mut told = Vec::new();
    while told.len() < 2 {
        told.extend(reader.ears.take());
        assert!(Instant::now() < end, "it was told once: {told:?}");
        std::thread::yield_now();
    }
    assert_eq!(told, [fid, fid]);
}

#[test]
fn who_gave_up_a_promise_is_not_told() {
    let cell = Cell::new();
    let (writer, reader) = (cell.client(), cell.client());
    let (one, other) = (file(&writer, "one"), file(&writer, "other"));
    reader.bulk(&[one, other]).expect("there");
    let request = Request::GiveUpCallBacks {
        fids: List::new(vec![one]).expect("one"),
        callbacks: AfsCbs::new(Vec::new()).expect("none"),
    };
    let answer = reader.ask(&request).expect("given up");
    assert_eq!(answer.reply(), Reply::GiveUpCallBacks {});
    writer.store(one, 0, b"x", 1).expect("stored");
    writer.store(other, 0, b"x", 1).expect("stored");
    assert_eq!(reader.ears.take(), [other]);
    reader.bulk(&[one, other]).expect("there");
    reader
        .ask(&Request::GiveUpAllCallBacks {})
        .expect("given up");
    writer.store(one, 0, b"y", 1).expect("stored");
    assert_eq!(reader.ears.take(), []);
}

#[test]
fn a_client_is_asked_once_who_it_is_and_told_that_old_promises_are_over() {
    let device: Arc<dyn BlockDevice> = Arc::new(Mem::new(64 << 20, 4096));
    common::format(&device);
    for _ in 0..2 {
        let cell = Cell::on(&device, config());
        let client = cell.client();
        for _ in 0..3 {
            client.status(client.root).expect("there");
        }
        let told = client.ears.told.lock().expect("told");
        assert_eq!((told.asked, told.ended), (1, 1));
    }
}

/// Goal: an unresponsive client delays one writer by the answer time, and no other client after
/// that. On its next call it is told that its promises have ended, before it gets an answer.
#[test]
fn a_dead_client_delays_one_change_and_is_told_when_it_is_back() {
    let cell = Cell::with(afs_server::Config {
        answer_time: Duration::from_millis(300),
        ..config()
    });
    let (writer, dead) = (cell.client(), cell.client());
    let fids: Vec<AfsFid> = (0..20).map(|n| file(&writer, &format!("f{n}"))).collect();
    dead.bulk(&fids).expect("there");
    dead.ears.deaf.store(true, Ordering::Relaxed);
    for fid in &fids {
        writer.store(*fid, 0, b"x", 1).expect("stored");
    }
    let stats = cell.server.stats();
    assert_eq!(stats.counts.breaks, 1, "{stats:?}");
    let ended = || dead.ears.told.lock().expect("told").ended;
    dead.ears.deaf.store(false, Ordering::Relaxed);
    let before = ended();
    let (_, promise) = dead.status_and_promise(fids[0]).expect("there");
    assert_eq!(promise.kind, CallBackType::Shared);
    assert!(ended() > before);
    dead.ears.take();
    writer.store(fids[0], 0, b"y", 1).expect("stored");
    assert_eq!(dead.ears.take(), [fids[0]]);
}

/// Goal: a client whose answer was lost learns that its promises have ended, without calling the
/// server.
#[test]
fn a_client_whose_answer_was_lost_is_told_without_a_call() {
    let cell = Cell::with(afs_server::Config {
        answer_time: Duration::from_millis(300),
        ..config()
    });
    let (writer, reader) = (cell.client(), cell.client());
    let fid = file(&writer, "file");
    reader.status(fid).expect("there");
    reader.ears.deaf.store(true, Ordering::Relaxed);
    writer.store(fid, 0, b"x", 1).expect("stored");
    let before = reader.ears.told.lock().expect("told").ended;
    reader.ears.deaf.store(false, Ordering::Relaxed);
    reader.ears.wait(|told| told.ended > before);
    // It may have promises again once it has identified itself.
    reader.ears.take();
    reader.status_and_promise(fid).expect("there");
    writer.store(fid, 0, b"y", 1).expect("stored");
    assert_eq!(reader.ears.take(), [fid]);
}

/// Goal: a terminated client costs far less than a silent one, because the network reports that its
/// port is closed. Clients that answer are not affected.
#[test]
fn a_client_that_has_ended_delays_a_change_by_less_than_a_silent_one() {
    // Exceeds the duration of the test.
    let answer_time = Duration::from_secs(3600);
    let cell = Cell::with(afs_server::Config {
        answer_time,
        ..config()
    });
    let (writer, reader) = (cell.client(), cell.client());
    let ended: Vec<Client> = (0..3).map(|_| cell.client()).collect();
    let fid = file(&writer, "file");
    for client in ended.iter().chain([&reader]) {
        client.status(fid).expect("there");
    }
    drop(ended);
    writer.store(fid, 0, b"x", 1).expect("stored");
    assert_eq!(reader.ears.take(), [fid]);
}

#[test]
fn many_clients_are_told_at_once() {
    let cell = Cell::new();
    let writer = cell.client();
    let readers: Vec<Client> = (0..40).map(|_| cell.client()).collect();
    let fid = file(&writer, "file");
    for round in 0..5_u8 {
        for reader in &readers {
            reader.status(fid).expect("there");
        }
        writer.store(fid, 0, &[round], 1).expect("stored");
        for reader in &readers {
            assert_eq!(reader.ears.take(), [fid]);
            assert_eq!(reader.fetch(fid, 0, 1).expect("fetched").0, [round]);
        }
    }
}

#[test]
fn clients_that_do_not_answer_are_all_called_before_one_is_given_up() {
    // Exceeds the duration of the test.
    let cell = Cell::with(afs_server::Config {
        answer_time: Duration::from_secs(3600),
        ..config()
    });
    let writer = cell.client();
    let readers: Vec<Client> = (0..15).map(|_| cell.client()).collect();
    let fid = file(&writer, "file");
    for reader in &readers {
        reader.status(fid).expect("there");
        reader.ears.deaf.store(true, Ordering::Relaxed);
    }
    std::thread::scope(|scope| {
        scope.spawn(|| writer.store(fid, 0, b"x", 1).expect("stored"));
        let end = Instant::now() + PATIENCE;
        let called = || readers.iter().filter(|r| r.ears.held() > 0).count();
        let all = loop {
            let called = called();
            if called == readers.len() || Instant::now() > end {
                break called;
            }
            std::thread::yield_now();
        };
        // Let them answer, so that the writer returns even if the test fails.
        for reader in &readers {
            reader.ears.deaf.store(false, Ordering::Relaxed);
        }
        assert_eq!(all, readers.len(), "called at once");
    });
}

/// Goal: fifteen unreachable clients delay one writer by the documented time once, not fifteen
/// times. Other writers of files that they watched wait no longer, neither at the same time nor
/// later. On its next call each is told that its promises have ended, before it gets an answer.
#[test]
fn many_dead_clients_delay_one_change_together() {
    let answer_time = Duration::from_secs(2);
    let cell = Cell::with(afs_server::Config {
        answer_time,
        ..config()
    });
    let writers = [cell.client(), cell.client(), cell.client()];
    let fids: Vec<AfsFid> = (0..6)
        .map(|n| file(&writers[0], &format!("f{n}")))
        .collect();
    let dead: Vec<Client> = (0..15).map(|_| cell.client()).collect();
    let silence = |on: bool| {
        let each = |client: &Client| client.ears.deaf.store(on, Ordering::Relaxed);
        dead.iter().for_each(each);
    };
    for client in &dead {
        client.bulk(&fids).expect("there");
    }
    silence(true);
    std::thread::scope(|scope| {
        for (writer, fids) in writers.iter().zip(fids.chunks(2)) {
            scope.spawn(move || {
                for fid in fids {
                    writer.store(*fid, 0, b"x", 1).expect("stored");
                }
            });
        }
    });
    let breaks = cell.server.stats().counts.breaks;
    // Each of the three writers may detect each client; the creator of the files gets four breaks.
    assert!(breaks <= 15 * 3 + 4, "{breaks} calls");
    for fid in &fids {
        writers[0].store(*fid, 0, b"y", 1).expect("stored");
    }
    assert_eq!(
        cell.server.stats().counts.breaks,
        breaks,
        "who is gone is not told"
    );
    silence(false);
    for client in &dead {
        let ended = || client.ears.told.lock().expect("told").ended;
        let before = ended();
        let (_, promise) = client.status_and_promise(fids[0]).expect("there");
        assert_eq!(promise.kind, CallBackType::Shared);
        assert!(ended() > before, "it was not told that promises are over");
    }
    writers[0].store(fids[0], 0, b"z", 1).expect("stored");
    for client in &dead {
        // Preceded by breaks from its silent period, if they arrived.
        assert_eq!(client.ears.take().last(), Some(&fids[0]));
    }
}

/// Goal: concurrent changes of files that all clients watch do not deadlock.
#[test]
fn changes_of_what_all_watch_do_not_wait_for_each_other() {
    let cell = Cell::new();
    let clients: Vec<Client> = (0..12).map(|_| cell.client()).collect();
    let fids: Vec<AfsFid> = (0..12)
        .map(|n| file(&clients[0], &format!("f{n}")))
        .collect();
    std::thread::scope(|scope| {
        for (writer, fid) in clients.iter().zip(&fids) {
            let fids = &fids;
            scope.spawn(move || {
                for round in 0..30_u8 {
                    writer.bulk(fids).expect("there");
                    writer.store(*fid, 0, &[round], 1).expect("stored");
                }
            });
        }
    });
    for fid in &fids {
        assert_eq!(clients[0].fetch(*fid, 0, 1).expect("there").0, [29]);
    }
}
