//! A request of the kernel, as read by our server, whole and in the parts of an io_uring entry.
//!
//! The first 8 bytes are the flags that INIT agreed on, the next one the size of the first part of
//! a ring's request; the rest is the message, whose length is made right.
//!
//! Claims: parsing never panics; names, data and extensions are no longer than the message; where
//! both forms are accepted with the same arguments, they yield the same operation; INIT yields only
//! flags that both sides want, and sizes of at least a page.
#![no_main]

use fuse_proto::{
    Extensions, InitRequest, Operation, Request, Session, Wanted, negotiate, parse, parse_ring, reply,
};
use libfuzzer_sys::fuzz_target;

fn session(flags: u64) -> Session {
    let offer = InitRequest { major: 7, minor: 45, max_readahead: 0, flags };
    let wanted = Wanted { flags, ..Wanted::default() };
    negotiate(&offer, &wanted).expect("the version is supported").0
}

/// Returns the number of bytes in the parts of the extensions.
fn extension_bytes(extensions: Extensions) -> usize {
    let contexts = extensions.security_contexts();
    contexts.map(|(name, value)| name.len() + value.len()).sum()
}

/// Returns the number of bytes in the parts of a request.
fn bytes(request: &Request) -> usize {
    match request.operation {
        Operation::Lookup { name } | Operation::Unlink { name } | Operation::RmDir { name } => {
            assert!(!name.is_empty() && !name.contains(&b'/') && !name.contains(&0));
            let mut directory = reply::Directory::new(Vec::new(), 8192);
            assert!(directory.add(1, 1, 0, name));
            let written = directory.finish(request.header.unique);
            assert_eq!(&written[40..40 + name.len()], name);
            name.len()
        }
        Operation::BatchForget(forgets) => {
            let count = forgets.len();
            assert_eq!(forgets.count(), count);
            count * 16
        }
        Operation::Symlink { name, target, extensions } => {
            name.len() + target.len() + extension_bytes(extensions)
        }
        Operation::MkNod { name, extensions, .. } | Operation::MkDir { name, extensions, .. } => {
            name.len() + extension_bytes(extensions)
        }
        Operation::Create(create) | Operation::TmpFile(create) => {
            create.name.len() + extension_bytes(create.extensions)
        }
        Operation::Rename { name, new_name, .. } => name.len() + new_name.len(),
        Operation::Write(write) => write.data.len(),
        Operation::Ioctl(ioctl) => ioctl.input.len(),
        Operation::SetXattr { name, value, .. } => name.len() + value.len(),
        Operation::NotifyReply { data, .. } => data.len(),
        Operation::Init(init) => {
            let wanted = Wanted { flags: !0, max_stack_depth: 1, ..Wanted::default() };
            if let Ok((session, answer)) = negotiate(&init, &wanted) {
                assert_eq!(session.flags() & !init.flags, 0);
                assert!(answer.max_write >= 4096 && answer.minor <= init.minor);
            }
            0
        }
        _ => 0,
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((flags, rest)) = data.split_first_chunk::<8>() else { return };
    let Some((split, message)) = rest.split_first() else { return };
    let session = session(u64::from_ne_bytes(*flags));
    let mut message = message.to_vec();
    if let Some(len) = message.first_chunk_mut::<4>() {
        *len = (rest.len() as u32 - 1).to_ne_bytes();
    }
    let flat = parse(&message, &session);
    match &flat {
        Ok(request) => assert!(bytes(request) <= message.len()),
        Err(e) => assert_eq!(e.unique.is_some(), message.len() >= 40),
    }
    let Some((header, body)) = message.split_at_checked(40) else { return };
    let (op_in, payload) = body.split_at(body.len().min(usize::from(*split)));
    let ring = parse_ring(header, op_in, payload, &session);
    if let Ok(request) = &ring {
        assert!(bytes(request) <= body.len());
    }
    // Without a structure, the first part of a ring's request is not read.
    if let (true, Ok(flat), Ok(ring)) = (op_in.is_empty(), flat, ring) {
        assert_eq!(flat.operation, ring.operation);
    }
});
