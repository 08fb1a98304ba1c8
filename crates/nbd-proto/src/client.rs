//! Client side of NBD: negotiation up to the choice of an export, then requests and replies.
//!
//! ```text
//!   ClientHandshake::handle_input(bytes) ──► take_output() ──► outcome(): StartTls | Transmission
//!   request(..) ──► 28 bytes ──► the driver sends them and the payload
//!   Reply::parse(bytes) ──► cookie of the request, length and kind of the payload
//! ```

use crate::constants as c;
use crate::{ProtocolError, Result};

/// Longest option reply that is accepted, in bytes.
const REPLY_BYTES_MAX: u32 = 64 * 1024;
/// Limit on replies to all options together; a server that sends more is refused.
const REPLIES_MAX: u32 = 1024;
/// Largest request if the server states no limit ("Block size constraints": 32 MiB).
const BLOCK_MAX_DEFAULT: u32 = 32 << 20;
/// Longest payload of a structured error chunk that is accepted, in bytes.
pub const ERROR_BYTES_MAX: u32 = 4096 + 16;
/// Length of a simple reply, and of the fields of a structured reply up to the cookie, in bytes.
pub const SIMPLE_REPLY_BYTES: usize = 16;
/// Length of the header of a structured reply chunk, in bytes.
pub const CHUNK_BYTES: usize = 20;

/// Options that the client negotiates with a server.
#[derive(Debug, Clone, Default)]
pub struct ClientOptions {
    /// Name of the export; empty for the server's default.
    pub export: String,
    /// Fail unless the server starts TLS.
    pub tls: bool,
    /// Full names of the meta contexts to request. Requires structured replies.
    pub contexts: Vec<String>,
    /// Query the export without entering transmission; ends with [`ClientStep::Told`].
    pub info_only: bool,
}

/// Properties of the export as reported by the server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServerExport {
    /// Size in bytes.
    pub size: u64,
    /// Transmission flags (`FLAG_*` in [`crate::constants`]).
    pub flags: u16,
    /// Human-readable description; may contain `wwid=...`.
    pub description: String,
    /// Smallest request in bytes and alignment of offsets and lengths. A power of two.
    pub block_min: u32,
    /// Preferred request size in bytes.
    pub block_preferred: u32,
    /// Largest request in bytes.
    pub block_max: u32,
    /// The server sends structured replies.
    pub structured: bool,
    /// Meta contexts that the server accepted.
    pub contexts: Vec<String>,
}

impl ServerExport {
    /// Checks whether the transmission flag `flag` is set.
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// Next action for the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientStep {
    /// Start TLS, then continue with [`ClientHandshake::under_tls`].
    StartTls,
    /// Send the output; the connection is then ready for requests.
    Transmission(ServerExport),
    /// Send the output and close the connection. Carries the requested information.
    Told(ServerExport),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Greeting,
    StartTls,
    Structured,
    Contexts,
    Go,
    ExportName,
    End,
}

/// Client side of a negotiation ("Fixed newstyle negotiation").
pub struct ClientHandshake {
    wish: ClientOptions,
    stage: Stage,
    no_zeroes: bool,
    replies: u32,
    export: ServerExport,
    output: Vec<u8>,
    outcome: Option<ClientStep>,
}

impl ClientHandshake {
    /// Creates a handshake that expects the server's greeting.
    pub fn new(wish: ClientOptions) -> ClientHandshake {
        ClientHandshake {
            wish,
            stage: Stage::Greeting,
            no_zeroes: false,
            replies: 0,
            export: ServerExport {
                block_min: 1,
                block_preferred: 4096,
                block_max: BLOCK_MAX_DEFAULT,
                ..ServerExport::default()
            },
            output: Vec::new(),
            outcome: None,
        }
    }

    /// Creates a handshake that continues under TLS, where neither side repeats its greeting.
    pub fn under_tls(wish: ClientOptions) -> ClientHandshake {
        let mut handshake = ClientHandshake::new(wish);
        handshake.no_zeroes = true;
        handshake.ask_structured();
        handshake
    }

    /// Takes the bytes to send to the server.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// Returns the outcome once the negotiation has ended.
    pub fn outcome(&self) -> Option<&ClientStep> {
        self.outcome.as_ref()
    }

