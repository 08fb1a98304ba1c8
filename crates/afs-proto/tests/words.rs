//! Text forms and named numbers: rights, access lists, abort codes, errors.

use afs_proto::acl::{AccessList, AclError, ENTRIES_MAX, Entry};
use afs_proto::{Abort, Rights, uae};

fn entry(name: &str, rights: Rights) -> Entry {
    let name = name.into();
    Entry { name, rights }
}

#[test]
fn rights_are_written_and_read_as_letters() {
    let cases = [
        (0, ""),
        (0x7f, "rlidwka"),
        (0x09, "rl"),
        (0x02, "w"),
        (0x3f, "rlidwk"),
        (0xff00_0000, "ABCDEFGH"),
        (0x8100_0041, "raAH"),
    ];
    for (bits, letters) in cases {
        assert_eq!(Rights(bits).to_string(), letters);
        assert_eq!(letters.parse(), Ok(Rights(bits)));
    }
    assert_eq!(format!("{:>4}|{:<4}", Rights(9), Rights(9)), "  rl|rl  ");
    assert_eq!(
        "adr".parse(),
        Ok(Rights::ADMINISTER.or(Rights::DELETE).or(Rights::READ))
    );
    assert_eq!("rx".parse::<Rights>().map_err(|e| e.0), Err('x'));
    assert!(Rights::ALL.has(Rights::READ_LOOKUP) && !Rights::READ.has(Rights::READ_LOOKUP));
    assert_eq!(Rights::ALL.without(Rights::READ).to_string(), "lidwka");
}

#[test]
fn an_access_list_is_read_as_servers_and_as_clients_write_it() {
    let expected = AccessList::new(
        vec![
            entry("system:anyuser", Rights::READ_LOOKUP),
            entry("system:administrators", Rights::ALL),
        ],
        vec![entry("mallory", Rights(0x8000_007f))],
    )
    .expect("a good list");
    let server = "2\n1\nsystem:anyuser\t9\nsystem:administrators\t127\nmallory\t-2147483521\n";
    let client = "2\n1\nsystem:anyuser 9\nsystem:administrators 127\nmallory 2147483775\n";
    for text in [server, client, &format!("{server}\0")] {
        assert_eq!(AccessList::parse(text.as_bytes()).as_ref(), Ok(&expected));
    }
    assert_eq!(expected.to_text(), Ok(format!("{server}\0").into_bytes()));
    assert_eq!(AccessList::parse(b"0\n0\n"), Ok(AccessList::default()));
    assert_eq!(
        AccessList::default().to_text().as_deref(),
        Ok(&b"0\n0\n\0"[..])
    );
}

#[test]
fn negative_rights_are_taken_away() {
    let list = AccessList::new(
        vec![
            entry("system:anyuser", Rights::READ_LOOKUP),
            entry("joe", Rights::WRITE),
        ],
        vec![entry("joe", Rights::READ)],
    )
    .expect("a good list");
    let joe = list.rights_of(|name| ["system:anyuser", "joe"].contains(&name));
    assert_eq!(joe.to_string(), "lw");
    assert_eq!(
        list.rights_of(|name| name == "system:anyuser"),
        Rights::READ_LOOKUP
    );
    assert_eq!(list.rights_of(|_| false), Rights::NONE);
}

#[test]
fn what_is_no_access_list_is_refused_with_its_line() {
    let cases: [(&[u8], AclError); 13] = [
        (b"", AclError::Line(1)),
        (b"1\n", AclError::Line(2)),
        (b"-1\n0\n", AclError::Line(1)),
        (b"1 dfs:1 cell\n0\njoe 1\n", AclError::Line(1)),
        (b"1\n0\n", AclError::Line(3)),
        (b"1\n0\njoe\n", AclError::Line(3)),
        (b"1\n0\njoe 1 2\n", AclError::Line(3)),
        (b"1\n0\njoe read\n", AclError::Line(3)),
        (b"1\n0\njoe 4294967296\n", AclError::Line(3)),
        (b"1\n0\njoe 1\njim 1\n", AclError::Line(4)),
        (b"20\n1\n", AclError::TooMany),
        (b"1\n0\njoe\0 1\n", AclError::NotText),
        (b"\xff\n0\n", AclError::NotText),
    ];
    for (text, error) in cases {
        assert_eq!(
            AccessList::parse(text),
            Err(error),
            "{}",
            text.escape_ascii()
        );
    }
    let long = format!("1\n0\n{} 1\n", "n".repeat(64));
    assert_eq!(AccessList::parse(long.as_bytes()), Err(AclError::Name));
    assert_eq!(AccessList::parse(&[b' '; 1025]), Err(AclError::TooLong));
    let huge = "18446744073709551615\n18446744073709551615\n";
    assert_eq!(AccessList::parse(huge.as_bytes()), Err(AclError::TooMany));
    let spaced = AccessList::new(vec![entry("two words", Rights::READ)], vec![]);
    assert_eq!(spaced, Err(AclError::Name));
}

