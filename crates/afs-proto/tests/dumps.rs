//! Exact bytes of messages, derived from the interface definitions: one field per line.

mod common;

use afs_proto::fs::{AfsFetchStatus, AfsStoreStatus, AfsStoreVolumeStatus, LockType};
use afs_proto::xdr::Bytes;
use afs_proto::{
    Abort, AfsCallBack, AfsFid, List, Reader, Uuid, WireError, capability, cb, from_bytes, fs,
    prefix, to_bytes, vl,
};
use common::{SYNC, UUID, fid, list, status, text};

/// Returns the bytes of a hexadecimal dump; text after `|` is a comment.
fn dump(text: &str) -> Vec<u8> {
    let lines = text
        .lines()
        .map(|line| line.split('|').next().unwrap_or_default());
    let digits: Vec<u32> = lines
        .flat_map(|line| line.chars().filter(|c| !c.is_whitespace()))
        .map(|c| c.to_digit(16).expect("a digit"))
        .collect();
    digits
        .chunks(2)
        .map(|pair| (pair[0] << 4 | pair[1]) as u8)
        .collect()
}

fn written(reply: &fs::Reply<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    reply.write(&mut bytes);
    bytes
}

#[test]
fn create_file() {
    let bytes = dump(
        "00000089 | 137
         20000003 | volume
         00000001 | vnode
         00000001 | uniquifier
         00000005 | bytes of the name
         68656c6c | hell
         6f000000 | o, filled up
         00000009 | SETMODTIME and SETMODE
         3b9aca00 | time of change
         00000000 | owner, does not count
         00000000 | group, does not count
         000001a4 | mode 0644
         00000000 | segment size, does not count",
    );
    let request = fs::Request::CreateFile {
        directory: AfsFid {
            volume: 0x2000_0003,
            vnode: 1,
            unique: 1,
        },
        name: text(b"hello"),
        wanted: AfsStoreStatus {
            client_mod_time: Some(1_000_000_000),
            unix_mode_bits: Some(0o644),
            ..AfsStoreStatus::default()
        },
    };
    assert_eq!(to_bytes(&request), bytes);
    assert_eq!(from_bytes(&bytes), Ok(request));
}

#[test]
fn fetch_status() {
    let bytes = dump(
        "00000001 | interface version
         00000001 | a file
         00000002 | links
         2345678a | length, low word
         00000003 | data version, low word
         00000004 | author
         00000005 | owner
         0000007f | rights of the caller
         00000009 | rights of anybody
         000001a4 | mode
         00000008 | vnode of the directory
         00000009 | uniquifier of the directory
         00000001 | residency mask
         0000000a | time of change, client
         0000000b | time of change, server
         0000000c | group
         0000000d | sync counter
         00000002 | data version, high word
         ffffffff | locked to write
         00000001 | length, high word
         00000000 | no error
         00000001 | callback version
         00001c20 | seconds
         00000002 | shared
         0000004d | volume made
         00000000 00000000 00000000 00000000 00000000 | spare",
    );
    let callback = AfsCallBack::promise(7200);
    let reply = fs::Reply::FetchStatus {
        status: status(1),
        callback,
        sync: SYNC,
    };
    assert_eq!(written(&reply), bytes);
    assert_eq!(fs::read_reply(132, &mut Reader::new(&bytes)), Ok(reply));
    let asked = dump("00000084 20000003 00000006 00000067");
    assert_eq!(
        from_bytes(&asked),
        Ok(fs::Request::FetchStatus { fid: fid(3) })
    );
}

/// Linux treats a status of version 1 with an error code as an error; OpenAFS sends version 0.
#[test]
fn an_error_among_several_files() {
    let failed = AfsFetchStatus::failed(Abort::VNOVNODE);
    let mut bytes = to_bytes(&failed);
    assert_eq!(
        bytes,
        [dump("00000001"), vec![0; 76], dump("00000066")].concat()
    );
    assert_eq!(from_bytes(&bytes), Ok(failed));
    bytes[3] = 0;
    assert_eq!(from_bytes(&bytes), Ok(failed));
    bytes[83] = 0;
    let what = "interface version";
    assert_eq!(
        from_bytes::<AfsFetchStatus>(&bytes),
        Err(WireError::Undefined { what, value: 0 })
    );
}

