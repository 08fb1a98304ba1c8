//! Calls that real clients made to a real server, as they were on the wire: `data/calls.txt` says
//! which. What is read from them is written back to the same bytes.

use afs_proto::fs::DataLength;
use afs_proto::{Reader, Result, Uuid, Xdr, cb, from_bytes, fs, to_bytes, vl};

struct Call {
    client: &'static str,
    service: &'static str,
    opcode: u32,
    request: Vec<u8>,
    reply: Vec<u8>,
}

fn calls() -> Vec<Call> {
    let lines = include_str!("data/calls.txt").lines();
    let call = |line: &'static str| {
        let mut words = line.split(' ');
        let mut word = || words.next().expect("five words");
        Call {
            client: word(),
            service: word(),
            opcode: word().parse().expect("a number"),
            request: bytes(word()),
            reply: bytes(word()),
        }
    };
    lines
        .filter(|line| !line.starts_with('#'))
        .map(call)
        .collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits = hex.trim_start_matches('-').as_bytes();
    let byte = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair).expect("digits");
        u8::from_str_radix(pair, 16).expect("digits")
    };
    digits.chunks(2).map(byte).collect()
}

/// Reads the reply, which must fill what is left of `from`, and writes it again.
fn again<R>(from: &mut Reader<'_>, read: Result<R>, write: impl Fn(&R, &mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&read.expect("a good reply"), &mut bytes);
    assert!(from.rest().is_empty());
    bytes
}

#[test]
fn what_real_programs_say_is_read_and_written_back_to_the_same_bytes() {
    let calls = calls();
    assert!(calls.len() > 40, "{} calls", calls.len());
    for Call {
        client,
        service,
        opcode,
        request,
        reply,
    } in &calls
    {
        let what = format!("{client} {service} {opcode}");
        let mut from = Reader::new(reply);
        let (written, replied) = match *service {
            "FS" => {
                let read: fs::Request = from_bytes_then_data(request);
                assert_eq!(read.opcode(), *opcode);
                let written = to_bytes(&read);
                let mut replied = Vec::new();
                if let Ok(length) = DataLength::read(&read, &mut from) {
                    length.write(&mut replied);
                    let data = usize::try_from(length.bytes()).expect("little");
                    let (data, tail) = from.rest().split_at(data);
                    replied.extend(data);
                    from = Reader::new(tail);
                }
                let tail = fs::read_reply(*opcode, &mut from);
                replied.extend(again(&mut from, tail, |reply, to| reply.write(to)));
                (written, replied)
            }
            "VL" if reply.is_empty() => {
                // OpenAFS has no GetCapabilities there and ended the call.
                assert_eq!(*opcode, 65537);
                (
                    to_bytes(&from_bytes::<vl::Request>(request).expect(&what)),
                    Vec::new(),
                )
            }
            "VL" => {
                let read: vl::Request = from_bytes(request).expect(&what);
                assert_eq!(read.opcode(), *opcode);
                let reply = vl::read_reply(*opcode, &mut from);
                (
                    to_bytes(&read),
                    again(&mut from, reply, |reply, to| reply.write(to)),
                )
            }
            _ => {
                let read: cb::Request = from_bytes(request).expect(&what);
                assert_eq!(read.opcode(), *opcode);
                let reply = cb::read_reply(*opcode, &mut from);
                (
                    to_bytes(&read),
                    again(&mut from, reply, |reply, to| reply.write(to)),
                )
            }
        };
        assert_eq!(&written, &request[..written.len()], "{what}: request");
        assert_eq!(&replied, reply, "{what}: reply");
    }
}

/// A request, and as much data behind it as it says.
fn from_bytes_then_data(bytes: &[u8]) -> fs::Request<'_> {
    let mut from = Reader::new(bytes);
    let request = fs::Request::read(&mut from).expect("a good request");
    assert_eq!(from.rest().len() as u64, request.data_bytes());
    request
}

/// The server's identity, which `vos listaddrs -printuuid` gave as 00622a28-8bd1-1b01-9b-5e-01004d0aaa77.
#[test]
fn an_identity_has_the_bytes_that_other_programs_print() {
    let call = calls()
        .into_iter()
        .find(|call| call.opcode == 213)
        .expect("there is one");
    let expected = Uuid([
        0x00, 0x62, 0x2a, 0x28, 0x8b, 0xd1, 0x1b, 0x01, 0x9b, 0x5e, 0x01, 0x00, 0x4d, 0x0a, 0xaa,
        0x77,
    ]);
    let request = from_bytes(&call.request);
    assert_eq!(
        request,
        Ok(cb::Request::InitCallBackState3 { server: expected })
    );
}

#[test]
fn what_was_captured_means_what_was_done() {
    let of = |client: &str, opcode| {
        let mut calls = calls().into_iter();
        calls
            .find(|call| call.client == client && call.opcode == opcode)
            .expect("captured")
    };
    let chmod = of("afsd.fuse", 135);
    let Ok(fs::Request::StoreStatus { wanted, .. }) = from_bytes(&chmod.request) else {
        panic!("not a StoreStatus");
    };
    // afsd.fuse sends the bits of the type as well.
    assert_eq!(wanted.unix_mode_bits, Some(0o100_600));
    let Ok(fs::Reply::StoreStatus { status, .. }) =
        fs::read_reply(135, &mut Reader::new(&chmod.reply))
    else {
        panic!("not the reply");
    };
    assert_eq!(
        (status.file_type, status.unix_mode_bits),
        (fs::FileType::File, 0o600)
    );

    let found = of("vos", 518);
    let Ok(vl::Reply::GetEntryByIDN { entry }) =
        vl::read_reply(518, &mut Reader::new(&found.reply))
    else {
        panic!("not the reply");
    };
    assert_eq!(entry.name.as_bytes(), b"root.cell");
    assert_eq!(
        (entry.volumes, entry.flags),
        ([536870915, 536870916, 536870917], 0x1000)
    );
    let site = entry.sites.first().expect("one server");
    assert_eq!(
        (site.server, site.partition, site.flags),
        ([10, 77, 0, 1].into(), 0, 4)
    );

    let promised = of("kafs", 132);
    let Ok(fs::Reply::FetchStatus {
        status, callback, ..
    }) = fs::read_reply(132, &mut Reader::new(&promised.reply))
    else {
        panic!("not the reply");
    };
    assert_eq!(status.file_type, fs::FileType::Directory);
    assert_eq!(
        (callback.version, callback.kind),
        (1, afs_proto::CallBackType::Shared)
    );
    assert!(callback.expires > 0);

    let renamed = of("kafs", 138);
    let Ok(fs::Request::Rename {
        old_name, new_name, ..
    }) = from_bytes(&renamed.request)
    else {
        panic!("not a Rename");
    };
    assert_eq!(
        (old_name.as_bytes(), new_name.as_bytes()),
        (&b"a"[..], &b"b"[..])
    );
}