/// Twenty entries can exceed the text length that a call carries.
#[test]
fn a_list_too_long_for_a_call_is_not_written() {
    let entries: Vec<Entry> = (0..ENTRIES_MAX)
        .map(|n| entry(&format!("{n:063}"), Rights::ALL))
        .collect();
    let list = AccessList::new(entries.clone(), vec![]).expect("twenty entries");
    assert_eq!(list.to_text(), Err(AclError::TooLong));
    let more = AccessList::new(entries, vec![entry("one more", Rights::READ)]);
    assert_eq!(more, Err(AclError::TooMany));
}

#[test]
fn codes_have_their_names() {
    let cases = [
        (Abort::VNOVNODE, 102, "VNOVNODE (102)"),
        (Abort::VMOVED, 111, "VMOVED (111)"),
        (Abort::RXGEN_OPCODE, -455, "RXGEN_OPCODE (-455)"),
        (Abort::VL_NOENT, 363524, "VL_NOENT (363524)"),
        (Abort::VL_BADMASK, 363551, "VL_BADMASK (363551)"),
        (Abort(uae::BASE + 0x78), 49733496, "UAEDQUOT (49733496)"),
        (Abort(7), 7, "7"),
    ];
    for (code, number, words) in cases {
        assert_eq!((code.0, code.to_string()), (number, words.into()));
    }
}

/// Compares each name of the table with the C library's constant of that name.
#[test]
fn the_error_table_agrees_with_the_c_library() {
    macro_rules! errors {
        ($($name:ident)*) => { [$((stringify!($name), libc::$name)),*] };
    }
    let errors = errors! {
        EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT
        ENOTBLK EBUSY EEXIST EXDEV ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG
        ENOSPC ESPIPE EROFS EMLINK EPIPE EDOM ERANGE EDEADLK ENAMETOOLONG ENOLCK ENOSYS ENOTEMPTY
        ELOOP EWOULDBLOCK ENOMSG EIDRM ECHRNG EL2NSYNC EL3HLT EL3RST ELNRNG EUNATCH ENOCSI EL2HLT
        EBADE EBADR EXFULL ENOANO EBADRQC EBADSLT EBFONT ENOSTR ENODATA ETIME ENOSR ENONET ENOPKG
        EREMOTE ENOLINK EADV ESRMNT ECOMM EPROTO EMULTIHOP EDOTDOT EBADMSG EOVERFLOW ENOTUNIQ
        EBADFD EREMCHG ELIBACC ELIBBAD ELIBSCN ELIBMAX ELIBEXEC EILSEQ ERESTART ESTRPIPE EUSERS
        ENOTSOCK EDESTADDRREQ EMSGSIZE EPROTOTYPE ENOPROTOOPT EPROTONOSUPPORT ESOCKTNOSUPPORT
        EOPNOTSUPP EPFNOSUPPORT EAFNOSUPPORT EADDRINUSE EADDRNOTAVAIL ENETDOWN ENETUNREACH ENETRESET
        ECONNABORTED ECONNRESET ENOBUFS EISCONN ENOTCONN ESHUTDOWN ETOOMANYREFS ETIMEDOUT
        ECONNREFUSED EHOSTDOWN EHOSTUNREACH EALREADY EINPROGRESS ESTALE EUCLEAN ENOTNAM ENAVAIL
        EISNAM EREMOTEIO EDQUOT ENOMEDIUM EMEDIUMTYPE ECANCELED ENOTRECOVERABLE ENOTSUP EOTHER
        EOWNERDEAD EPROCLIM EDISCON
    };
    assert_eq!(errors.len(), 130);
    for ((name, errno), code) in errors.into_iter().zip(uae::BASE..) {
        let code = Abort(code);
        assert_eq!(code.name(), Some(format!("UA{name}").as_str()));
        assert_eq!(code.errno(), (errno != 0).then_some(errno), "{name}");
        if errno != 0 && !["EWOULDBLOCK", "ENOTSUP"].contains(&name) {
            assert_eq!(uae::from_errno(errno), Some(code), "{name}");
        }
    }
    assert_eq!(Abort(uae::BASE + 130).name(), None);
    assert_eq!(Abort(uae::BASE - 1).errno(), None);
    assert_eq!(Abort(i32::MIN).errno(), None);
    assert_eq!(Abort::from_errno(libc::EWOULDBLOCK), Abort(uae::BASE + 10));
    assert_eq!(Abort::from_errno(libc::ENOTSUP), Abort(uae::BASE + 0x5d));
}

/// Names of the table that Linux does not define.
mod libc {
    pub use ::libc::*;
    pub const EOTHER: i32 = 0;
    pub const EPROCLIM: i32 = 0;
    pub const EDISCON: i32 = 0;
}

#[test]
fn each_error_of_linux_has_a_code_and_comes_back_from_it() {
    // No code: EDEADLOCK (same as EDEADLK); errors of keys and radio switches do not concern files.
    let without = [0, 41, 58, 126, 127, 128, 129, 132, 133];
    for errno in 0..=133 {
        let code = uae::from_errno(errno);
        assert_eq!(code.is_none(), without.contains(&errno), "{errno}");
        if let Some(code) = code {
            assert_eq!(code.errno(), Some(errno));
        }
    }
    for errno in [-1, 134, 256 + 2, i32::MAX, i32::MIN, libc::ENOKEY] {
        assert_eq!(uae::from_errno(errno), None);
        assert_eq!(Abort::from_errno(errno).errno(), Some(libc::EIO));
    }
}
