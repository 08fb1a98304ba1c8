//! Server side of the fixed newstyle negotiation, from the greeting to the choice of an export.

use crate::constants as c;
use crate::{ProtocolError, Result};
use std::sync::Arc;

/// Longest option that is accepted, in bytes: a name of 4096 and room for information requests.
const OPTION_BYTES_MAX: u32 = 64 * 1024;
/// Longest export name ("Values of string fields": 4096 bytes).
const NAME_BYTES_MAX: usize = 4096;
/// Limit on options that a client may send before it chooses an export.
const OPTIONS_MAX: u32 = 256;
/// Length of an option's header in bytes: magic, type, length.
const OPTION_HEADER_BYTES: usize = 16;

/// Identifiers of the two contexts. They occur only in the reply that names the contexts.
const SESSION_CONTEXT_ID: u32 = 1;
const FENCE_CONTEXT_ID: u32 = 2;

/// Export as announced to clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportInfo {
    /// Name; a client that asks for the empty name gets the first export.
    pub name: String,
    /// Human-readable description.
    pub description: String,
    /// Size in bytes.
    pub size: u64,
    /// Transmission flags (`FLAG_*` in [`crate::constants`]).
    pub flags: u16,
    /// Smallest request in bytes; every offset and length is a multiple of it.
    pub block_min: u32,
    /// Preferred request size in bytes.
    pub block_preferred: u32,
    /// Largest request in bytes.
    pub block_max: u32,
}

/// TLS state of the connection and the server's requirement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsPolicy {
    /// TLS is not offered ("NOTLS").
    Never,
    /// Until TLS starts, options other than `NBD_OPT_STARTTLS` and `NBD_OPT_ABORT` are refused
    /// ("FORCEDTLS").
    Required,
    /// TLS is established.
    Active,
}

/// Next action for the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerStep {
    /// Send the output, then start TLS and a new [`Handshake`] with [`TlsPolicy::Active`].
    StartTls,
    /// Send the output; the client then sends requests for this export.
    Transmission {
        /// Index of the export.
        export: usize,
        /// The client accepts structured replies.
        structured: bool,
        /// Key by which a fence identifies this connection (`docs/protocol/nbd-fence.md`).
        session: Option<u64>,
    },
    /// Close all connections of the session `key` and ensure that none of its requests can still
    /// be carried out. Then call [`Handshake::fenced`] and continue with
    /// [`Handshake::handle_input`].
    Fence {
        /// Key of the session to end.
        key: u64,
    },
    /// Send the output and close the connection.
    Close,
}

/// Answer to a client that asked for an earlier session to be fenced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FenceResult {
    /// The session is known to have ended: none of its requests can still be carried out.
    Ended,
    /// The session is unknown, or did not end in time.
    Unconfirmed,
}

/// Server side of a negotiation.
///
/// After each [`Handshake::handle_input`] drain [`Handshake::take_output`], then check
/// [`Handshake::outcome`].
pub struct Handshake {
    exports: Arc<[ExportInfo]>,
    tls: TlsPolicy,
    client_flags: Option<u16>,
    structured: bool,
    session: Option<u64>,
    options: u32,
    output: Vec<u8>,
    outcome: Option<ServerStep>,
}

impl Handshake {
    /// Creates a handshake whose greeting is already in the output. Under TLS there is no greeting
    /// and the client does not repeat its flags, so the negotiation continues with options.
    pub fn new(exports: Arc<[ExportInfo]>, tls: TlsPolicy) -> Handshake {
        let mut output = Vec::new();
        let client_flags = match tls {
            TlsPolicy::Active => Some(c::FLAG_FIXED_NEWSTYLE | c::FLAG_NO_ZEROES),
            TlsPolicy::Never | TlsPolicy::Required => {
                output.extend(c::NBDMAGIC.to_be_bytes());
                output.extend(c::IHAVEOPT.to_be_bytes());
                output.extend((c::FLAG_FIXED_NEWSTYLE | c::FLAG_NO_ZEROES).to_be_bytes());
                None
            }
        };
        Handshake {
            exports,
            tls,
            client_flags,
            structured: false,
            session: None,
            options: 0,
            output,
            outcome: None,
        }
    }

