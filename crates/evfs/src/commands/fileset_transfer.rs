//! `evfs fileset send` and `evfs fileset receive`: snapshots as streams.

use super::device::{DeviceArgs, named};
use super::dry_run::DryRun;
use super::names;
use cli::document::Document;
use cli::progress::Bar;
use cli::{Context, output, secrets};
use keyring::{Prompt, Recipient, stream};
use stack::control::Transfer;
use stack::filesystem::transfer::{
    self, AuthKey, Destination, ReceivedStream, ReceptionState, SentStream,
};
use stack::{Error, Result, exit, utc};
use std::fs::File;
use std::io::{BufReader, BufWriter, IsTerminal, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Arguments of `evfs fileset send`.
#[derive(clap::Args)]
#[command(after_help = "\
The stream goes to standard output, for a pipe or a file. An interrupted stream is continued with the token \
that `evfs fileset receive --status` prints; see \"Back up to an untrusted machine\" in the guide.

Without --recipient, the stream is not encrypted. Its digests detect damage, but not a change by a person who \
makes new ones; --auth-key detects that.

Examples:
  evfs fileset send disk.img monday | ssh backup evfs fileset receive copy.img main
  evfs fileset send /mnt tuesday --since monday --recipient age1... --output tuesday.evfs")]
pub struct SendArgs {
    #[command(flatten)]
    on: DeviceArgs,
    /// Snapshot to send
    #[arg(add = names::filesets())]
    snapshot: String,
    /// Send only the changes since this older snapshot, which the receiver has
    #[arg(long, value_name = "SNAP", add = names::filesets())]
    since: Option<String>,
    /// Write the stream to a new file instead of standard output
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Encrypt the stream to this key: its name, or a public key
    #[arg(long, value_name = "KEY", add = names::keys())]
    recipient: Option<String>,
    /// Authenticate the stream with the key in this file, of at least 32 random bytes, which the
    /// receiver has as well
    #[arg(long, value_name = "FILE")]
    auth_key: Option<PathBuf>,
    /// Continue an interrupted stream from this token of the receiver
    #[arg(long, value_name = "TOKEN")]
    resume: Option<String>,
    #[command(flatten)]
    dry_run: DryRun,
}

/// Arguments of `evfs fileset receive`.
#[derive(clap::Args)]
#[command(after_help = "\
A full stream creates the fileset. An incremental one is applied if the fileset has the snapshot that it is \
relative to, and has not changed since. The fileset must not be mounted; a snapshot of it may be. Until the \
stream is complete, the new state is not visible: a mount of the fileset shows the state before.

After an interruption, receive the same stream again, which skips the part that has arrived, or the rest of it, \
sent with --resume. A stream whose snapshot the fileset has changes nothing, and succeeds.

Examples:
  evfs fileset receive copy.img main --input monday.evfs
  evfs fileset receive copy.img main --status
  evfs fileset receive copy.img main --identity backup.key < tuesday.evfs")]
pub struct ReceiveArgs {
    #[command(flatten)]
    on: DeviceArgs,
    /// Name of the fileset
    #[arg(value_parser = named(), add = names::filesets())]
    fileset: String,
    /// Read the stream from this file instead of standard input
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Name of the new snapshot [default: that of the snapshot that was sent]
    #[arg(long = "as", value_name = "NAME", value_parser = named())]
    name: Option<String>,
    /// Decrypt the stream with the private key in this file
    #[arg(long, value_name = "FILE")]
    identity: Option<PathBuf>,
    /// Accept only a stream that was authenticated with the key in this file
    #[arg(long, value_name = "FILE")]
    auth_key: Option<PathBuf>,
    /// Show whether a stream is incomplete, and the token to continue it
    #[arg(long, conflicts_with_all = ["input", "name", "identity", "auth_key", "abort"])]
    status: bool,
    /// Discard an incomplete stream: the fileset is as before
    #[arg(long, conflicts_with_all = ["input", "name", "identity", "auth_key"])]
    abort: bool,
    #[command(flatten)]
    dry_run: DryRun,
}

pub const SENT: Document<SentStream> = Document::new("evfs/fileset-send/1");
pub const RECEIVED: Document<ReceivedStream> = Document::new("evfs/fileset-receive/1");
pub const RECEPTION: Document<ReceptionState> = Document::new("evfs/reception/1");

pub fn send(context: &Context, args: SendArgs) -> Result<u8> {
    let context = &args.dry_run.context(context);
    let dry = context.settings.is_dry_run();
    let to_stdout = args.output.is_none() && !dry;
    if to_stdout && std::io::stdout().is_terminal() {
        return Err(Error::Usage(
            "a stream is not text, and standard output is a terminal; use a pipe, or --output FILE"
                .into(),
        ));
    }
    if to_stdout && context.json {
        return Err(Error::Usage(
            "standard output has the stream; --json needs --output FILE".into(),
        ));
    }
    let on = args.on.resolved(context)?;
    let key = args.auth_key.as_deref().map(AuthKey::read).transpose()?;
    let recipient = match &args.recipient {
        Some(which) => Some(context.keyring().named_or_public(which)?.1),
        None => None,
    };
    let stream = Transfer {
        snapshot: args.snapshot,
        since: args.since,
        codes: key.is_some(),
        token: args.resume,
    };
    let bar = Bar::new(context.json, "sent");
    let mut progress = |done, of| bar.at(done, of);
    let run = |out: &mut dyn Write| {
        on.with(context, |target| {
            transfer::send(target, stream, key.as_ref(), out, &mut progress)
        })
    };
    let sent = match (dry, args.output.as_deref()) {
        (true, _) => run(&mut std::io::sink())?,
        (false, None) => {
            let mut out = std::io::stdout().lock();
            write(
                &mut out,
                Path::new("standard output"),
                recipient.as_ref(),
                run,
            )?
        }
        (false, Some(path)) => {
            let mut file = new_file(path)?;
            let sent = write(&mut file, path, recipient.as_ref(), run);
            let synced = sent.and_then(|sent| {
                let failed = |e| Error::io("cannot write", path, e);
                file.sync_all().map_err(failed)?;
                Ok(sent)
            });
            // A part of a stream is not taken for the whole.
            synced.inspect_err(|_| drop(std::fs::remove_file(path)))?
        }
    };
    bar.end();
    let text = format!(
        "sent {} of file data in {} records",
        output::size(sent.data_bytes),
        sent.records
    );
    if to_stdout {
        output::say(false, &text);
    } else {
        output::show(context.json, &SENT, &sent, || text);
    }
    Ok(exit::OK)
}

/// Writes a stream to its destination, encrypted if there is a recipient.
fn write(
    out: &mut dyn Write,
    place: &Path,
    recipient: Option<&Recipient>,
    run: impl FnOnce(&mut dyn Write) -> Result<SentStream>,
) -> Result<SentStream> {
    let failed = |e| Error::io("cannot write", place, e);
    let mut out = BufWriter::new(out);
    let sent = match recipient {
        None => run(&mut out)?,
        Some(recipient) => {
            let mut encrypted = recipient.encrypt(&mut out)?;
            let sent = run(&mut encrypted)?;
            encrypted.finish().map_err(failed)?;
            sent
        }
    };
    out.flush().map_err(failed)?;
    Ok(sent)
}

fn new_file(path: &Path) -> Result<File> {
    let mut options = File::options();
    let made = options.write(true).create_new(true).mode(0o600).open(path);
    made.map_err(|e| Error::io("cannot create", path, e))
}

pub fn receive(context: &Context, args: ReceiveArgs) -> Result<u8> {
    let context = &args.dry_run.context(context);
    let on = args.on.resolved(context)?;
    let fileset = &args.fileset;
    if args.status {
        let state = on.with(context, |target| transfer::reception(target, fileset))?;
        output::show(context.json, &RECEPTION, &state, || status_text(&state));
        return Ok(exit::OK);
    }
    if args.abort {
        on.with(context, |target| transfer::abort(target, fileset))?;
        output::changed();
        let state = ReceptionState::none(fileset);
        output::show(context.json, &RECEPTION, &state, || status_text(&state));
        return Ok(exit::OK);
    }
    let key = args.auth_key.as_deref().map(AuthKey::read).transpose()?;
    let input: Box<dyn Read> = match &args.input {
        Some(path) => {
            let opened = File::open(path).map_err(|e| Error::io("cannot open", path, e));
            Box::new(opened?)
        }
        None if std::io::stdin().is_terminal() => {
            return Err(Error::Usage(
                "standard input is a terminal; use a pipe, or --input FILE".into(),
            ));
        }
        None => Box::new(std::io::stdin().lock()),
    };
    let mut input = clear(input, args.identity.as_deref())?;
    let bar = Bar::new(context.json, "received");
    let to = Destination {
        fileset,
        name: args.name.as_deref(),
    };
    let received = on.with(context, |target| {
        let mut progress = |done, of| bar.at(done, of);
        transfer::receive(target, to, key.as_ref(), &mut input, &mut progress)
    })?;
    bar.end();
    output::changed();
    output::show(context.json, &RECEIVED, &received, || {
        let name = &received.snapshot;
        match received.taken {
            Some(taken) => format!(
                "received snapshot {name} of {fileset}, taken {}",
                utc(taken)
            ),
            None => format!("already received as snapshot {name} of {fileset}"),
        }
    });
    Ok(exit::OK)
}

/// Decrypts the input, if it is encrypted.
fn clear(input: Box<dyn Read>, identity: Option<&Path>) -> Result<Box<dyn Read>> {
    let mut start = Vec::new();
    let mut input = BufReader::new(input);
    let failed = |e| Error::io("cannot read", Path::new("the stream"), e);
    let read = (&mut input)
        .take(stream::MAGIC.len() as u64)
        .read_to_end(&mut start);
    read.map_err(failed)?;
    let is_encrypted = start == stream::MAGIC;
    let input = std::io::Cursor::new(start).chain(input);
    match (identity, is_encrypted) {
        (Some(path), true) => {
            let mut ask = |prompt: &Prompt| {
                secrets::ask_or(&prompt.to_string(), "use a key without a passphrase")
                    .map_err(|e| keyring::Error::NoPassphrase(e.to_string()))
            };
            let identity = keyring::identity_of_file(path, &mut ask)?;
            Ok(Box::new(identity.decrypt(input)?))
        }
        (None, true) => Err(Error::Usage(
            "the stream is encrypted; name the file of the private key with --identity".into(),
        )),
        (Some(_), false) => Err(Error::Untrusted(
            "the stream is not encrypted; receive it without --identity if you expect that".into(),
        )),
        (None, false) => Ok(Box::new(input)),
    }
}

fn status_text(state: &ReceptionState) -> String {
    let name = &state.fileset;
    match (state.receiving, &state.token) {
        (false, _) => format!("{name} is not receiving a snapshot"),
        (true, None) => format!("{name} is receiving a snapshot; nothing has arrived yet"),
        (true, Some(token)) => format!(
            "{name} is receiving a snapshot; {} segments have arrived\n{token}",
            state.segments
        ),
    }
}
