//! Sending snapshots of a file system as streams, and receiving them.
//!
//! ```text
//!   send:     server ──segment──► client ──code──► bytes ──► output
//!   receive:  input ──► bytes ──► client ──code──► segment ──► server
//! ```
//!
//! The server makes or applies one segment for each request. The client has the stream: it moves the
//! bytes, checks the digests and the authentication codes, and passes each segment on. The server
//! checks the digests again.

use super::{Target, open_fs, options};
use crate::control::{self, Blob, ControlRequest, FsRequest, Run, Transfer, TransferRequest};
use crate::handle::mounted_as;
use crate::volume::{OpenOptions, OpenedDevice};
use crate::{Error, Result};
use ::cache::{Cache, Config};
use ::fs::{Fs, Received, Reception, Sender, TreeId};
use block::Access;
use hmac::{Hmac, KeyInit, Mac};
use schemars::JsonSchema;
use secret::SecretBytes;
use send_proto::{CODE_BYTES, Decoder, Digest, Event, FEATURE_CODES, Header, Position, Token};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Memory for pages of file systems that are not mounted.
const CACHE_BYTES: u64 = 32 << 20;
/// Bytes that are read from the input at a time.
const PIECE_BYTES: usize = 256 << 10;
/// Shortest key for authentication codes, in bytes.
const KEY_BYTES_MIN: usize = 32;

/// Answer to a [`TransferRequest`].
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Answer {
    /// Header or segment.
    #[serde(default)]
    bytes: Blob,
    /// Token after it; `None` at the end of the stream, and at its start.
    token: Option<String>,
    /// Segments that were sent or applied.
    segments: u64,
    /// Whether the snapshot is complete.
    complete: bool,
    /// Records of the stream.
    records: u64,
    /// Bytes of file data in it.
    data_bytes: u64,
    /// Identity of the snapshot that is being received, and the name of its base.
    receiving: Option<(String, Option<String>)>,
    /// Name of the snapshot, if the fileset had it before.
    #[serde(default)]
    had: Option<String>,
}

/// Creates the cache for a file system that is not mounted.
pub(super) fn own_cache() -> Result<Arc<Cache>> {
    Ok(Cache::new(Config::new(CACHE_BYTES))?)
}

/// Answers a request on an open file system.
///
/// # Errors
/// The request cannot be fulfilled.
pub(crate) fn answer(fs: &Fs, ask: &TransferRequest, run: Run, cache: &Cache) -> Result<Answer> {
    match ask {
        TransferRequest::Header(stream)
        | TransferRequest::Estimate(stream)
        | TransferRequest::Segment(stream) => {
            let failed = Error::files(format!("cannot send `{}`", stream.snapshot));
            send_part(fs, ask, stream, cache).map_err(failed)
        }
        TransferRequest::Begin {
            fileset,
            header,
            name,
        } => {
            let failed = Error::files(format!("cannot receive into `{fileset}`"));
            begin(fs, fileset, &header.0, name, run).map_err(failed)
        }
        TransferRequest::Apply {
            fileset,
            segment,
            name,
        } => {
            let failed = Error::files(format!("cannot receive into `{fileset}`"));
            apply(fs, fileset, &segment.0, name, cache).map_err(failed)
        }
        TransferRequest::Status { fileset } => {
            let failed = Error::files(format!("cannot read the state of `{fileset}`"));
            status(fs, fileset).map_err(failed)
        }
        TransferRequest::Abort { fileset } => {
            let failed = Error::files(format!("cannot abandon the reception into `{fileset}`"));
            let abort = || {
                let id = fs.fileset_named(fileset)?.id();
                match run {
                    Run::Real => fs.abandon_reception(id)?,
                    Run::Dry => drop(fs.check_abandonment(id)?),
                }
                Ok(Answer::default())
            };
            abort().map_err(failed)
        }
    }
}