    /// Processes the complete messages at the start of `bytes` and returns their length in bytes.
    /// Stops at an outcome: the bytes after it do not belong to this negotiation.
    ///
    /// # Errors
    /// The client violates the protocol or exceeds a limit.
    pub fn handle_input(&mut self, bytes: &[u8]) -> Result<usize> {
        let mut consumed = 0;
        while self.outcome.is_none() {
            let rest = bytes.get(consumed..).unwrap_or_default();
            let step = match self.client_flags {
                None => self.flags(rest)?,
                Some(_) => self.option(rest)?,
            };
            if step == 0 {
                break;
            }
            consumed += step;
        }
        Ok(consumed)
    }

    /// Takes the bytes to send to the client.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// Returns the outcome once the negotiation has ended, or the fence that it waits for.
    pub fn outcome(&self) -> Option<ServerStep> {
        self.outcome
    }

    /// Answers a pending [`ServerStep::Fence`]: includes the fence context in the reply if the
    /// session has ended. Does nothing if no fence is pending.
    pub fn fenced(&mut self, result: FenceResult) {
        let Some(ServerStep::Fence { key }) = self.outcome else {
            return;
        };
        self.outcome = None;
        self.contexts((result == FenceResult::Ended).then_some(key));
    }

    fn flags(&mut self, bytes: &[u8]) -> Result<usize> {
        let Some((flags, _)) = bytes.split_first_chunk::<4>() else {
            return Ok(0);
        };
        let flags = u32::from_be_bytes(*flags);
        let known = u32::from(c::FLAG_FIXED_NEWSTYLE | c::FLAG_NO_ZEROES);
        // "Client flags": the server must close the connection on unknown bits, and may insist on
        // fixed newstyle. Without fixed newstyle an unknown option could not be refused.
        if flags & !known != 0 || flags & u32::from(c::FLAG_FIXED_NEWSTYLE) == 0 {
            return Err(ProtocolError(format!(
                "unsupported client flags {flags:#x}"
            )));
        }
        self.client_flags = Some(if flags & u32::from(c::FLAG_NO_ZEROES) != 0 {
            c::FLAG_FIXED_NEWSTYLE | c::FLAG_NO_ZEROES
        } else {
            c::FLAG_FIXED_NEWSTYLE
        });
        Ok(4)
    }

    fn option(&mut self, bytes: &[u8]) -> Result<usize> {
        let Some((magic, rest)) = bytes.split_first_chunk::<8>() else {
            return Ok(0);
        };
        let Some((kind, rest)) = rest.split_first_chunk::<4>() else {
            return Ok(0);
        };
        let Some((len, rest)) = rest.split_first_chunk::<4>() else {
            return Ok(0);
        };
        if u64::from_be_bytes(*magic) != c::IHAVEOPT {
            return Err(ProtocolError("an option has a wrong magic number".into()));
        }
        let (kind, len) = (u32::from_be_bytes(*kind), u32::from_be_bytes(*len));
        if len > OPTION_BYTES_MAX {
            return Err(ProtocolError(format!(
                "an option of {len} bytes is too long"
            )));
        }
        let len = len as usize;
        let Some(data) = rest.get(..len) else {
            return Ok(0);
        };
        self.options += 1;
        if self.options > OPTIONS_MAX {
            return Err(ProtocolError("too many options".into()));
        }
        self.answer(kind, data)?;
        Ok(OPTION_HEADER_BYTES + len)
    }

