//! Calls of real clients to a real server, captured on the wire (listed in `data/calls.txt`).
//! Decoding and encoding them again must reproduce the same bytes.

use afs_proto::fs::DataLength;
use afs_proto::{CallBackType, Reader, Result, Uuid, Xdr, cb, from_bytes, fs, to_bytes, vl};

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

/// Decodes the reply, which must consume the rest of `from`, and encodes it again.
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
                // OpenAFS does not implement GetCapabilities in this service and aborted the call.
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

/// Decodes a request and checks that the rest has the length of the data it announces.
fn from_bytes_then_data(bytes: &[u8]) -> fs::Request<'_> {
    let mut from = Reader::new(bytes);
    let request = fs::Request::read(&mut from).expect("a good request");
    assert_eq!(from.rest().len() as u64, request.data_bytes());
    request
}

/// Server UUID, printed by `vos listaddrs -printuuid` as 00622a28-8bd1-1b01-9b-5e-01004d0aaa77.
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

/// Returns a captured call to the file service, or of `vos` to the volume location service.
fn captured(client: &str, opcode: u32) -> Call {
    let mut calls = calls().into_iter().filter(|call| call.service != "CB");
    let found = calls.find(|call| call.client == client && call.opcode == opcode);
    found.expect("captured")
}

/// Compares the arguments with the commands that caused the calls.
#[test]
fn each_request_means_what_was_done() {
    let root = "AfsFid { volume: 536870915, vnode: 1, unique: 1 }";
    let directory = "AfsFid { volume: 536870915, vnode: 13, unique: 309 }";
    let file = "AfsFid { volume: 536870915, vnode: 486, unique: 310 }";
    let opened = "AfsFid { volume: 536870915, vnode: 2, unique: 3 }";
    let cases = [
        (
            "kafs",
            136,
            format!("RemoveFile {{ directory: {directory}, name: \"c\" }}"),
        ),
        (
            "kafs",
            138,
            format!(
                "Rename {{ old_directory: {directory}, old_name: \"a\", \
                 new_directory: {directory}, new_name: \"b\" }}"
            ),
        ),
        (
            "kafs",
            139,
            format!(
                "Symlink {{ directory: {directory}, name: \"s\", contents: \"b\", \
                 wanted: AfsStoreStatus {{ client_mod_time: Some(1795263573), owner: None, \
                 group: None, unix_mode_bits: Some(511), segment_size: None, sync: false }} }}"
            ),
        ),
        (
            "kafs",
            140,
            format!("Link {{ directory: {directory}, name: \"c\", existing: {file} }}"),
        ),
        (
            "kafs",
            142,
            format!("RemoveDir {{ directory: {root}, name: \"kd\" }}"),
        ),
        (
            "kafs",
            65538,
            format!(
                "StoreData64 {{ fid: {file}, \
                 wanted: AfsStoreStatus {{ client_mod_time: Some(1795263573), owner: None, \
                 group: None, unix_mode_bits: None, segment_size: None, sync: false }}, \
                 position: 1, length: 0, file_length: 1 }}"
            ),
        ),
        (
            "afsio",
            130,
            format!("FetchData {{ fid: {opened}, position: 0, length: 8 }}"),
        ),
        (
            "afsio",
            156,
            format!("SetLock {{ fid: {opened}, lock: Write }}"),
        ),
        (
            "afsio",
            147,
            format!(
                "GiveUpCallBacks {{ fids: List([{opened}]), callbacks: \
                 List([AfsCallBack {{ version: 1, expires: 14404, kind: Dropped }}]) }}"
            ),
        ),
    ];
    for (client, opcode, expected) in cases {
        let call = captured(client, opcode);
        let request: fs::Request = from_bytes(&call.request).expect("a good request");
        assert_eq!(format!("{request:?}"), expected);
    }
    // afsd.fuse includes the file type bits in the mode.
    let call = captured("afsd.fuse", 135);
    let request = from_bytes(&call.request);
    let Ok(fs::Request::StoreStatus { wanted, .. }) = request else {
        panic!("{request:?}");
    };
    assert_eq!(wanted.unix_mode_bits, Some(0o100_600));
    let by_number = captured("vos", 518);
    let (volume, kind) = (536870915, vl::ANY_TYPE);
    assert_eq!(
        from_bytes(&by_number.request),
        Ok(vl::Request::GetEntryByIDN { volume, kind })
    );
}

/// Checks the results; the statuses of file and directory must not be confused.
#[test]
fn each_reply_means_what_was_done() {
    use fs::FileType::{Directory, File, SymbolicLink};
    let types = |opcode| {
        let call = captured("kafs", opcode);
        match fs::read_reply(opcode, &mut Reader::new(&call.reply)).expect("a good reply") {
            fs::Reply::CreateFile {
                status,
                directory_status,
                ..
            }
            | fs::Reply::MakeDir {
                status,
                directory_status,
                ..
            }
            | fs::Reply::Symlink {
                status,
                directory_status,
                ..
            }
            | fs::Reply::Link {
                status,
                directory_status,
                ..
            } => {
                assert_eq!(status.parent_vnode % 2, 1, "a directory's vnode is odd");
                [status.file_type, directory_status.file_type]
            }
            fs::Reply::Rename {
                old_directory_status: old,
                new_directory_status: new,
                ..
            } => [old.file_type, new.file_type],
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(types(137), [File, Directory]);
    assert_eq!(types(138), [Directory, Directory]);
    assert_eq!(types(139), [SymbolicLink, Directory]);
    assert_eq!(types(140), [File, Directory]);
    assert_eq!(types(141), [Directory, Directory]);

    let call = captured("kafs", 140);
    let reply = fs::read_reply(140, &mut Reader::new(&call.reply));
    let Ok(fs::Reply::Link { status, .. }) = reply else {
        panic!("{reply:?}");
    };
    assert_eq!(
        (status.link_count, status.length, status.unix_mode_bits),
        (2, 6, 0o644)
    );
    assert_eq!((status.parent_vnode, status.parent_unique), (13, 309));

    let call = captured("kafs", 132);
    let reply = fs::read_reply(132, &mut Reader::new(&call.reply));
    let Ok(fs::Reply::FetchStatus {
        status,
        callback,
        sync,
    }) = reply
    else {
        panic!("{reply:?}");
    };
    assert_eq!((status.file_type, status.length), (Directory, 2048));
    assert_eq!((callback.version, callback.kind), (1, CallBackType::Shared));
    assert!((1..=24 * 3600).contains(&callback.expires), "{callback:?}");
    // 2026-11-21, the day when the volume was created.
    assert_eq!(sync.creation, 1795263445);

    let call = captured("kafs", 149);
    let reply = fs::read_reply(149, &mut Reader::new(&call.reply));
    let Ok(fs::Reply::GetVolumeStatus { status, name, .. }) = reply else {
        panic!("{reply:?}");
    };
    assert_eq!(
        (status.volume, name.as_bytes()),
        (536870915, &b"root.cell"[..])
    );
    assert!(status.online && status.in_service && status.blessed && !status.needs_salvage);
    // `df` reported 95501264 blocks, 288 in use.
    assert_eq!(
        (status.partition_max_blocks, status.blocks_in_use),
        (95501264, 288)
    );
    assert_eq!((status.min_quota, status.max_quota), (0, 0), "no quota");

    let call = captured("vos", 518);
    let reply = vl::read_reply(518, &mut Reader::new(&call.reply));
    let Ok(vl::Reply::GetEntryByIDN { entry }) = reply else {
        panic!("{reply:?}");
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
}
