//! Data visible to clients is durable: after a crash no version has other bytes than clients saw.
//!
//! The device fails from some moment on, so nothing becomes durable any more. Any state that a
//! client is still shown must exist after a restart of the server, or have another version.

mod common;

use afs_proto::AfsFid;
use block::{BlockDevice, ErrorKind, OpKind};
use block_testing::{ErrorDevice, ErrorHandle, Failure, Mem};
use common::{Cell, Client, config};
use std::sync::Arc;

/// Content of a file as seen by a client: identifier, version, data.
type Seen = (AfsFid, u64, Vec<u8>);

fn cell() -> (Arc<dyn BlockDevice>, ErrorHandle, Cell) {
    let below: Arc<dyn BlockDevice> = Arc::new(Mem::new(64 << 20, 4096));
    common::format(&below);
    let (device, failure) = ErrorDevice::new(Arc::clone(&below));
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    let cell = Cell::on(&device, config());
    (below, failure, cell)
}

fn look(client: &Client, fid: AfsFid, seen: &mut Vec<Seen>) {
    // The server may refuse.
    if let Ok((data, status, _)) = client.own.fetch_data(fid, 0, 1 << 20) {
        assert_eq!(status.length, data.len() as u64);
        seen.push((fid, status.data_version, data));
    }
}

/// Makes `change` fail half-way; reads the files before and after it, and again after a restart.
fn check(prepare: impl Fn(&Client) -> AfsFid, change: impl Fn(&Client, AfsFid)) {
    let (below, failure, cell) = cell();
    let (writer, reader) = (cell.client(), cell.client());
    let fid = prepare(&writer);
    let files = [reader.root, fid];
    let mut seen = Vec::new();
    files.iter().for_each(|fid| look(&reader, *fid, &mut seen));
    assert_eq!(seen.len(), 2);
    failure.set(Some(Failure::every(1, ErrorKind::Media).of(OpKind::Write)));
    change(&writer, fid);
    assert!(failure.failed() > 0, "nothing was to be written");
    files.iter().for_each(|fid| look(&reader, *fid, &mut seen));
    drop((writer, reader, cell));
    let cell = Cell::on(&below, config());
    let reader = cell.client();
    for (fid, version, data) in seen {
        let (now, status, _) = reader.fetch(fid, 0, 1 << 20).expect("there");
        assert!(status.data_version >= version, "a version came back");
        assert!(
            status.data_version > version || now == data,
            "a version with other bytes"
        );
    }
}

fn file(client: &Client) -> AfsFid {
    let (fid, _) = client.create(client.root, "file").expect("made");
    client.store(fid, 0, &[7; 9000], 9000).expect("stored");
    fid
}

#[test]
fn a_name_is_not_shown_before_it_is_durable() {
    check(file, |writer, _| {
        assert!(writer.own.create(writer.root, "more").is_err());
    });
}

#[test]
fn bytes_at_the_end_are_not_shown_before_they_are_durable() {
    check(file, |writer, fid| {
        assert!(
            writer
                .own
                .store_data(fid, 9000, &[8; 5000], 14_000)
                .is_err()
        );
    });
}

#[test]
fn bytes_that_are_overwritten_or_cut_off_have_a_durable_version_first() {
    check(file, |writer, fid| {
        assert!(writer.own.store_data(fid, 100, &[8; 500], 9000).is_err());
    });
    check(file, |writer, fid| {
        assert!(writer.own.store_data(fid, 0, &[], 100).is_err());
    });
}
