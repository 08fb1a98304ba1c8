//! INIT with kernels of several versions, and with each flag missing.

use fuse_proto::*;

/// All flags that this crate knows.
fn all() -> u64 {
    abi::INIT_FLAGS
        .iter()
        .map(|f| f.1)
        .fold(0, |all, flag| all | flag)
}

/// Flags that a kernel of the given version offers.
fn offered(minor: u32) -> u64 {
    let known = abi::INIT_FLAGS.iter().filter(|f| f.2 <= minor);
    known.map(|f| f.1).fold(0, |all, flag| all | flag)
}

fn offer(minor: u32, flags: u64) -> InitRequest {
    InitRequest {
        major: 7,
        minor,
        max_readahead: 128 << 10,
        flags,
    }
}

/// Wishes for everything but that which excludes passthrough.
fn wanted() -> Wanted {
    Wanted {
        flags: all() & !abi::FUSE_WRITEBACK_CACHE,
        max_write: 1 << 20,
        max_readahead: 1 << 20,
        max_background: 64,
        congestion_threshold: 48,
        max_stack_depth: 1,
        request_timeout: 30,
        ..Wanted::default()
    }
}

/// Writes INIT as a kernel does: before 7.36 without `flags2` and what follows it.
fn message(init: &InitRequest) -> Vec<u8> {
    let mut words = vec![
        init.major,
        init.minor,
        init.max_readahead,
        init.flags as u32,
    ];
    if init.minor >= 36 {
        words.push((init.flags >> 32) as u32);
        words.extend([0; 11]);
    }
    let mut out = (40 + 4 * words.len() as u32).to_ne_bytes().to_vec();
    out.extend(abi::FUSE_INIT.to_ne_bytes());
    out.extend(1u64.to_ne_bytes());
    out.extend([0; 24]);
    out.extend(words.iter().flat_map(|w| w.to_ne_bytes()));
    out
}

#[test]
fn each_version_gets_the_flags_that_it_knows() {
    for (minor, agreed) in [(31, 31), (36, 36), (45, 45), (99, 45)] {
        // A later kernel has a flag that this crate does not know.
        let flags = offered(minor) | if minor > 45 { 1 << 60 } else { 0 };
        let bytes = message(&offer(minor, flags));
        let request = parse(&bytes, &Session::new()).unwrap();
        let Operation::Init(init) = request.operation else {
            panic!()
        };
        assert_eq!(init, offer(minor, flags), "7.{minor} is read as it is sent");
        let (session, answer) = negotiate(&init, &wanted()).unwrap();
        assert_eq!(session.minor(), agreed);
        assert_eq!((answer.major, answer.minor), (7, agreed));
        assert_eq!(
            session.flags(),
            offered(minor) & !abi::FUSE_WRITEBACK_CACHE,
            "7.{minor}"
        );
        assert_eq!(answer.flags, session.flags());
        assert_eq!(session.offered(), flags);
        assert!(session.has(abi::FUSE_PARALLEL_DIROPS | abi::FUSE_MAX_PAGES));
        assert_eq!(session.has(abi::FUSE_HANDLE_KILLPRIV_V2), minor >= 33);
        assert_eq!(session.has(abi::FUSE_INIT_EXT), minor >= 36);
        assert_eq!(session.has(abi::FUSE_PASSTHROUGH), minor >= 40);
        assert_eq!(answer.max_stack_depth, u32::from(minor >= 40));
        assert_eq!(answer.request_timeout, if minor >= 43 { 30 } else { 0 });
        assert_eq!((session.max_write(), session.max_pages()), (1 << 20, 256));
        assert_eq!((answer.max_write, answer.max_pages), (1 << 20, 256));
        assert_eq!(answer.max_readahead, 128 << 10, "the lower of both");
        assert_eq!(
            (answer.max_background, answer.congestion_threshold),
            (64, 48)
        );
    }
}

#[test]
fn a_flag_that_one_side_leaves_out_is_off() {
    for &(name, flag, _) in abi::INIT_FLAGS {
        let (full, _) = negotiate(&offer(45, offered(45)), &wanted()).unwrap();
        let (by_kernel, _) = negotiate(&offer(45, offered(45) & !flag), &wanted()).unwrap();
        let mut wishes = wanted();
        wishes.flags &= !flag;
        let (by_server, answer) = negotiate(&offer(45, offered(45)), &wishes).unwrap();
        assert!(!by_kernel.has(flag), "{name}");
        // The kernel reads the upper half only with FUSE_INIT_EXT, so that it is always on.
        assert_eq!(by_server.has(flag), flag == abi::FUSE_INIT_EXT, "{name}");
        assert_eq!(answer.flags, by_server.flags());
        // The others stay, except for those that depend on it.
        let dependent = match flag {
            abi::FUSE_INIT_EXT => u64::MAX << 32,
            abi::FUSE_DO_READDIRPLUS => abi::FUSE_READDIRPLUS_AUTO,
            _ => 0,
        };
        assert_eq!(
            by_kernel.flags(),
            full.flags() & !flag & !dependent,
            "{name}"
        );
    }
}

