//! Extensions of a request that creates a file.

use crate::abi;
use crate::read::{Arguments, Wrong};

/// Security contexts and group for a new file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Extensions<'a> {
    contexts: SecurityContexts<'a>,
    group: Option<u32>,
}

impl<'a> Extensions<'a> {
    /// Extended attributes that the kernel's security modules want on the new file: an iterator of
    /// names and values. Present only with `FUSE_SECURITY_CTX`.
    pub fn security_contexts(&self) -> SecurityContexts<'a> {
        self.contexts
    }

    /// The caller's supplementary group that is the group of the directory. Present only with
    /// `FUSE_CREATE_SUPP_GROUP`.
    pub fn group(&self) -> Option<u32> {
        self.group
    }

    /// Reads and checks the extensions.
    pub(crate) fn parse(mut bytes: &'a [u8]) -> Result<Extensions<'a>, Wrong> {
        let mut extensions = Extensions::default();
        while !bytes.is_empty() {
            let mut arguments = Arguments {
                first: None,
                rest: bytes,
            };
            let header: abi::fuse_ext_header = arguments.fixed()?;
            let size = usize::try_from(header.size).map_err(|_| WRONG_SIZE)?;
            let body = size.checked_sub(size_of_val(&header)).ok_or(WRONG_SIZE)?;
            let body = arguments.data(body).map_err(|_| WRONG_SIZE)?;
            // Each extension begins at a multiple of 8 bytes; the last need not end at one.
            let next = size.next_multiple_of(8);
            bytes = bytes.get(next..).unwrap_or_default();
            match header.r#type {
                count @ 0..=abi::FUSE_MAX_NR_SECCTX => {
                    extensions.contexts = SecurityContexts {
                        bytes: body,
                        left: count,
                    };
                    extensions.contexts.check()?;
                }
                abi::FUSE_EXT_GROUPS => extensions.group = group(body)?,
                // Later kernels may add types.
                _ => {}
            }
        }
        Ok(extensions)
    }
}

const WRONG_SIZE: Wrong = "an extension has a wrong size";

/// Reads the supplementary groups, of which the kernel sends at most one.
fn group(body: &[u8]) -> Result<Option<u32>, Wrong> {
    let mut arguments = Arguments {
        first: None,
        rest: body,
    };
    let groups: abi::fuse_supp_groups = arguments.fixed()?;
    match groups.nr_groups {
        0 => Ok(None),
        1 => arguments.fixed::<u32>().map(Some),
        _ => Err("a request has more than one supplementary group"),
    }
}

/// Name and value of an extended attribute.
type Context<'a> = (&'a [u8], &'a [u8]);

/// Security contexts of a request: an iterator of names and values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SecurityContexts<'a> {
    bytes: &'a [u8],
    left: u32,
}

impl<'a> SecurityContexts<'a> {
    fn check(mut self) -> Result<(), Wrong> {
        while let Some(context) = self.read_next() {
            context?;
        }
        Ok(())
    }

    /// Takes the next context.
    fn read_next(&mut self) -> Option<Result<Context<'a>, Wrong>> {
        self.left = self.left.checked_sub(1)?;
        let mut arguments = Arguments {
            first: None,
            rest: self.bytes,
        };
        let mut read = || {
            let context: abi::fuse_secctx = arguments.fixed()?;
            let name = arguments.string()?;
            let size = usize::try_from(context.size).map_err(|_| WRONG_SIZE)?;
            Ok((name, arguments.data(size)?))
        };
        let context = read();
        // Each context begins at a multiple of 8 bytes.
        let used = self.bytes.len() - arguments.rest.len();
        self.bytes = self
            .bytes
            .get(used.next_multiple_of(8)..)
            .unwrap_or_default();
        Some(context)
    }
}

impl<'a> Iterator for SecurityContexts<'a> {
    type Item = Context<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read_next()?.ok()
    }
}
