//! Malformed calls: truncated, with altered bytes, of nonexistent procedures.
//!
//! Goal: each call ends with a reply or an abort, and the server still serves clients afterwards.

mod common;

use afs_client::ANY;
use afs_proto::fs::{AfsStoreVolumeStatus, LockType, PROCEDURES, Request};
use afs_proto::{Abort, AfsCbs, AfsFid, List, Message, Name, Opaque, Path, to_bytes};
use block_testing::Random;
use common::{Cell, Client, PATIENCE, seed};
use rx::{End, code};
use std::time::Instant;

/// Returns a request of each procedure for existing files.
fn requests(root: AfsFid, file: AfsFid) -> Vec<Vec<u8>> {
    let name = |name: &'static [u8]| Name::new(name).expect("a name");
    let fids = || List::new(vec![file, root]).expect("two");
    let none = Message::new(b"").expect("empty");
    let (directory, wanted, volume) = (root, ANY, root.volume);
    let (old_directory, new_directory) = (root, root);
    let all = [
        Request::FetchData {
            fid: file,
            position: 0,
            length: 9,
        },
        Request::FetchACL { fid: root },
        Request::FetchStatus { fid: file },
        Request::StoreData {
            fid: file,
            wanted,
            position: 0,
            length: 0,
            file_length: 0,
        },
        Request::StoreACL {
            fid: root,
            access_list: Opaque::new(b"0\n0\n!").expect("short"),
        },
        Request::StoreStatus { fid: file, wanted },
        Request::RemoveFile {
            directory,
            name: name(b"none"),
        },
        Request::CreateFile {
            directory,
            name: name(b"some"),
            wanted,
        },
        Request::Rename {
            old_directory,
            old_name: name(b"some"),
            new_directory,
            new_name: name(b"more"),
        },
        Request::Symlink {
            directory,
            name: name(b"link"),
            contents: Path::new(b"x").expect("short"),
            wanted,
        },
        Request::Link {
            directory,
            name: name(b"linked"),
            existing: file,
        },
        Request::MakeDir {
            directory,
            name: name(b"dir"),
            wanted,
        },
        Request::RemoveDir {
            directory,
            name: name(b"dir"),
        },
        Request::GetStatistics {},
        Request::GiveUpCallBacks {
            fids: fids(),
            callbacks: AfsCbs::new(Vec::new()).expect("none"),
        },
        Request::GetVolumeInfo {
            volume_name: name(b"root.cell"),
        },
        Request::GetVolumeStatus { volume },
        Request::SetVolumeStatus {
            volume,
            wanted: AfsStoreVolumeStatus {
                min_quota: None,
                max_quota: Some(-1),
            },
            name: name(b""),
            offline_message: none,
            motd: none,
        },
        Request::GetRootVolume {},
        Request::GetTime {},
        Request::BulkStatus { fids: fids() },
        Request::SetLock {
            fid: file,
            lock: LockType::Extend,
        },
        Request::ExtendLock { fid: file },
        Request::ReleaseLock { fid: file },
        Request::Lookup {
            directory,
            name: name(b"file"),
        },
        Request::FlushCPS {
            ids: List::new(vec![1]).expect("one"),
            addresses: List::new(Vec::new()).expect("none"),
            spare1: 0,
        },
        Request::InlineBulkStatus { fids: fids() },
        Request::FetchData64 {
            fid: root,
            position: 1,
            length: u64::MAX,
        },
        Request::StoreData64 {
            fid: file,
            wanted,
            position: 0,
            length: 0,
            file_length: 0,
        },
        Request::GiveUpAllCallBacks {},
        Request::GetCapabilities {},
        Request::GetStatistics64 { version: 16 },
    ];
    assert_eq!(all.len(), PROCEDURES.len(), "one of each procedure");
    all.iter().map(to_bytes).collect()
}

fn still_serves(client: &Client, file: AfsFid) {
    let (data, ..) = client.fetch(file, 0, 100).expect("served");
    assert!(data.is_empty() || data == b"text");
    client.store(file, 0, b"text", 4).expect("served");
}

#[test]
fn a_request_that_is_cut_short_or_changed_ends_and_harms_no_other() {
    let cell = Cell::new();
    let client = cell.client();
    let (file, _) = client.create(client.root, "file").expect("made");
    let mut random = Random::new(seed(1));
    for good in requests(client.root, file) {
        for cut in (0..good.len()).step_by(4) {
            let code = client.exchange(good[..cut].to_vec(), &[], 1 << 20);
            let expected = match cut {
                0 => Abort::RXGEN_DECODE,
                _ => Abort::RXGEN_SS_UNMARSHAL,
            };
            assert_eq!(code, Err(expected), "{cut} of {good:?}");
        }
        for _ in 0..30 {
            let mut bad = good.clone();
            for _ in 0..=random.below(3) {
                let at = random.below(bad.len() as u64) as usize;
                bad[at] = random.next_u64() as u8;
            }
            // Some of these are valid; none may hang, whatever data length it announces.
            let _ = client.exchange(bad, &[0; 100], 64 << 20);
        }
        let mut surplus = good.clone();
        surplus.extend([0xff; 5000]);
        let _ = client.exchange(surplus, &[], 64 << 20);
    }
    for opcode in [0_u32, 129, 143, 163, 65_541, 2_318_305_322, u32::MAX] {
        let code = client.exchange(opcode.to_be_bytes().to_vec(), &[0; 40], 1 << 20);
        assert_eq!(code, Err(Abort::RXGEN_OPCODE), "{opcode}");
    }
    // A mutated request may have removed the file.
    let (file, _) = client.create(client.root, "fresh").expect("made");
    still_serves(&client, file);
}

#[test]
fn data_that_ends_early_leaves_the_file_readable() {
    let cell = Cell::new();
    let client = cell.client();
    let (file, _) = client.create(client.root, "file").expect("made");
    let request = Request::StoreData64 {
        fid: file,
        wanted: ANY,
        position: 0,
        length: 5 << 20,
        file_length: 0,
    };
    let short = client.exchange(to_bytes(&request), &vec![7; 2 << 20], 4096);
    assert_eq!(short, Err(Abort::RXGEN_SS_UNMARSHAL));
    let (data, ..) = client.fetch(file, 0, 16 << 20).expect("served");
    assert!(data.iter().all(|byte| *byte == 7));
    client.store(file, 0, b"text", 4).expect("served");
    let (data, ..) = client.fetch(file, 0, 4).expect("served");
    assert_eq!(data, b"text");
}

#[test]
fn a_request_whose_end_does_not_come_gives_its_thread_back() {
    let cell = Cell::new();
    let client = cell.client();
    let (file, _) = client.create(client.root, "file").expect("made");
    let long = [b'x'; 1000];
    let message = Message::new(&long).expect("long");
    let request = Request::SetVolumeStatus {
        volume: client.root.volume,
        wanted: AfsStoreVolumeStatus {
            min_quota: None,
            max_quota: None,
        },
        name: Name::new(b"").expect("empty"),
        offline_message: message,
        motd: message,
    };
    // Sends the first packet, and never the second.
    let mut call = client.own.connection().call().expect("a call");
    call.write(to_bytes(&request)[..1500].to_vec())
        .expect("sent");
    let until = Instant::now() + PATIENCE;
    let ended = call.read_by(Some(until)).map(drop).expect_err("an end");
    let timeout = End::Aborted(code::CALL_TIMEOUT);
    assert_eq!(ended, rx::Error::Ended(timeout));
    still_serves(&client, file);
}
