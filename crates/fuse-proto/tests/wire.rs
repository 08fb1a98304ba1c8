//! Requests as the kernel sends them, and damaged ones.
//!
//! `data/linux-6.18.txt` was written by the test of `kernel.rs`.

use fuse_proto::*;
use proptest::prelude::*;

/// Requests of Linux 6.18 on x86-64: names of the operations and messages.
fn dumps() -> Vec<(&'static str, Vec<u8>)> {
    include_str!("data/linux-6.18.txt")
        .lines()
        .map(|line| {
            let (name, hex) = line.split_once(' ').unwrap();
            let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
            (name, (0..hex.len()).step_by(2).map(byte).collect())
        })
        .collect()
}

/// Returns the session of a kernel that offers the given flags, all of which apply.
fn session(flags: u64) -> Session {
    let offer = InitRequest {
        major: 7,
        minor: 45,
        max_readahead: 0,
        flags,
    };
    negotiate(
        &offer,
        &Wanted {
            flags,
            ..Wanted::default()
        },
    )
    .unwrap()
    .0
}

/// Returns the session of the dumps.
fn dumped() -> Session {
    session(abi::FUSE_INIT_EXT | abi::FUSE_SETXATTR_EXT | abi::FUSE_CREATE_SUPP_GROUP)
}

/// Builds a message of node 5.
fn message(opcode: u32, extension_words: u16, body: &[u8]) -> Vec<u8> {
    let mut out = (40 + body.len() as u32).to_ne_bytes().to_vec();
    out.extend(opcode.to_ne_bytes());
    out.extend(42u64.to_ne_bytes());
    out.extend(5u64.to_ne_bytes());
    for word in [1000u32, 1001, 1002] {
        out.extend(word.to_ne_bytes());
    }
    out.extend(extension_words.to_ne_bytes());
    out.extend([0; 2]);
    out.extend(body);
    out
}

fn words<const N: usize>(words: [u64; N]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_ne_bytes()).collect()
}

fn halves<const N: usize>(words: [u32; N]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_ne_bytes()).collect()
}

/// Returns the extensions of a message that creates a file.
fn extensions_of<'a>(operation: &Operation<'a>) -> Option<Extensions<'a>> {
    match *operation {
        Operation::Symlink { extensions, .. }
        | Operation::MkNod { extensions, .. }
        | Operation::MkDir { extensions, .. } => Some(extensions),
        Operation::Create(create) | Operation::TmpFile(create) => Some(create.extensions),
        _ => None,
    }
}

