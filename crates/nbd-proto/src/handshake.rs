//! Fixed newstyle negotiation, from the greeting to the choice of an export.

use crate::constants as c;
use crate::{ProtocolError, Result};
use std::sync::Arc;

/// Longest option that is read, in bytes: a name of 4096 and room for information requests.
const OPTION_BYTES_MAX: u32 = 64 * 1024;
/// Longest export name ("Values of string fields": 4096 bytes).
const NAME_BYTES_MAX: usize = 4096;
/// Options that one client may send before it has to choose.
const OPTIONS_MAX: u32 = 256;
/// Length of an option's header: magic, type, length.
const OPTION_HEADER_BYTES: usize = 16;

/// What clients are told of an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportInfo {
    /// Name; a client that asks for the empty name gets the first export.
    pub name: String,
    /// Words for a person.
    pub description: String,
    /// Bytes.
    pub size: u64,
    /// Transmission flags.
    pub flags: u16,
    /// Smallest request, in bytes; all are multiples of it.
    pub block_min: u32,
    /// Request size that works well.
    pub block_preferred: u32,
    /// Largest request.
    pub block_max: u32,
}

/// Whether clients may, or must, use TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsPolicy {
    /// There is none ("NOTLS").
    Never,
    /// Nothing but `NBD_OPT_STARTTLS` is answered before it ("FORCEDTLS").
    Required,
    /// TLS is on by now.
    Active,
}

/// What the driver has to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Send the output, then start TLS and a new [`Handshake`] with [`TlsPolicy::Active`].
    StartTls,
    /// Send the output; requests for this export follow.
    Transmission {
        /// Index of the export.
        export: usize,
        /// The client takes structured replies.
        structured: bool,
    },
    /// Send the output and close.
    Close,
}

/// The server's side of a negotiation.
///
/// After each [`Handshake::handle_input`] drain [`Handshake::take_output`], then look at
/// [`Handshake::outcome`].
pub struct Handshake {
    exports: Arc<[ExportInfo]>,
    tls: TlsPolicy,
    client_flags: Option<u16>,
    structured: bool,
    options: u32,
    output: Vec<u8>,
    outcome: Option<Outcome>,
}

impl Handshake {
    /// Begins; the greeting is in the output. Under TLS the client sends no flags again, so the
    /// negotiation goes on with its options.
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
            options: 0,
            output,
            outcome: None,
        }
    }

    /// Takes as many whole messages as `bytes` begins with and says how many bytes they were.
    /// Stops at an outcome: what follows it is not for this negotiation.
    ///
    /// # Errors
    /// The client does not speak the protocol, or goes beyond a limit.
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

    /// What has to be sent.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// The end of the negotiation, once it is reached.
    pub fn outcome(&self) -> Option<Outcome> {
        self.outcome
    }

    fn flags(&mut self, bytes: &[u8]) -> Result<usize> {
        let Some((flags, _)) = bytes.split_first_chunk::<4>() else {
            return Ok(0);
        };
        let flags = u32::from_be_bytes(*flags);
        let known = u32::from(c::FLAG_FIXED_NEWSTYLE | c::FLAG_NO_ZEROES);
        // "Client flags": the server must close on bits it does not know, and may insist on fixed
        // newstyle, without which no option could ever be refused.
        if flags & !known != 0 || flags & u32::from(c::FLAG_FIXED_NEWSTYLE) == 0 {
            return Err(ProtocolError(format!("client flags {flags:#x}")));
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
            return Err(ProtocolError("an option without its magic".into()));
        }
        let (kind, len) = (u32::from_be_bytes(*kind), u32::from_be_bytes(*len));
        if len > OPTION_BYTES_MAX {
            return Err(ProtocolError(format!("an option of {len} bytes")));
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
                // There is no way to refuse this option but to close.
                self.outcome = Some(Outcome::Close);
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
                self.outcome = Some(Outcome::Close);
            }
            c::OPT_LIST if data.is_empty() => self.list(kind),
            c::OPT_STARTTLS if data.is_empty() && self.tls == TlsPolicy::Required => {
                self.reply(kind, c::REP_ACK, &[]);
                self.outcome = Some(Outcome::StartTls);
            }
            c::OPT_STARTTLS if self.tls == TlsPolicy::Never => {
                self.reply(kind, c::REP_ERR_UNSUP, b"no certificate is configured");
            }
            c::OPT_INFO | c::OPT_GO => self.info_or_go(kind, data),
            c::OPT_STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                self.reply(kind, c::REP_ACK, &[]);
            }
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
        self.outcome = Some(Outcome::Transmission {
            export,
            structured: self.structured,
        });
    }

    /// `NBD_OPT_EXPORT_NAME`: the old way, in which nothing can be refused politely.
    fn export_name(&mut self, name: &[u8]) {
        let found = self
            .find(name)
            .and_then(|index| Some((index, self.exports.get(index)?.clone())));
        let Some((index, export)) = found.filter(|_| name.len() <= NAME_BYTES_MAX) else {
            self.outcome = Some(Outcome::Close);
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

    /// `NBD_OPT_INFO` and `NBD_OPT_GO`: length, name, count, that many information requests.
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
        // Sent asked or not: a client that goes on has been told ("Block size constraints").
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
}

fn parse_info(data: &[u8]) -> Option<(&[u8], Vec<u16>)> {
    let (len, rest) = data.split_first_chunk::<4>()?;
    let len = u32::from_be_bytes(*len) as usize;
    let (name, rest) = rest
        .split_at_checked(len)
        .filter(|_| len <= NAME_BYTES_MAX)?;
    let (count, rest) = rest.split_first_chunk::<2>()?;
    let wanted: Vec<u16> = rest
        .chunks_exact(2)
        .filter_map(|pair| Some(u16::from_be_bytes(pair.try_into().ok()?)))
        .collect();
    let whole = rest.len() == 2 * usize::from(u16::from_be_bytes(*count));
    whole.then_some((name, wanted))
}