    /// Processes the complete messages at the start of `bytes` and returns their length in bytes.
    ///
    /// # Errors
    /// The server violates the protocol or refuses a requested option; the message says which.
    pub fn handle_input(&mut self, bytes: &[u8]) -> Result<usize> {
        let mut consumed = 0;
        while self.outcome.is_none() {
            let rest = bytes.get(consumed..).unwrap_or_default();
            let step = match self.stage {
                Stage::Greeting => self.greeting(rest)?,
                Stage::ExportName => self.export_name(rest)?,
                _ => self.option_reply(rest)?,
            };
            if step == 0 {
                break;
            }
            consumed += step;
        }
        Ok(consumed)
    }

    fn greeting(&mut self, bytes: &[u8]) -> Result<usize> {
        let mut r = Reader(bytes);
        let (Some(magic), Some(option_magic), Some(flags)) = (r.u64(), r.u64(), r.u16()) else {
            return Ok(0);
        };
        if magic != c::NBDMAGIC || option_magic != c::IHAVEOPT {
            return Err(bad("the server does not send a newstyle greeting"));
        }
        if flags & c::FLAG_FIXED_NEWSTYLE == 0 {
            return Err(bad(
                "the server does not support fixed newstyle negotiation",
            ));
        }
        self.no_zeroes = flags & c::FLAG_NO_ZEROES != 0;
        let answer = flags & (c::FLAG_FIXED_NEWSTYLE | c::FLAG_NO_ZEROES);
        self.output.extend(u32::from(answer).to_be_bytes());
        if self.wish.tls {
            self.option(c::OPT_STARTTLS, &[]);
            self.stage = Stage::StartTls;
        } else {
            self.ask_structured();
        }
        Ok(18)
    }

    fn option(&mut self, kind: u32, data: &[u8]) {
        self.output.extend(c::IHAVEOPT.to_be_bytes());
        self.output.extend(kind.to_be_bytes());
        self.output.extend(length(data).to_be_bytes());
        self.output.extend(data);
    }

    fn ask_structured(&mut self) {
        self.option(c::OPT_STRUCTURED_REPLY, &[]);
        self.stage = Stage::Structured;
    }

    /// Sends `NBD_OPT_SET_META_CONTEXT`: export, count, names.
    fn ask_contexts(&mut self) {
        if !self.export.structured || self.wish.contexts.is_empty() {
            return self.ask_go();
        }
        let mut data = Vec::from(length(self.wish.export.as_bytes()).to_be_bytes());
        data.extend(self.wish.export.as_bytes());
        let count = u32::try_from(self.wish.contexts.len()).unwrap_or(u32::MAX);
        data.extend(count.to_be_bytes());
        for name in &self.wish.contexts {
            data.extend(length(name.as_bytes()).to_be_bytes());
            data.extend(name.as_bytes());
        }
        self.option(c::OPT_SET_META_CONTEXT, &data);
        self.stage = Stage::Contexts;
    }

    /// Sends `NBD_OPT_GO` or `NBD_OPT_INFO` and requests the description and the block sizes. A
    /// server may enforce block sizes only on a client that requested them.
    fn ask_go(&mut self) {
        let mut data = Vec::from(length(self.wish.export.as_bytes()).to_be_bytes());
        data.extend(self.wish.export.as_bytes());
        data.extend(2u16.to_be_bytes());
        data.extend(c::INFO_BLOCK_SIZE.to_be_bytes());
        data.extend(c::INFO_DESCRIPTION.to_be_bytes());
        self.option(self.go(), &data);
        self.stage = Stage::Go;
    }

    fn go(&self) -> u32 {
        if self.wish.info_only {
            c::OPT_INFO
        } else {
            c::OPT_GO
        }
    }

    fn option_reply(&mut self, bytes: &[u8]) -> Result<usize> {
        let mut r = Reader(bytes);
        let (Some(magic), Some(option), Some(kind), Some(len)) =
            (r.u64(), r.u32(), r.u32(), r.u32())
        else {
            return Ok(0);
        };
        if magic != c::REP_MAGIC {
            return Err(bad("an option reply has a wrong magic number"));
        }
        if len > REPLY_BYTES_MAX {
            return Err(bad(&format!("an option reply of {len} bytes is too long")));
        }
        let Some(data) = r.take(len as usize) else {
            return Ok(0);
        };
        self.replies += 1;
        if self.replies > REPLIES_MAX {
            return Err(bad("too many option replies"));
        }
        let asked = match self.stage {
            Stage::StartTls => c::OPT_STARTTLS,
            Stage::Structured => c::OPT_STRUCTURED_REPLY,
            Stage::Contexts => c::OPT_SET_META_CONTEXT,
            _ => self.go(),
        };
        if option != asked {
            return Err(bad("a reply to an option that was not sent"));
        }
        self.answer(kind, data)?;
        Ok(20 + len as usize)
    }