/// Returns the operation that a dump contains; `group` is that of its extensions.
fn expected<'a>(name: &str, group: Extensions<'a>) -> Operation<'a> {
    let (handle, owner) = (77, 0x9f5b_a8cd_4afb_ba63);
    let lock = |end, kind, pid| Lock {
        handle,
        owner,
        start: 0,
        end,
        kind,
        pid,
        is_flock: false,
    };
    let create = |name, mode, flags| {
        let extensions = group;
        Create {
            name,
            mode,
            umask: 0o022,
            flags,
            open_flags: 0,
            extensions,
        }
    };
    match name {
        "FUSE_LOOKUP" => Operation::Lookup { name: b"file" },
        "FUSE_FORGET" => Operation::Forget { lookups: 1 },
        "FUSE_GETATTR" => Operation::GetAttr { handle: None },
        "FUSE_SETATTR" => Operation::SetAttr(SetAttr {
            handle: Some(handle),
            size: Some(5),
            lock_owner: Some(owner),
            ..SetAttr::default()
        }),
        "FUSE_READLINK" => Operation::ReadLink,
        "FUSE_SYMLINK" => Operation::Symlink {
            name: b"symlink",
            target: b"target",
            extensions: group,
        },
        "FUSE_MKNOD" => {
            let (mode, umask, extensions) = (0o010_600, 0o022, group);
            Operation::MkNod {
                name: b"fifo",
                mode,
                rdev: 0,
                umask,
                extensions,
            }
        }
        "FUSE_MKDIR" => {
            let (mode, umask, extensions) = (0o755, 0o022, group);
            Operation::MkDir {
                name: b"directory",
                mode,
                umask,
                extensions,
            }
        }
        "FUSE_UNLINK" => Operation::Unlink { name: b"again" },
        "FUSE_RMDIR" => Operation::RmDir { name: b"directory" },
        "FUSE_RENAME" => Operation::Rename {
            name: b"hard",
            new_parent: 1,
            new_name: b"renamed",
            flags: 0,
        },
        "FUSE_RENAME2" => Operation::Rename {
            name: b"renamed",
            new_parent: 1,
            new_name: b"again",
            flags: 1,
        },
        "FUSE_LINK" => Operation::Link {
            node: 2,
            new_name: b"hard",
        },
        // O_RDWR | O_LARGEFILE, also below.
        "FUSE_OPEN" => Operation::Open {
            flags: 0o100_002,
            open_flags: 0,
        },
        "FUSE_READ" => Operation::Read(Read {
            handle,
            size: 4096,
            flags: 0o100_002,
            ..Read::default()
        }),
        "FUSE_WRITE" => Operation::Write(Write {
            handle,
            data: b"HELLO",
            flags: 0o100_002,
            ..Write::default()
        }),
        "FUSE_STATFS" => Operation::StatFs,
        "FUSE_RELEASE" => Operation::Release {
            handle,
            flags: 0,
            release_flags: 0,
            lock_owner: 0,
        },
        "FUSE_FSYNC" => Operation::FSync {
            handle,
            data_only: true,
        },
        "FUSE_SETXATTR" => Operation::SetXattr {
            name: b"user.a",
            value: b"xyz",
            flags: 1,
            setxattr_flags: 0,
        },
        "FUSE_GETXATTR" => Operation::GetXattr {
            name: b"security.capability",
            size: 0,
        },
        "FUSE_LISTXATTR" => Operation::ListXattr { size: 10 },
        "FUSE_REMOVEXATTR" => Operation::RemoveXattr { name: b"user.a" },
        "FUSE_FLUSH" => Operation::Flush {
            handle,
            lock_owner: owner,
        },
        "FUSE_INIT" => Operation::Init(InitRequest {
            major: 7,
            minor: 45,
            max_readahead: 128 << 10,
            flags: 0x5fd_73ff_fffb,
        }),
        // O_DIRECTORY | O_LARGEFILE | O_NONBLOCK.
        "FUSE_OPENDIR" => Operation::OpenDir { flags: 0o304_000 },
        "FUSE_READDIR" => Operation::ReadDir {
            handle,
            offset: 2,
            size: 32768,
        },
        "FUSE_READDIRPLUS" => Operation::ReadDirPlus {
            handle,
            offset: 0,
            size: 32768,
        },
        "FUSE_RELEASEDIR" => Operation::ReleaseDir {
            handle,
            flags: 0o304_000,
        },
        "FUSE_FSYNCDIR" => Operation::FSyncDir {
            handle,
            data_only: false,
        },
        "FUSE_GETLK" => Operation::GetLock(lock(99, 1, 0)),
        "FUSE_SETLK" => Operation::SetLock {
            lock: lock(i64::MAX as u64, 1, 24425),
            wait: false,
        },
        "FUSE_SETLKW" => Operation::SetLock {
            lock: lock(i64::MAX as u64, 1, 24425),
            wait: true,
        },
        "FUSE_ACCESS" => Operation::Access { mask: 4 },
        // O_RDWR | O_CREAT | O_EXCL | O_LARGEFILE.
        "FUSE_CREATE" => Operation::Create(create(b"created", 0o100_644, 0o100_302)),
        // O_RDWR | O_TMPFILE | O_LARGEFILE.
        "FUSE_TMPFILE" => Operation::TmpFile(create(b"/", 0o100_600, 0o20_300_002)),
        "FUSE_IOCTL" => Operation::Ioctl(Ioctl {
            handle,
            command: 0x8008_6601,
            out_size: 4,
            ..Ioctl::default()
        }),
        "FUSE_POLL" => Operation::Poll {
            handle,
            wakeup: 2,
            flags: 1,
            events: 0x19,
        },
        "FUSE_NOTIFY_REPLY" => Operation::NotifyReply {
            offset: 1,
            data: b"tor",
        },
        "FUSE_FALLOCATE" => Operation::FAllocate {
            handle,
            offset: 4096,
            length: 8192,
            mode: 1,
        },
        "FUSE_LSEEK" => Operation::LSeek {
            handle,
            offset: 0,
            whence: 3,
        },
        "FUSE_STATX" => Operation::Statx {
            handle: None,
            flags: 0,
            mask: 0xfff,
        },
        "FUSE_COPY_FILE_RANGE_64" => Operation::CopyFileRange(CopyFileRange {
            handle,
            offset: 0,
            to_node: 2,
            to_handle: handle,
            to_offset: 4096,
            length: 5,
            flags: 0,
            is_64: true,
        }),
        other => panic!("{other} has no expectation"),
    }
}