    fn answer(&mut self, kind: u32, data: &[u8]) -> Result<()> {
        if self.tls == TlsPolicy::Required && !matches!(kind, c::OPT_STARTTLS | c::OPT_ABORT) {
            if kind == c::OPT_EXPORT_NAME {
                // A server can refuse this option only by closing the connection.
                self.outcome = Some(ServerStep::Close);
            } else {
                self.reply(
                    kind,
                    c::REP_ERR_TLS_REQD,
                    b"this server answers only under TLS",
                );
            }
            return Ok(());
        }
        match kind {
            c::OPT_EXPORT_NAME => self.export_name(data),
            c::OPT_ABORT => {
                self.reply(kind, c::REP_ACK, &[]);
                self.outcome = Some(ServerStep::Close);
            }
            c::OPT_LIST if data.is_empty() => self.list(kind),
            c::OPT_STARTTLS if data.is_empty() && self.tls == TlsPolicy::Required => {
                self.reply(kind, c::REP_ACK, &[]);
                self.outcome = Some(ServerStep::StartTls);
            }
            c::OPT_STARTTLS if self.tls == TlsPolicy::Never => {
                self.reply(kind, c::REP_ERR_UNSUP, b"no certificate is configured");
            }
            c::OPT_INFO | c::OPT_GO => self.info_or_go(kind, data),
            c::OPT_STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                self.reply(kind, c::REP_ACK, &[]);
            }
            c::OPT_LIST_META_CONTEXT | c::OPT_SET_META_CONTEXT => self.meta_context(kind, data),
            c::OPT_LIST | c::OPT_STARTTLS | c::OPT_STRUCTURED_REPLY => {
                self.reply(
                    kind,
                    c::REP_ERR_INVALID,
                    b"this option has no data, or not now",
                );
            }
            _ => self.reply(
                kind,
                c::REP_ERR_UNSUP,
                b"this server does not know that option",
            ),
        }
        Ok(())
    }

    fn reply(&mut self, option: u32, kind: u32, data: &[u8]) {
        let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
        self.output.extend(c::REP_MAGIC.to_be_bytes());
        self.output.extend(option.to_be_bytes());
        self.output.extend(kind.to_be_bytes());
        self.output.extend(len.to_be_bytes());
        self.output.extend(data);
    }

    fn find(&self, name: &[u8]) -> Option<usize> {
        if name.is_empty() && !self.exports.is_empty() {
            return Some(0);
        }
        self.exports.iter().position(|e| e.name.as_bytes() == name)
    }

    fn choose(&mut self, export: usize) {
        self.outcome = Some(ServerStep::Transmission {
            export,
            structured: self.structured,
            session: self.session,
        });
    }

    /// Handles the legacy `NBD_OPT_EXPORT_NAME`, which has no error reply.
    fn export_name(&mut self, name: &[u8]) {
        let found = self
            .find(name)
            .and_then(|index| Some((index, self.exports.get(index)?.clone())));
        let Some((index, export)) = found.filter(|_| name.len() <= NAME_BYTES_MAX) else {
            self.outcome = Some(ServerStep::Close);
            return;
        };
        self.output.extend(export.size.to_be_bytes());
        self.output.extend(export.flags.to_be_bytes());
        if self
            .client_flags
            .is_some_and(|flags| flags & c::FLAG_NO_ZEROES == 0)
        {
            self.output.extend([0; 124]);
        }
        self.choose(index);
    }

    fn list(&mut self, option: u32) {
        for export in self.exports.clone().iter() {
            let name_len = u32::try_from(export.name.len()).unwrap_or(0);
            let mut data = Vec::from(name_len.to_be_bytes());
            data.extend(export.name.as_bytes());
            data.extend(export.description.as_bytes());
            self.reply(option, c::REP_SERVER, &data);
        }
        self.reply(option, c::REP_ACK, &[]);
    }

    /// Handles `NBD_OPT_INFO` and `NBD_OPT_GO`: name length, name, count, information types.
    fn info_or_go(&mut self, option: u32, data: &[u8]) {
        let Some((name, wanted)) = parse_info(data) else {
            self.reply(option, c::REP_ERR_INVALID, b"this option is malformed");
            return;
        };
        let found = self
            .find(name)
            .and_then(|index| Some((index, self.exports.get(index)?.clone())));
        let Some((index, export)) = found else {
            self.reply(
                option,
                c::REP_ERR_UNKNOWN,
                b"there is no export of that name",
            );
            return;
        };
        let mut info = Vec::from(c::INFO_EXPORT.to_be_bytes());
        info.extend(export.size.to_be_bytes());
        info.extend(export.flags.to_be_bytes());
        self.reply(option, c::REP_INFO, &info);
        let mut text = |kind: u16, text: &str| {
            if wanted.contains(&kind) {
                let mut info = Vec::from(kind.to_be_bytes());
                info.extend(text.as_bytes());
                self.reply(option, c::REP_INFO, &info);
            }
        };
        text(c::INFO_NAME, &export.name);
        text(c::INFO_DESCRIPTION, &export.description);
        // Sent even if not requested, so that the client knows the limits ("Block size
        // constraints").
        let mut info = Vec::from(c::INFO_BLOCK_SIZE.to_be_bytes());
        for size in [export.block_min, export.block_preferred, export.block_max] {
            info.extend(size.to_be_bytes());
        }
        self.reply(option, c::REP_INFO, &info);
        self.reply(option, c::REP_ACK, &[]);
        if option == c::OPT_GO {
            self.choose(index);
        }
    }

    /// Handles `NBD_OPT_LIST_META_CONTEXT` and `NBD_OPT_SET_META_CONTEXT`. The list is always
    /// empty. Two contexts can be set; each selection replaces the previous one.
    fn meta_context(&mut self, option: u32, data: &[u8]) {
        let Some(query) = parse_query(data).filter(|_| self.structured) else {
            self.reply(
                option,
                c::REP_ERR_INVALID,
                b"this option is malformed, or comes before structured replies",
            );
            return;
        };
        if self.find(query.export).is_none() {
            self.reply(
                option,
                c::REP_ERR_UNKNOWN,
                b"there is no export of that name",
            );
            return;
        }
        if option == c::OPT_LIST_META_CONTEXT {
            self.reply(option, c::REP_ACK, &[]);
            return;
        }
        self.session = query.session;
        match query.fence {
            Some(key) => self.outcome = Some(ServerStep::Fence { key }),
            None => self.contexts(None),
        }
    }

    /// Answers `NBD_OPT_SET_META_CONTEXT` with the contexts in effect.
    fn contexts(&mut self, fenced: Option<u64>) {
        let contexts = [
            (SESSION_CONTEXT_ID, c::SESSION_CONTEXT, self.session),
            (FENCE_CONTEXT_ID, c::FENCE_CONTEXT, fenced),
        ];
        for (id, context, key) in contexts {
            if let Some(key) = key {
                let mut data = Vec::from(id.to_be_bytes());
                data.extend(format!("{context}{key:016x}").as_bytes());
                self.reply(c::OPT_SET_META_CONTEXT, c::REP_META_CONTEXT, &data);
            }
        }
        self.reply(c::OPT_SET_META_CONTEXT, c::REP_ACK, &[]);
    }
}