    fn answer(&mut self, kind: u32, data: &[u8]) -> Result<()> {
        let refused = kind & c::REP_ERROR != 0;
        if kind == c::REP_ERR_TLS_REQD {
            return Err(bad("the server requires TLS; use nbds://"));
        }
        match (self.stage, kind) {
            (Stage::StartTls, c::REP_ACK) => self.outcome = Some(ClientStep::StartTls),
            (Stage::StartTls, _) => return Err(bad("the server does not support TLS; use nbd://")),
            (Stage::Structured, _) => {
                self.export.structured = kind == c::REP_ACK;
                self.ask_contexts();
            }
            (Stage::Contexts, c::REP_META_CONTEXT) => {
                let name = String::from_utf8_lossy(data.get(4..).unwrap_or_default());
                self.export.contexts.push(name.into_owned());
            }
            (Stage::Contexts, _) => self.ask_go(),
            (_, c::REP_INFO) => self.info(data)?,
            (_, c::REP_ACK) if self.wish.info_only => {
                self.check()?;
                self.option(c::OPT_ABORT, &[]);
                self.stage = Stage::End;
                self.outcome = Some(ClientStep::Told(self.export.clone()));
            }
            (_, c::REP_ACK) => self.transmission()?,
            (_, c::REP_ERR_UNSUP) if !self.wish.info_only => {
                let name = self.wish.export.clone();
                self.option(c::OPT_EXPORT_NAME, name.as_bytes());
                self.stage = Stage::ExportName;
            }
            _ if refused => {
                let said = String::from_utf8_lossy(data.get(..data.len().min(200)).unwrap_or(data));
                let name = &self.wish.export;
                return Err(bad(&format!(
                    "the server refuses the export `{name}`: {} (error {:#x})",
                    said.escape_debug(),
                    kind & !c::REP_ERROR
                )));
            }
            _ => {}
        }
        Ok(())
    }