#[test]
fn store_data_of_large_files() {
    let bytes = dump(
        "00010002 | 65538
         20000003 00000006 00000067 | file
         00000001 00000005 00000000 00000000 00000000 00000000 | only the time counts
         00000001 00000000 | position 4 GiB
         00000000 00000003 | three bytes
         00000001 00000003 | length of the file then
         616263 | the data, not filled up",
    );
    let (request, taken) = prefix::<fs::Request>(&bytes).expect("a good request");
    let client_mod_time = Some(5);
    let wanted = AfsStoreStatus {
        client_mod_time,
        ..AfsStoreStatus::default()
    };
    let expected = fs::Request::StoreData64 {
        fid: fid(3),
        wanted,
        position: 1 << 32,
        length: 3,
        file_length: (1 << 32) + 3,
    };
    assert_eq!(request, expected);
    assert_eq!((&bytes[taken..], request.data_bytes()), (&b"abc"[..], 3));
}

#[test]
fn store_data() {
    let bytes = dump(
        "00000085 | 133
         20000003 00000006 00000067 | file
         00000000 00000000 00000000 00000000 00000000 00000000 | nothing else to change
         00000005 | position
         00000003 | three bytes
         0000000b | length of the file then
         616263 | the data",
    );
    let (request, taken) = prefix::<fs::Request>(&bytes).expect("a good request");
    let wanted = AfsStoreStatus::default();
    let expected = fs::Request::StoreData {
        fid: fid(3),
        wanted,
        position: 5,
        length: 3,
        file_length: 11,
    };
    assert_eq!((request, &bytes[taken..]), (expected, &b"abc"[..]));
}

#[test]
fn rename_across_directories() {
    let bytes = dump(
        "0000008a | 138
         20000001 00000002 00000065 | old directory
         00000001 61000000 | a
         20000002 00000004 00000066 | new directory
         00000001 62000000 | b",
    );
    let request = fs::Request::Rename {
        old_directory: fid(1),
        old_name: text(b"a"),
        new_directory: fid(2),
        new_name: text(b"b"),
    };
    assert_eq!(from_bytes(&bytes), Ok(request));
}

#[test]
fn set_volume_status() {
    let bytes = dump(
        "00000096 | 150
         20000003 | volume
         00000002 00000000 00001388 | only the quota: 5000 KiB
         00000001 6e000000 | name
         00000001 6f000000 | why it is offline
         00000001 6d000000 | message of the day",
    );
    let request = fs::Request::SetVolumeStatus {
        volume: 0x2000_0003,
        wanted: AfsStoreVolumeStatus {
            min_quota: None,
            max_quota: Some(5000),
        },
        name: text(b"n"),
        offline_message: text(b"o"),
        motd: text(b"m"),
    };
    assert_eq!(to_bytes(&request), bytes);
    assert_eq!(from_bytes(&bytes), Ok(request));
}

#[test]
fn time_and_capabilities() {
    let time = dump("3b9aca00 | seconds\n 000f423f | microseconds");
    let reply = fs::Reply::GetTime {
        seconds: 1_000_000_000,
        microseconds: 999_999,
    };
    assert_eq!(written(&reply), time);
    let abilities = dump("00000001 | one word\n 00000003 | error table, 64 bits");
    let capabilities = list(vec![capability::ERRORTRANS | capability::FILES64]);
    assert_eq!(
        written(&fs::Reply::GetCapabilities { capabilities }),
        abilities
    );
}

#[test]
fn locks() {
    let bytes = dump("0000009c 20000003 00000006 00000067 00000001");
    let lock = LockType::Write;
    assert_eq!(
        from_bytes(&bytes),
        Ok(fs::Request::SetLock { fid: fid(3), lock })
    );
    let unknown = dump("0000009c 20000003 00000006 00000067 00000004");
    let refused = WireError::Undefined {
        what: "lock type",
        value: 4,
    };
    assert_eq!(from_bytes::<fs::Request>(&unknown), Err(refused));
}

#[test]
fn an_access_list_is_opaque() {
    let bytes = dump(
        "00000086 | 134
         20000003 00000006 00000067 | directory
         00000006 | bytes
         300a300a 0a000000 | text, a zero byte in it, filled up",
    );
    let access_list = Bytes::new(b"0\n0\n\n\0").expect("short");
    assert_eq!(
        from_bytes(&bytes),
        Ok(fs::Request::StoreACL {
            fid: fid(3),
            access_list
        })
    );
}

#[test]
fn volume_status() {
    let bytes = dump(
        "20000003 20000003 | volume, volume that is written
         00000001 00000001 00000001 00000000 | online, in service, blessed, needs no salvage
         00000001 | can be written
         00000000 00001388 0000011c | reserved, quota, in use
         000f4240 001e8480 | partition: free, in all
         00000009 726f6f74 2e63656c 6c000000 | name
         00000000 | no message
         00000007 6265206b 696e6400 | message of the day",
    );
    let reply = common::fs_replies()
        .into_iter()
        .find(|reply| reply.opcode() == 149);
    assert_eq!(fs::read_reply(149, &mut Reader::new(&bytes)).ok(), reply);
}