#[test]
fn requests_of_linux_are_read_as_their_callers_meant_them() {
    let dumps = dumps();
    assert_eq!(dumps.len(), 43);
    for (name, bytes) in &dumps {
        let request = parse(bytes, &dumped()).unwrap_or_else(|e| panic!("{name}: {e}"));
        let extensions = extensions_of(&request.operation).unwrap_or_default();
        if extensions_of(&request.operation).is_some() {
            assert_eq!(extensions.group(), Some(2000), "{name}");
            assert_eq!(extensions.security_contexts().count(), 0, "{name}");
        }
        assert_eq!(request.operation, expected(name, extensions), "{name}");
        let opcode = abi::OPCODES.iter().find(|o| o.0 == *name).unwrap().1;
        assert_eq!(u64::from(request.header.opcode), opcode);
        assert!(!request.header.is_resent());
        let unanswered = ["FUSE_FORGET", "FUSE_NOTIFY_REPLY"].contains(name);
        assert_eq!(request.operation.is_answered(), !unanswered, "{name}");
    }
}

#[test]
fn the_header_is_read() {
    let bytes = message(abi::FUSE_READLINK, 0, &[]);
    let header = parse(&bytes, &Session::new()).unwrap().header;
    let (uid, gid, pid) = (1000, 1001, 1002);
    let opcode = abi::FUSE_READLINK;
    assert_eq!(
        header,
        Header {
            unique: 42,
            node: 5,
            uid,
            gid,
            pid,
            opcode
        }
    );
    let resent = Header {
        unique: 42 | abi::FUSE_UNIQUE_RESEND,
        ..header
    };
    assert!(resent.is_resent());
}

/// Requests that need more than a quiet mount to appear.
#[test]
fn rare_requests_are_read() {
    let is = |opcode, body: &[u8], wanted: Operation| {
        let bytes = message(opcode, 0, body);
        assert_eq!(parse(&bytes, &dumped()).unwrap().operation, wanted);
    };
    is(abi::FUSE_DESTROY, &[], Operation::Destroy);
    is(
        abi::FUSE_INTERRUPT,
        &words([9]),
        Operation::Interrupt { unique: 9 },
    );
    is(abi::FUSE_SYNCFS, &words([0]), Operation::SyncFs);
    let block = [7u64.to_ne_bytes().to_vec(), halves([4096, 0])].concat();
    is(
        abi::FUSE_BMAP,
        &block,
        Operation::BMap {
            block: 7,
            block_bytes: 4096,
        },
    );
    is(
        abi::FUSE_SETUPMAPPING,
        &words([1, 2, 3, 4, 5]),
        Operation::Unknown,
    );
    is(abi::CUSE_INIT, &[], Operation::Unknown);
    is(u32::MAX, b"anything", Operation::Unknown);
    let copy = CopyFileRange {
        handle: 1,
        offset: 2,
        to_node: 3,
        to_handle: 4,
        to_offset: 5,
        length: 6,
        flags: 7,
        is_64: false,
    };
    let body = words([1, 2, 3, 4, 5, 6, 7]);
    is(
        abi::FUSE_COPY_FILE_RANGE,
        &body,
        Operation::CopyFileRange(copy),
    );
    let by_handle = [
        halves([abi::FUSE_GETATTR_FH, 0]),
        words([8]),
        halves([1, 2]),
    ]
    .concat();
    is(
        abi::FUSE_STATX,
        &by_handle,
        Operation::Statx {
            handle: Some(8),
            flags: 1,
            mask: 2,
        },
    );
    is(
        abi::FUSE_GETATTR,
        &by_handle[..16],
        Operation::GetAttr { handle: Some(8) },
    );

    let forgets = [halves([2, 0]), words([10, 1, 11, u64::MAX])].concat();
    let bytes = message(abi::FUSE_BATCH_FORGET, 0, &forgets);
    let request = parse(&bytes, &dumped()).unwrap();
    assert!(!request.operation.is_answered());
    let Operation::BatchForget(forgets) = request.operation else {
        panic!()
    };
    assert_eq!(forgets.len(), 2);
    assert_eq!(forgets.collect::<Vec<_>>(), [(10, 1), (11, u64::MAX)]);
}