/// Recognized content of a meta context option.
struct Query<'a> {
    export: &'a [u8],
    session: Option<u64>,
    fence: Option<u64>,
}

/// Parses export, count and `count` queries. A connection has one key and an option ends one
/// session, so more than one of either is malformed. Unknown queries are ignored.
fn parse_query(data: &[u8]) -> Option<Query<'_>> {
    let (export, rest) = string(data)?;
    let (count, mut rest) = rest.split_first_chunk::<4>()?;
    let (mut session, mut fence) = (None, None);
    for _ in 0..u32::from_be_bytes(*count) {
        let (name, after) = string(rest)?;
        rest = after;
        for (context, held) in [
            (c::SESSION_CONTEXT, &mut session),
            (c::FENCE_CONTEXT, &mut fence),
        ] {
            if let Some(key) = key_of(name, context)
                && held.replace(key).is_some()
            {
                return None;
            }
        }
    }
    rest.is_empty().then_some(Query {
        export,
        session,
        fence,
    })
}

/// Parses the key in `name`: `context` followed by 16 lowercase hexadecimal digits.
fn key_of(name: &[u8], context: &str) -> Option<u64> {
    let digits = name.strip_prefix(context.as_bytes())?;
    let small = digits
        .iter()
        .all(|d| matches!(d, b'0'..=b'9' | b'a'..=b'f'));
    let digits = std::str::from_utf8(digits).ok()?;
    (small && digits.len() == 16)
        .then(|| u64::from_str_radix(digits, 16).ok())
        .flatten()
}

/// Splits off a length-prefixed string, the encoding of names in options.
fn string(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = data.split_first_chunk::<4>()?;
    let len = u32::from_be_bytes(*len) as usize;
    rest.split_at_checked(len).filter(|_| len <= NAME_BYTES_MAX)
}

fn parse_info(data: &[u8]) -> Option<(&[u8], Vec<u16>)> {
    let (name, rest) = string(data)?;
    let (count, rest) = rest.split_first_chunk::<2>()?;
    let wanted: Vec<u16> = rest
        .chunks_exact(2)
        .filter_map(|pair| Some(u16::from_be_bytes(pair.try_into().ok()?)))
        .collect();
    let whole = rest.len() == 2 * usize::from(u16::from_be_bytes(*count));
    whole.then_some((name, wanted))
}