#[test]
fn a_volume_by_name_and_its_entry() {
    let asked = dump("0000020f 00000009 726f6f74 2e63656c 6c000000");
    let volume_name = text(b"root.cell");
    assert_eq!(
        from_bytes(&asked),
        Ok(vl::Request::GetEntryByNameU { volume_name })
    );
    let word = |n: u32| format!("{n:08x}");
    let words = |n: &[u32]| n.iter().copied().map(word).collect::<String>();
    let bytes = dump(
        &[
            words(&b"root.cell".map(u32::from)),
            words(&[0; 56]),
            words(&[1]),
            // UUID: a word, two half-words, eight sign-extended bytes.
            "00622a28 00008bd1 00001b01 ffffff9b 0000005e".into(),
            "00000001 00000000 0000004d 0000000a ffffffaa 00000077".into(),
            words(&[0; 12 * 11]),
            // Uniquifier, partition and flags, one column each for 13 servers.
            words(&[1]) + &words(&[0; 12]),
            words(&[1]) + &words(&[0; 12]),
            words(&[0x14]) + &words(&[0; 12]),
            words(&[0x2000_0003, 0x2000_0004, 0]),
            words(&[5, 0x3000]),
            words(&[0; 9]),
        ]
        .concat(),
    );
    assert_eq!(bytes.len(), 262 * 4);
    let reply = common::vl_replies()
        .into_iter()
        .find(|reply| reply.opcode() == 527);
    assert_eq!(vl::read_reply(527, &mut Reader::new(&bytes)).ok(), reply);
}

#[test]
fn the_sizes_of_entries_in_words() {
    let mut sizes = common::vl_replies().into_iter().map(|reply| {
        let mut bytes = Vec::new();
        reply.write(&mut bytes);
        bytes.len() / 4
    });
    let sizes: Vec<_> = sizes.by_ref().take(7).collect();
    assert_eq!(sizes, [96, 96, 0, 119, 119, 262, 262]);
}

#[test]
fn an_identity_may_come_without_signs() {
    let unsigned = dump(
        "00622a28 00008bd1 00001b01 0000009b 0000005e
         00000001 00000000 0000004d 0000000a 000000aa 00000077",
    );
    assert_eq!(from_bytes::<Uuid>(&unsigned), Ok(UUID));
}

#[test]
fn breaking_a_callback() {
    let bytes = dump(
        "000000cc | 204
         00000001 20000003 00000006 00000067 | one file
         00000001 00000001 00000000 00000003 | one callback: version, no time, dropped",
    );
    let request = cb::Request::CallBack {
        fids: list(vec![fid(3)]),
        callbacks: list(vec![AfsCallBack::dropped()]),
    };
    assert_eq!(to_bytes(&request), bytes);
    assert_eq!(from_bytes(&bytes), Ok(request));
}

#[test]
fn more_than_the_interface_allows_is_refused_at_the_count() {
    let long = |opcode: u32, count: u32| [opcode.to_be_bytes(), count.to_be_bytes()].concat();
    let too_long = |what, length, max| Err(WireError::TooLong { what, length, max });
    let names = long(527, 66);
    assert_eq!(
        prefix::<vl::Request>(&names).map(drop),
        too_long("a string", 66, 65)
    );
    let fids = long(65536, 51);
    assert_eq!(
        prefix::<fs::Request>(&fids).map(drop),
        too_long("an array", 51, 50)
    );
    let all = long(204, u32::MAX);
    let most = u32::MAX as usize;
    assert_eq!(
        prefix::<cb::Request>(&all).map(drop),
        too_long("an array", most, 50)
    );
    let mut name = to_bytes(&fs::Request::RemoveFile {
        directory: fid(1),
        name: text(b""),
    });
    name[16..].copy_from_slice(&257u32.to_be_bytes());
    assert_eq!(
        prefix::<fs::Request>(&name).map(drop),
        too_long("a string", 257, 256)
    );
    assert!(List::<u32, 196>::new(vec![0; 197]).is_err());
}

#[test]
fn a_zero_byte_within_a_string_is_refused() {
    let bytes = dump("0000020f 00000005 726f0074 2e000000");
    assert_eq!(
        from_bytes::<vl::Request>(&bytes),
        Err(WireError::ZeroInString)
    );
}