#[test]
fn flags_that_the_kernel_would_ignore_are_off() {
    let full = offer(45, offered(45));
    let flags = |wanted: Wanted| negotiate(&full, &wanted).unwrap().0;
    assert!(flags(wanted()).has(abi::FUSE_PASSTHROUGH | abi::FUSE_REQUEST_TIMEOUT));
    let write_back = flags(Wanted {
        flags: all(),
        ..wanted()
    });
    assert!(write_back.has(abi::FUSE_WRITEBACK_CACHE));
    assert!(!write_back.has(abi::FUSE_PASSTHROUGH));
    assert!(
        !flags(Wanted {
            max_stack_depth: 0,
            ..wanted()
        })
        .has(abi::FUSE_PASSTHROUGH)
    );
    assert!(
        !flags(Wanted {
            request_timeout: 0,
            ..wanted()
        })
        .has(abi::FUSE_REQUEST_TIMEOUT)
    );
}

#[test]
fn sizes_are_within_what_the_kernel_can_send() {
    let sizes = |flags, max_write, page_bytes| {
        let wanted = Wanted {
            flags,
            max_write,
            page_bytes,
            ..Wanted::default()
        };
        let (session, answer) = negotiate(&offer(45, offered(45)), &wanted).unwrap();
        assert_eq!(answer.max_write, session.max_write());
        (session.max_write(), session.max_pages(), answer.max_pages)
    };
    let pages = abi::FUSE_MAX_PAGES;
    assert_eq!(
        sizes(0, 1 << 20, 4096),
        (128 << 10, 32, 0),
        "the kernel's default"
    );
    assert_eq!(sizes(0, 1 << 20, 65536), (1 << 20, 16, 0));
    assert_eq!(sizes(pages, 1 << 20, 65536), (1 << 20, 16, 16));
    assert_eq!(sizes(pages, 5000, 4096), (5000, 2, 2));
    assert_eq!(sizes(pages, 0, 4096), (4096, 1, 1));
    assert_eq!(sizes(pages, u32::MAX, 4096), (65535 * 4096, 65535, 65535));
    assert_eq!(
        sizes(pages, u32::MAX, 0),
        (65535, 65535, 65535),
        "no page size is no panic"
    );
    assert_eq!(sizes(pages, u32::MAX, u32::MAX), (u32::MAX, 1, 1));
}

#[test]
fn other_versions_are_refused() {
    let refusal = |major, minor| {
        let request = InitRequest {
            major,
            minor,
            max_readahead: 0,
            flags: all(),
        };
        negotiate(&request, &wanted()).unwrap_err()
    };
    for (major, minor) in [(7, 30), (7, 0), (6, 99), (0, 0)] {
        assert_eq!(refusal(major, minor), Refusal::TooOld { major, minor });
    }
    assert_eq!(
        refusal(7, 30).to_string(),
        "the kernel speaks FUSE 7.30, and 7.31 is the oldest supported version: use Linux 5.4 or newer"
    );
    let Refusal::NewerMajor {
        major: 8,
        minor: 1,
        reply,
    } = refusal(8, 1)
    else {
        panic!()
    };
    assert_eq!(
        reply,
        InitReply {
            major: 7,
            minor: 45,
            ..InitReply::default()
        }
    );
    // The kernel of that version then offers version 7.
    assert!(negotiate(&offer(45, all()), &wanted()).is_ok());
}

#[test]
fn an_init_of_a_later_version_may_be_longer() {
    let mut bytes = message(&offer(99, offered(45)));
    bytes.extend([0xff; 64]);
    let len = (bytes.len() as u32).to_ne_bytes();
    bytes[..4].copy_from_slice(&len);
    let request = parse(&bytes, &Session::new()).unwrap();
    assert_eq!(request.operation, Operation::Init(offer(99, offered(45))));
}

#[test]
fn nothing_is_agreed_on_before_init() {
    let session = Session::new();
    assert_eq!(
        (session.flags(), session.offered(), session.max_write()),
        (0, 0, 0)
    );
    assert_eq!(session, Session::default());
}