/// Makes the header or the next segment of a stream, or counts the rest of it.
fn send_part(
    fs: &Fs,
    ask: &TransferRequest,
    stream: &Transfer,
    cache: &Cache,
) -> ::fs::Result<Answer> {
    let id = |name: &str| -> ::fs::Result<TreeId> { Ok(fs.fileset_named(name)?.id()) };
    let since = stream.since.as_deref().map(id).transpose()?;
    let mut sender = fs.sender(id(&stream.snapshot)?, since, cache)?;
    let mut header = sender.header().clone();
    if stream.codes {
        header.features |= FEATURE_CODES;
    }
    let mut at = Sender::start(&header);
    if let Some(token) = &stream.token {
        let token: Token = token.parse()?;
        if token.stream != header.stream_id() {
            let text = "the token belongs to another stream: name the same snapshots, and use \
                        --auth-key if the first part was sent with it";
            return Err(::fs::Error::new(::fs::Kind::Invalid, text));
        }
        (at, header.resume) = (token.resume, Some(token.resume));
    }
    Ok(match ask {
        TransferRequest::Estimate(_) => {
            let sent = sender.estimate(at.position)?;
            Answer {
                records: sent.records,
                data_bytes: sent.data_bytes,
                ..Answer::default()
            }
        }
        TransferRequest::Segment(_) => {
            let (bytes, after) = sender.segment(&at)?;
            let token = Token {
                stream: header.stream_id(),
                resume: after,
            };
            let complete = after.position == Position::END;
            Answer {
                bytes: Blob(bytes),
                token: (!complete).then(|| token.to_string()),
                segments: after.segments,
                complete,
                ..Answer::default()
            }
        }
        _ => Answer {
            bytes: Blob(header.encode()),
            segments: at.segments,
            ..Answer::default()
        },
    })
}

fn begin(fs: &Fs, fileset: &str, header: &[u8], name: &str, run: Run) -> ::fs::Result<Answer> {
    let header = Header::decode(header)?;
    let had = fs.received_as(fileset, header.snapshot)?;
    if had.is_some() {
        return Ok(Answer {
            had,
            ..Answer::default()
        });
    }
    fs.check_reception(fileset, &header, name)?;
    if run == Run::Dry {
        return Ok(Answer::default());
    }
    let reception = fs.begin_reception(fileset, &header)?;
    Ok(of_reception(fs, &reception))
}

fn apply(
    fs: &Fs,
    fileset: &str,
    segment: &[u8],
    name: &str,
    cache: &Cache,
) -> ::fs::Result<Answer> {
    let mut receiver = fs.receiver(fs.fileset_named(fileset)?.id(), cache)?;
    let received = receiver.segment(fs, segment, name);
    let closed = receiver.close();
    let received = received?;
    closed?;
    Ok(match received {
        Received::Part(reception) => of_reception(fs, &reception),
        Received::Complete(_) => Answer {
            complete: true,
            ..Answer::default()
        },
    })
}

fn status(fs: &Fs, fileset: &str) -> ::fs::Result<Answer> {
    let reception = fs.reception(fs.fileset_named(fileset)?.id())?;
    Ok(reception.map_or_else(Answer::default, |reception| of_reception(fs, &reception)))
}

fn of_reception(fs: &Fs, reception: &Reception) -> Answer {
    let segments = reception.token.resume.segments;
    let name = |id| Some(fs.fileset(id).ok()?.record().ok()?.name);
    Answer {
        token: (segments > 0).then(|| reception.token.to_string()),
        segments,
        receiving: Some((
            reception.snapshot.to_string(),
            reception.base.and_then(name),
        )),
        ..Answer::default()
    }
}

/// A file system that answers requests: that of a service, or one that this process has opened.
enum Side {
    Served(PathBuf, String),
    Own(Box<Own>),
}

struct Own {
    fs: Fs,
    cache: Arc<Cache>,
    name: String,
    _open: OpenedDevice,
}

impl Side {
    fn open(target: &Target<'_>, access: Access) -> Result<Side> {
        if let Some(name) = mounted_as(target.path, target.settings) {
            return Ok(Side::Served(target.settings.run_dir(), name));
        }
        let open = target.open(OpenOptions {
            read_only: access.is_read_only(),
            ..OpenOptions::default()
        })?;
        let name = target.name();
        let fs = open_fs(&open.device, &name, options(target.settings, access))?;
        let cache = own_cache()?;
        Ok(Side::Own(Box::new(Own {
            fs,
            cache,
            name,
            _open: open,
        })))
    }

    fn ask(&self, ask: TransferRequest) -> Result<Answer> {
        match self {
            Side::Served(run_dir, name) => {
                let request = ControlRequest::Files(FsRequest::Transfer(ask));
                answer_of(control::send_request(run_dir, name, &request)?, name)
            }
            Side::Own(own) => answer(&own.fs, &ask, Run::Real, &own.cache),
        }
    }