    fn info(&mut self, data: &[u8]) -> Result<()> {
        let mut r = Reader(data);
        let malformed = || bad("the information about the export is malformed");
        match r.u16().ok_or_else(malformed)? {
            c::INFO_EXPORT => {
                self.export.size = r.u64().ok_or_else(malformed)?;
                self.export.flags = r.u16().ok_or_else(malformed)?;
            }
            c::INFO_DESCRIPTION => {
                self.export.description = String::from_utf8_lossy(r.0).into_owned();
            }
            c::INFO_BLOCK_SIZE => {
                self.export.block_min = r.u32().ok_or_else(malformed)?;
                self.export.block_preferred = r.u32().ok_or_else(malformed)?;
                self.export.block_max = r.u32().ok_or_else(malformed)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Reads the reply to `NBD_OPT_EXPORT_NAME`: size, flags, and 124 zeros unless negotiated away.
    fn export_name(&mut self, bytes: &[u8]) -> Result<usize> {
        let len = if self.no_zeroes { 10 } else { 134 };
        let mut r = Reader(bytes.get(..len).unwrap_or_default());
        let (Some(size), Some(flags)) = (r.u64(), r.u16()) else {
            return Ok(0);
        };
        self.export.size = size;
        self.export.flags = flags;
        self.transmission()?;
        Ok(len)
    }

    fn transmission(&mut self) -> Result<()> {
        self.check()?;
        self.stage = Stage::End;
        self.outcome = Some(ClientStep::Transmission(self.export.clone()));
        Ok(())
    }

    /// Validates the export's flags and block sizes ("Block size constraints"): the minimum is a
    /// power of two up to 64 KiB, the maximum at least the minimum and 512.
    fn check(&self) -> Result<()> {
        let e = &self.export;
        let good = e.block_min.is_power_of_two()
            && e.block_min <= 65536
            && e.block_max >= e.block_min.max(512)
            && e.flags & c::FLAG_HAS_FLAGS != 0;
        if good {
            Ok(())
        } else {
            Err(bad("the block sizes or flags of the export are invalid"))
        }
    }
}

/// Builds the header of a request, without its payload ("Request message").
pub fn request(kind: u16, flags: u16, cookie: u64, offset: u64, len: u32) -> [u8; 28] {
    let mut out = [0; 28];
    let parts: [&[u8]; 6] = [
        &c::REQUEST_MAGIC.to_be_bytes(),
        &flags.to_be_bytes(),
        &kind.to_be_bytes(),
        &cookie.to_be_bytes(),
        &offset.to_be_bytes(),
        &len.to_be_bytes(),
    ];
    for (to, from) in out.iter_mut().zip(parts.iter().flat_map(|p| p.iter())) {
        *to = *from;
    }
    out
}

/// Header of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// "Simple reply message": data follows if the request was a read and `errno` is 0.
    Simple {
        /// Cookie of the request.
        cookie: u64,
        /// 0 on success, otherwise one of "Error values".
        errno: u32,
    },
    /// "Structured reply chunk message": `len` bytes of payload follow.
    Chunk {
        /// Cookie of the request.
        cookie: u64,
        /// Last chunk of this reply.
        done: bool,
        /// Type of the payload (`REPLY_*` in [`crate::constants`]).
        kind: u16,
        /// Length of the payload in bytes.
        len: u32,
    },
}

impl Reply {
    /// Returns the header at the start of `bytes` and its length in bytes, or `None` if `bytes` is
    /// too short.
    ///
    /// # Errors
    /// Unknown magic: the stream is out of sync and the connection must be closed.
    pub fn parse(bytes: &[u8]) -> Result<Option<(Reply, usize)>> {
        let mut r = Reader(bytes);
        let Some(magic) = r.u32() else {
            return Ok(None);
        };
        match magic {
            c::SIMPLE_REPLY_MAGIC => {
                let (Some(errno), Some(cookie)) = (r.u32(), r.u64()) else {
                    return Ok(None);
                };
                Ok(Some((Reply::Simple { cookie, errno }, SIMPLE_REPLY_BYTES)))
            }
            c::STRUCTURED_REPLY_MAGIC => {
                let (Some(flags), Some(kind)) = (r.u16(), r.u16()) else {
                    return Ok(None);
                };
                let (Some(cookie), Some(len)) = (r.u64(), r.u32()) else {
                    return Ok(None);
                };
                let done = flags & c::REPLY_FLAG_DONE != 0;
                let chunk = Reply::Chunk {
                    cookie,
                    done,
                    kind,
                    len,
                };
                Ok(Some((chunk, CHUNK_BYTES)))
            }
            other => Err(bad(&format!(
                "a reply has the unknown magic number {other:#010x}"
            ))),
        }
    }
}

/// Parses the errno and the message of an error chunk, with the message escaped for printing.
pub fn chunk_error(payload: &[u8]) -> (u32, String) {
    let mut r = Reader(payload);
    let errno = r.u32().unwrap_or(5);
    let len = usize::from(r.u16().unwrap_or(0));
    let words = r.take(len).unwrap_or_default();
    let words = String::from_utf8_lossy(words.get(..len.min(200)).unwrap_or_default());
    (errno, words.escape_debug().to_string())
}

/// Parses offset and length of a hole ("NBD_REPLY_TYPE_OFFSET_HOLE").
pub fn chunk_hole(payload: &[u8]) -> Result<(u64, u32)> {
    let mut r = Reader(payload);
    match (r.u64(), r.u32()) {
        (Some(offset), Some(len)) if r.0.is_empty() => Ok((offset, len)),
        _ => Err(bad("a hole chunk has a wrong length")),
    }
}

fn bad(why: &str) -> ProtocolError {
    ProtocolError(why.to_owned())
}

fn length(data: &[u8]) -> u32 {
    u32::try_from(data.len()).unwrap_or(u32::MAX)
}

/// Cursor that reads big-endian integers from the front of a slice.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(front)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (front, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*front)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ExportInfo, Handshake, ServerStep, TlsPolicy};

    fn exports() -> std::sync::Arc<[ExportInfo]> {
        let export = |name: &str, size| ExportInfo {
            name: name.into(),
            description: "wwid=naa.5".into(),
            size,
            flags: c::FLAG_HAS_FLAGS | c::FLAG_SEND_FLUSH,
            block_min: 512,
            block_preferred: 4096,
            block_max: 1 << 20,
        };
        [export("one", 1 << 20), export("two", 1 << 21)].into()
    }

    /// Runs a client against a server, with the server's bytes delivered in pieces of `piece`.
    fn negotiate(wish: ClientOptions, tls: TlsPolicy, piece: usize) -> Result<ClientStep> {
        let mut server = Handshake::new(exports(), tls);
        let mut client = ClientHandshake::new(wish);
        let (mut to_client, mut to_server) = (Vec::new(), Vec::new());
        for _ in 0..10_000 {
            to_client.extend(server.take_output());
            to_server.extend(client.take_output());
            if let Some(outcome) = client.outcome() {
                return Ok(outcome.clone());
            }
            if server.outcome() == Some(ServerStep::Close) && to_client.is_empty() {
                return Err(bad("closed"));
            }
            let mut have = to_client.len().min(piece);
            loop {
                let used = client.handle_input(&to_client[..have])?;
                to_client.drain(..used);
                if used > 0 || have >= to_client.len() {
                    break;
                }
                have = (have + piece).min(to_client.len());
            }
            let used = server.handle_input(&to_server)?;
            to_server.drain(..used);
        }
        panic!("the negotiation does not end");
    }

    #[test]
    fn both_sides_agree_however_the_bytes_are_cut() {
        for piece in [1, 2, 3, 7, 20, 4096] {
            let wish = ClientOptions {
                export: "two".into(),
                ..ClientOptions::default()
            };
            let outcome = negotiate(wish, TlsPolicy::Never, piece).unwrap();
            let ClientStep::Transmission(export) = outcome else {
                panic!("{outcome:?}")
            };
            assert_eq!(export.size, 1 << 21);
            assert_eq!(export.description, "wwid=naa.5");
            assert_eq!((export.block_min, export.block_max), (512, 1 << 20));
            assert!(export.structured);
        }
    }

    #[test]
    fn what_is_refused_says_so() {
        let wish = |export: &str, tls| ClientOptions {
            export: export.into(),
            tls,
            ..ClientOptions::default()
        };
        let refused = |wish, policy| negotiate(wish, policy, 64).unwrap_err().0;
        assert!(refused(wish("three", false), TlsPolicy::Never).contains("`three`"));
        assert!(refused(wish("one", true), TlsPolicy::Never).contains("not support TLS"));
        assert!(refused(wish("one", false), TlsPolicy::Required).contains("nbds://"));
        assert_eq!(
            negotiate(wish("one", true), TlsPolicy::Required, 64),
            Ok(ClientStep::StartTls)
        );
    }

    #[test]
    fn information_without_a_choice() {
        let wish = ClientOptions {
            info_only: true,
            ..ClientOptions::default()
        };
        let outcome = negotiate(wish, TlsPolicy::Never, 64).unwrap();
        assert!(matches!(outcome, ClientStep::Told(e) if e.size == 1 << 20));
    }

    #[test]
    fn rubbish_ends_in_an_error_or_waits() {
        let mut random = 1u64;
        for round in 0..20_000usize {
            let bytes: Vec<u8> = (0..round % 200)
                .map(|_| {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(99);
                    (random >> 33) as u8
                })
                .collect();
            let _ = ClientHandshake::new(ClientOptions::default()).handle_input(&bytes);
            let _ = ClientHandshake::under_tls(ClientOptions::default()).handle_input(&bytes);
            let _ = Reply::parse(&bytes);
            let _ = chunk_error(&bytes);
            let _ = chunk_hole(&bytes);
        }
    }

    #[test]
    fn replies_are_told_apart() {
        let simple = crate::simple_reply(7, Some(crate::Errno::Io));
        assert_eq!(
            Reply::parse(&simple),
            Ok(Some((
                Reply::Simple {
                    cookie: 7,
                    errno: 5
                },
                16
            )))
        );
        let data = crate::structured_data(9, 4096, 512);
        let chunk = Reply::Chunk {
            cookie: 9,
            done: true,
            kind: c::REPLY_OFFSET_DATA,
            len: 520,
        };
        assert_eq!(Reply::parse(&data), Ok(Some((chunk, 20))));
        assert_eq!(Reply::parse(&data[..19]), Ok(None));
        assert!(Reply::parse(&[0; 4]).is_err());
    }
}