#[test]
fn every_change_of_attributes_is_read() {
    let set = |valid| {
        let mut body = [halves([valid, 0]), words([1, 2, 3, 4, u64::MAX, 6])].concat();
        body.extend(halves([7, 8, 9, 10, 0, 11, 12, 0]));
        let bytes = message(abi::FUSE_SETATTR, 0, &body);
        match parse(&bytes, &dumped()).unwrap().operation {
            Operation::SetAttr(set) => set,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(set(0), SetAttr::default());
    assert_eq!(
        set(0xfff & !abi::FATTR_ATIME_NOW & !abi::FATTR_MTIME_NOW),
        SetAttr {
            handle: Some(1),
            size: Some(2),
            lock_owner: Some(3),
            atime: Some(SetTime::At(Time {
                seconds: 4,
                nanos: 7
            })),
            mtime: Some(SetTime::At(Time {
                seconds: -1,
                nanos: 8
            })),
            ctime: Some(Time {
                seconds: 6,
                nanos: 9
            }),
            mode: Some(10),
            uid: Some(11),
            gid: Some(12),
            kill_suidgid: true,
        }
    );
    // The kernel sets both flags for the present time.
    let now = abi::FATTR_ATIME | abi::FATTR_ATIME_NOW | abi::FATTR_MTIME | abi::FATTR_MTIME_NOW;
    let (atime, mtime) = (Some(SetTime::Now), Some(SetTime::Now));
    assert_eq!(
        set(now),
        SetAttr {
            atime,
            mtime,
            ..SetAttr::default()
        }
    );
}

#[test]
fn owners_of_locks_are_read_with_their_flag_only() {
    let body = |flag, size: u32| {
        let mut body = [
            words([77, 10]),
            halves([size, flag]),
            words([33]),
            halves([0, 0]),
        ]
        .concat();
        body.extend(vec![b'x'; size as usize]);
        body
    };
    for (flag, owner) in [
        (abi::FUSE_WRITE_LOCKOWNER, Some(33)),
        (abi::FUSE_WRITE_CACHE, None),
    ] {
        let bytes = message(abi::FUSE_WRITE, 0, &body(flag, 3));
        let Operation::Write(write) = parse(&bytes, &dumped()).unwrap().operation else {
            panic!()
        };
        assert_eq!(
            (write.lock_owner, write.write_flags, write.data),
            (owner, flag, &b"xxx"[..])
        );
    }
    let bytes = message(abi::FUSE_READ, 0, &body(abi::FUSE_READ_LOCKOWNER, 0));
    let Operation::Read(read) = parse(&bytes, &dumped()).unwrap().operation else {
        panic!()
    };
    assert_eq!((read.lock_owner, read.offset), (Some(33), 10));
}

#[test]
fn setxattr_has_the_form_that_was_agreed_on() {
    let flags = 7;
    let operation = |setxattr_flags| Operation::SetXattr {
        name: b"user.a",
        value: b"xy",
        flags,
        setxattr_flags,
    };
    let old = [&halves([2, flags])[..], b"user.a\0xy"].concat();
    let new = [&halves([2, flags, 1, 0])[..], b"user.a\0xy"].concat();
    let (with, without) = (session(abi::FUSE_SETXATTR_EXT), session(0));
    let read = |body: &[u8], session| {
        let bytes = message(abi::FUSE_SETXATTR, 0, body);
        parse(&bytes, session)
            .map(|r| assert_eq!(r.operation, operation(u32::from(session == &with))))
    };
    read(&old, &without).unwrap();
    read(&new, &with).unwrap();
    assert!(read(&old, &with).is_err());
    assert!(read(&new, &without).is_err());
}

/// Two security contexts and a group, in the order of Linux.
fn extensions() -> Vec<u8> {
    let mut contexts = Vec::new();
    for (name, value) in [("security.selinux", &b"user_u\0"[..]), ("security.b", b"")] {
        contexts.extend(halves([value.len() as u32, 0]));
        contexts.extend(name.as_bytes());
        contexts.push(0);
        contexts.extend(value);
        contexts.resize(contexts.len().next_multiple_of(8), 0);
    }
    let mut out = halves([8 + contexts.len() as u32, 2]);
    out.extend(contexts);
    out.extend(halves([16, abi::FUSE_EXT_GROUPS, 1, 2000]));
    out
}

#[test]
fn extensions_are_read() {
    let extensions = extensions();
    let words = (extensions.len() / 8) as u16;
    let body = [&halves([0o755, 0o022])[..], b"name\0", &extensions].concat();
    let check = |bytes: &[u8], session: &Session| {
        let request = parse(bytes, session).unwrap();
        let extensions = extensions_of(&request.operation).unwrap();
        let contexts: Vec<_> = extensions.security_contexts().collect();
        let expected: [(&[u8], &[u8]); 2] =
            [(b"security.selinux", b"user_u\0"), (b"security.b", b"")];
        assert_eq!(contexts, expected);
        assert_eq!(extensions.group(), Some(2000));
    };
    check(&message(abi::FUSE_MKDIR, words, &body), &session(0));
    // Before 7.38, the header does not state their length.
    let flags = abi::FUSE_INIT_EXT | abi::FUSE_SECURITY_CTX;
    check(&message(abi::FUSE_MKDIR, 0, &body), &session(flags));
    let bytes = message(abi::FUSE_MKDIR, 0, &body);
    assert!(
        parse(&bytes, &session(0)).is_err(),
        "extensions without agreement"
    );
    // Types of later kernels are skipped.
    let later = [&halves([16, 33, 1, 2])[..], &extensions].concat();
    let body = [&halves([0o755, 0o022])[..], b"name\0", &later].concat();
    check(&message(abi::FUSE_MKDIR, words + 2, &body), &session(0));
}

/// Size of the structure with which the arguments of an operation begin.
fn structure_bytes(opcode: u32) -> usize {
    use abi::*;
    match opcode {
        FUSE_SETATTR => size_of::<fuse_setattr_in>(),
        FUSE_WRITE | FUSE_READ | FUSE_READDIR | FUSE_READDIRPLUS => size_of::<fuse_write_in>(),
        FUSE_NOTIFY_REPLY => size_of::<fuse_notify_retrieve_in>(),
        FUSE_SETXATTR | FUSE_CREATE | FUSE_TMPFILE | FUSE_MKNOD | FUSE_RENAME2 => 16,
        FUSE_GETXATTR | FUSE_LINK | FUSE_RENAME | FUSE_MKDIR => 8,
        FUSE_LOOKUP | FUSE_SYMLINK | FUSE_UNLINK | FUSE_RMDIR | FUSE_REMOVEXATTR => 0,
        _ => usize::MAX,
    }
}

#[test]
fn requests_of_a_ring_are_the_same() {
    // INIT is always read from /dev/fuse.
    let dumps = dumps().into_iter().filter(|dump| dump.0 != "FUSE_INIT");
    for (name, bytes) in dumps {
        let flat = parse(&bytes, &dumped()).unwrap();
        let (header, body) = bytes.split_at(40);
        let (structure, payload) =
            body.split_at(structure_bytes(flat.header.opcode).min(body.len()));
        let mut in_out = header.to_vec();
        in_out.resize(abi::FUSE_URING_IN_OUT_HEADER_SZ, 0xaa);
        let mut op_in = structure.to_vec();
        op_in.resize(abi::FUSE_URING_OP_IN_OUT_SZ, 0xaa);
        let ring = parse_ring(&in_out, &op_in, payload, &dumped())
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(
            (ring.header, ring.operation),
            (flat.header, flat.operation),
            "{name}"
        );
    }
}

/// Reads all parts of a request, as a server does. Returns the number of items.
fn walk(request: &Request) -> usize {
    match request.operation {
        Operation::BatchForget(forgets) => forgets.count(),
        operation => extensions_of(&operation).map_or(0, |e| e.security_contexts().count()),
    }
}

fn with_length(mut bytes: Vec<u8>) -> Vec<u8> {
    let len = (bytes.len() as u32).to_ne_bytes();
    bytes[..4].copy_from_slice(&len);
    bytes
}

#[test]
fn every_truncation_is_refused() {
    for (name, bytes) in dumps() {
        let has_extensions = bytes[36..38] != [0; 2];
        for len in 0..bytes.len() {
            let refused = parse(&bytes[..len], &dumped()).unwrap_err();
            let known = (len >= 40).then(|| u64::from_ne_bytes(bytes[8..16].try_into().unwrap()));
            assert_eq!(refused.unique, known, "{name} of {len} bytes");
            assert_eq!(refused.opcode.is_some(), known.is_some());
            if len < 40 {
                continue;
            }
            // The same with a header that agrees.
            let cut = with_length(bytes[..len].to_vec());
            let result = parse(&cut, &dumped());
            // INIT grows by version. Cut extensions can look like others.
            let may_pass = name == "FUSE_INIT" && len >= 40 + 20 || has_extensions;
            assert!(
                result.is_err() || may_pass,
                "{name} of {len} bytes: {result:?}"
            );
            if let Ok(request) = result {
                walk(&request);
            }
        }
        if name != "FUSE_INIT" && !has_extensions {
            let longer = with_length([&bytes[..], &[0]].concat());
            let refused = parse(&longer, &dumped()).unwrap_err();
            assert_eq!(refused.reason, "bytes follow its last argument", "{name}");
        }
    }
}

#[test]
fn names_are_checked() {
    let longest = vec![b'n'; NAME_BYTES_MAX];
    let named = |opcode, name: &[u8]| {
        let bytes = message(opcode, 0, name);
        parse(&bytes, &dumped()).map(|_| ()).map_err(|e| e.reason)
    };
    let lookup = |name: &[u8]| named(abi::FUSE_LOOKUP, name);
    assert_eq!(lookup(&[&longest[..], b"\0"].concat()), Ok(()));
    assert_eq!(
        lookup(&[&longest[..], b"n\0"].concat()),
        Err("a name is too long")
    );
    assert_eq!(lookup(b"name"), Err("a name has no end"));
    assert_eq!(lookup(&longest), Err("a name has no end"));
    assert_eq!(lookup(b""), Err("a name has no end"));
    assert_eq!(lookup(b"\0"), Err("a name is empty"));
    assert_eq!(lookup(b"a/b\0"), Err("a name contains a slash"));
    assert_eq!(lookup(b"a\0b\0"), Err("bytes follow its last argument"));
    assert_eq!(lookup(b"\xff\n\0"), Ok(()), "names are bytes");
    assert_eq!(lookup(b"..\0"), Ok(()));
    // Targets of links and names of attributes may contain slashes.
    assert_eq!(named(abi::FUSE_SYMLINK, b"name\0/a/b\0"), Ok(()));
    assert_eq!(
        named(abi::FUSE_SYMLINK, b"na/me\0a\0"),
        Err("a name contains a slash")
    );
    assert_eq!(
        named(abi::FUSE_SYMLINK, b"name\0"),
        Err("a name has no end")
    );
    assert_eq!(named(abi::FUSE_REMOVEXATTR, b"user.a/b\0"), Ok(()));
}

#[test]
fn lengths_that_lie_are_refused() {
    let refused = |opcode, extension_words, body: &[u8]| {
        let bytes = message(opcode, extension_words, body);
        parse(&bytes, &dumped()).unwrap_err().reason
    };
    let short = "an argument is too short";
    let forgets = [halves([u32::MAX, 0]), words([1, 1])].concat();
    assert_eq!(refused(abi::FUSE_BATCH_FORGET, 0, &forgets), short);
    let write = [
        words([0, 0]),
        halves([u32::MAX, 0]),
        words([0, 0]),
        vec![0; 9],
    ]
    .concat();
    assert_eq!(refused(abi::FUSE_WRITE, 0, &write), short);
    let ioctl = [words([0, 0, 0]), halves([u32::MAX, 0])].concat();
    assert_eq!(refused(abi::FUSE_IOCTL, 0, &ioctl), short);
    let extended = |words: u16, extension: &[u8]| {
        let body = [&halves([0, 0])[..], b"name\0", extension].concat();
        refused(abi::FUSE_MKDIR, words, &body)
    };
    assert_eq!(extended(u16::MAX, &[]), "its extensions are longer than it");
    let size = "an extension has a wrong size";
    for wrong in [0, 7, 17, u32::MAX - 6, u32::MAX] {
        assert_eq!(extended(2, &halves([wrong, 33, 0, 0])), size, "{wrong}");
    }
    assert_eq!(
        extended(1, &halves([8, 31])),
        short,
        "31 contexts in no bytes"
    );
    assert_eq!(
        extended(2, &halves([16, 1, u32::MAX, 0])),
        "a name has no end"
    );
    let groups = |count| halves([16, abi::FUSE_EXT_GROUPS, count, 0]);
    let more = "a request has more than one supplementary group";
    assert_eq!(extended(2, &groups(2)), more);
    assert_eq!(extended(2, &groups(u32::MAX)), more);
    assert_eq!(extended(1, &halves([8, abi::FUSE_EXT_GROUPS])), short);
    // A header that claims another length than the message has.
    let mut bytes = message(abi::FUSE_READLINK, 0, &[]);
    bytes[0] += 1;
    let refused = parse(&bytes, &dumped()).unwrap_err();
    assert_eq!(refused.unique, Some(42));
    assert_eq!(
        refused.to_string(),
        "cannot read a FUSE request of the kernel (operation 5): its length differs from that in its header"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn bytes_of_any_content_are_parsed_or_refused(
        opcode in 0u32..60,
        extension_words in prop_oneof![4 => Just(0), 1 => 0u16..6, 1 => any::<u16>()],
        flags in any::<u64>(),
        body in proptest::collection::vec(prop_oneof![0u8..4, any::<u8>()], 0..200),
        split in 0usize..=128,
    ) {
        let session = session(flags);
        let bytes = message(opcode, extension_words, &body);
        match parse(&bytes, &session) {
            Ok(request) => prop_assert!(walk(&request) <= body.len()),
            Err(e) => prop_assert_eq!(e.unique, Some(42)),
        }
        let (op_in, payload) = body.split_at(split.min(body.len()));
        if let Ok(request) = parse_ring(&bytes[..40], op_in, payload, &session) {
            prop_assert!(walk(&request) <= body.len());
        }
    }

    #[test]
    fn damaged_requests_are_parsed_or_refused(
        which in 0usize..43,
        damage in proptest::collection::vec((0usize..200, any::<u8>()), 1..4),
    ) {
        let mut bytes = dumps().swap_remove(which).1;
        let len = bytes.len();
        for (at, byte) in damage {
            bytes[4 + at % (len - 4)] = byte;
        }
        if let Ok(request) = parse(&bytes, &dumped()) {
            prop_assert!(walk(&request) <= len);
        }
    }
}