    fn close(self) -> Result<()> {
        match self {
            Side::Served(..) => Ok(()),
            Side::Own(own) => {
                let failed = Error::files(format!("cannot close {}", own.name));
                own.fs.close().map_err(failed)
            }
        }
    }
}

fn answer_of(value: Value, name: &str) -> Result<Answer> {
    let unknown = |e| Error::Failed(format!("invalid answer of `{name}`: {e}"));
    serde_json::from_value(value).map_err(unknown)
}

/// Key for authentication codes, which sender and receiver share.
pub struct AuthKey(SecretBytes);

impl AuthKey {
    /// Reads a key from a file with at least 32 bytes.
    ///
    /// # Errors
    /// The file cannot be read, is too short or too long, or other users can read it.
    pub fn read(path: &Path) -> Result<AuthKey> {
        let text = keyring::secret_of_file(path)?;
        if text.len() < KEY_BYTES_MIN {
            return Err(Error::Usage(format!(
                "{} is no key: it needs at least {KEY_BYTES_MIN} bytes, at random; create it with \
                 `(umask 077; head -c 32 /dev/urandom > FILE)`",
                path.display()
            )));
        }
        let key = AuthKey::of(&text);
        secret::burn_stack();
        Ok(key)
    }

    #[inline(never)]
    fn of(text: &[u8]) -> AuthKey {
        let mut hash = Sha256::new();
        hash.update(b"EVFS authentication of streams 1");
        hash.update(text);
        AuthKey(SecretBytes::from_slice(&hash.finalize()))
    }

    fn mac(&self, digest: Digest) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("a key of any length");
        mac.update(&digest.0);
        mac
    }

    fn code(&self, digest: Digest) -> [u8; CODE_BYTES] {
        let code = self.mac(digest).finalize().into_bytes().into();
        secret::burn_stack();
        code
    }

    fn verify(&self, segment: &[u8]) -> Result<()> {
        let (digest, code) = send_proto::code_of(segment).map_err(damaged)?;
        let verified = self.mac(digest).verify_slice(&code);
        secret::burn_stack();
        verified.map_err(|_| {
            Error::Untrusted(
                "the stream was not made with this key, or was changed: nothing of this part was \
                 applied"
                    .into(),
            )
        })
    }
}

fn damaged(error: send_proto::Error) -> Error {
    Error::Failed(error.to_string())
}

/// Result of sending a snapshot.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SentStream {
    /// Name of the snapshot.
    pub snapshot: String,
    /// Name of the snapshot that the stream is relative to.
    pub since: Option<String>,
    /// Number of records in the stream, or in the rest of it.
    pub records: u64,
    /// Bytes of file data in it.
    pub data_bytes: u64,
    /// Bytes of the stream before encryption; null in a dry run.
    pub stream_bytes: Option<u64>,
}

/// Sends a snapshot to `out`. `progress` is called with the bytes sent and expected. A dry run only
/// counts.
///
/// # Errors
/// The snapshot cannot be read, or the output written.
pub fn send(
    target: &Target<'_>,
    stream: Transfer,
    key: Option<&AuthKey>,
    out: &mut dyn Write,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<SentStream> {
    let side = Side::open(target, Access::ReadOnly)?;
    let expected = side.ask(TransferRequest::Estimate(stream.clone()))?;
    let mut sent = SentStream {
        snapshot: stream.snapshot.clone(),
        since: stream.since.clone(),
        records: expected.records,
        data_bytes: expected.data_bytes,
        stream_bytes: None,
    };
    if !target.settings.is_dry_run() {
        sent.stream_bytes = Some(send_all(
            &side,
            stream,
            key,
            expected.data_bytes,
            out,
            progress,
        )?);
    }
    side.close()?;
    Ok(sent)
}

fn send_all(
    side: &Side,
    stream: Transfer,
    key: Option<&AuthKey>,
    expected: u64,
    out: &mut dyn Write,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<u64> {
    let failed = |e| Error::io("cannot write", Path::new("the stream"), e);
    let header = side.ask(TransferRequest::Header(stream.clone()))?;
    out.write_all(&header.bytes.0).map_err(failed)?;
    let (mut bytes, mut next) = (header.bytes.0.len() as u64, stream);
    loop {
        let part = side.ask(TransferRequest::Segment(next.clone()))?;
        let mut segment = part.bytes.0;
        if let Some(key) = key {
            send_proto::set_code(&mut segment, |digest| key.code(digest)).map_err(damaged)?;
        }
        out.write_all(&segment).map_err(failed)?;
        bytes += segment.len() as u64;
        progress(bytes, expected.max(bytes));
        if part.complete {
            out.flush().map_err(failed)?;
            return Ok(bytes);
        }
        next.token = part.token;
    }
}

/// Result of receiving a snapshot.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ReceivedStream {
    /// Name of the fileset.
    pub fileset: String,
    /// Name of the snapshot.
    pub snapshot: String,
    /// Whether the fileset had the snapshot before, perhaps under another name: nothing was changed.
    pub already: bool,
    /// Time at which it was taken, in seconds since 1970; null if the fileset had it. It is authentic
    /// if the stream is; names in a stream are not.
    pub taken: Option<i64>,
    /// Bytes of the stream after decryption; null in a dry run.
    pub stream_bytes: Option<u64>,
}

impl ReceivedStream {
    fn note(&mut self, had: Option<String>) {
        if let Some(name) = had {
            (self.snapshot, self.already, self.taken) = (name, true, None);
        }
    }
}

/// Progress of a stream that is not complete.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ReceptionState {
    /// Name of the fileset.
    pub fileset: String,
    /// Whether it is receiving a snapshot.
    pub receiving: bool,
    /// Identity of the snapshot at the sender.
    pub snapshot: Option<String>,
    /// Name of the snapshot that the stream is relative to.
    pub base: Option<String>,
    /// Number of segments that were applied.
    pub segments: u64,
    /// Token with which the sender continues; null if nothing was applied.
    pub token: Option<String>,
}

impl ReceptionState {
    /// Describes a fileset that is not receiving a snapshot.
    pub fn none(fileset: &str) -> ReceptionState {
        ReceptionState {
            fileset: fileset.to_owned(),
            receiving: false,
            snapshot: None,
            base: None,
            segments: 0,
            token: None,
        }
    }
}

/// Reports whether a fileset is receiving a snapshot.
///
/// # Errors
/// There is no such fileset.
pub fn reception(target: &Target<'_>, fileset: &str) -> Result<ReceptionState> {
    let side = Side::open(target, Access::ReadOnly)?;
    let found = side.ask(TransferRequest::Status {
        fileset: fileset.to_owned(),
    })?;
    side.close()?;
    let (snapshot, base) = found.receiving.unzip();
    Ok(ReceptionState {
        fileset: fileset.to_owned(),
        receiving: snapshot.is_some(),
        snapshot,
        base: base.flatten(),
        segments: found.segments,
        token: found.token,
    })
}

/// Destination of a stream.
#[derive(Debug, Clone, Copy)]
pub struct Destination<'a> {
    /// Name of the fileset.
    pub fileset: &'a str,
    /// Name of the snapshot; `None` for that at the sender.
    pub name: Option<&'a str>,
}

/// Receives a snapshot from `input`, unless the fileset has it. `progress` is called with the bytes
/// received, and the bytes of data in the whole snapshot. A dry run only reads the header, and checks
/// whether it could be received.
///
/// # Errors
/// The stream is damaged, ends early, or does not fit the fileset. [`Error::Untrusted`]: its codes
/// are not those of the key.
pub fn receive(
    target: &Target<'_>,
    to: Destination<'_>,
    key: Option<&AuthKey>,
    input: &mut dyn Read,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<ReceivedStream> {
    let mut incoming = Incoming::new(input, key);
    let header = match incoming.next()? {
        Some(Event::Header(header)) => header,
        _ => return Err(damaged(send_proto::Error::NotAStream)),
    };
    let name = to.name.unwrap_or(&header.snapshot_name).to_owned();
    if name.is_empty() {
        return Err(Error::Usage(
            "the stream has no name for the snapshot; choose one with --as".into(),
        ));
    }
    incoming.check_codes(&header)?;
    let begin = TransferRequest::Begin {
        fileset: to.fileset.to_owned(),
        header: Blob(header.encode()),
        name: name.clone(),
    };
    let mut received = ReceivedStream {
        fileset: to.fileset.to_owned(),
        snapshot: name.clone(),
        already: false,
        taken: Some(header.created.seconds),
        stream_bytes: None,
    };
    if target.settings.is_dry_run() {
        let planned = super::request(target, &FsRequest::Transfer(begin))?;
        received.note(answer_of(planned, &target.name())?.had);
        return Ok(received);
    }
    // A segment, and with it the header, is known to be genuine before anything changes.
    let first = incoming.next()?.ok_or_else(|| {
        let text = "the stream ended early: it has no whole segment; nothing was changed";
        Error::Failed(text.into())
    })?;
    let side = Side::open(target, Access::ReadWrite)?;
    let apply = |begun: Answer| {
        if begun.had.is_some() {
            // All of the input is read, so that a sender at the other end of a pipe succeeds, too.
            while incoming.next()?.is_some() {}
            return Ok(begun.had);
        }
        let mut expected = Expected {
            applied: begun.segments,
            data_bytes: header.data_bytes,
        };
        apply_all(
            &side,
            &mut incoming,
            first,
            (to.fileset, &name),
            &mut expected,
            progress,
        )?;
        Ok(None)
    };
    let applied = side.ask(begin).and_then(apply);
    let closed = side.close();
    received.note(applied?);
    closed?;
    received.stream_bytes = Some(incoming.bytes);
    Ok(received)
}

/// Part of a stream that is still to come.
struct Expected {
    /// Segments that need not be applied again.
    applied: u64,
    /// Bytes of data in the whole snapshot.
    data_bytes: u64,
}

fn apply_all(
    side: &Side,
    incoming: &mut Incoming<'_>,
    first: Event,
    (fileset, name): (&str, &str),
    expected: &mut Expected,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<()> {
    let mut event = Some(first);
    while let Some(Event::Segment { number, bytes, .. }) = event {
        // Otherwise an earlier run has applied it.
        if number >= expected.applied {
            let answer = side.ask(TransferRequest::Apply {
                fileset: fileset.to_owned(),
                segment: Blob(bytes),
                name: name.to_owned(),
            })?;
            expected.applied = answer.segments;
            progress(incoming.bytes, expected.data_bytes.max(incoming.bytes));
            if answer.complete {
                return Ok(());
            }
        }
        event = incoming.next()?;
    }
    Err(Error::Failed(format!(
        "the stream ended early: {} segments of it are in `{fileset}`; `evfs fileset receive DEVICE \
         {fileset} --status` prints the token for `evfs fileset send --resume`",
        expected.applied
    )))
}

/// Abandons a reception: the fileset is as before, and one that the stream has created is removed.
///
/// # Errors
/// The fileset is not receiving a snapshot.
pub fn abort(target: &Target<'_>, fileset: &str) -> Result<()> {
    let ask = TransferRequest::Abort {
        fileset: fileset.to_owned(),
    };
    super::request(target, &FsRequest::Transfer(ask)).map(drop)
}

/// Stream that is being read.
struct Incoming<'a> {
    input: &'a mut dyn Read,
    decoder: Decoder,
    key: Option<&'a AuthKey>,
    bytes: u64,
}

impl<'a> Incoming<'a> {
    fn new(input: &'a mut dyn Read, key: Option<&'a AuthKey>) -> Incoming<'a> {
        Incoming {
            input,
            decoder: Decoder::default(),
            key,
            bytes: 0,
        }
    }

    /// Reads the next frame; `None` at the end of the input. With the last segment, all of the input
    /// was read: nothing follows it, and an encrypted input has a valid end.
    fn next(&mut self) -> Result<Option<Event>> {
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            if let Some(event) = self.decoder.next_event().map_err(damaged)? {
                if let (Event::Segment { bytes, .. }, Some(key)) = (&event, self.key) {
                    key.verify(bytes)?;
                }
                if self.decoder.has_ended() {
                    // Either the end of the input, or an error.
                    self.next()?;
                }
                return Ok(Some(event));
            }
            match self.input.read(&mut piece) {
                Ok(0) => return Ok(None),
                Ok(len) => {
                    self.decoder.feed(&piece[..len]);
                    self.bytes += len as u64;
                }
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Error::io("cannot read", Path::new("the stream"), e)),
            }
        }
    }

    /// Checks that a stream with codes is read with a key, and one without them is not.
    fn check_codes(&self, header: &Header) -> Result<()> {
        match (header.has_codes(), self.key) {
            (true, None) => Err(Error::Usage(
                "the stream has authentication codes; name their key with --auth-key".into(),
            )),
            (false, Some(_)) => Err(Error::Untrusted(
                "the stream has no authentication codes, so the key cannot verify it; send it with \
                 --auth-key"
                    .into(),
            )),
            _ => Ok(()),
        }
    }
}
