//! The export as a path to a LUN, and as a standalone device.

use crate::connect::{self, Negotiated};
use crate::options::Options;
use crate::queue::NbdQueue;
use crate::uri::{NbdUri, Server};
use block::{BlockDevice, DeviceInfo, Error, ErrorKind, Queue, Result};
use lunpath::{Access, Connection, Identity, Lunpath, PathQueue, Transport};
use nbd_proto::client::{ClientOptions, ServerExport};
use nbd_proto::constants as c;
use std::sync::Arc;
use std::time::Duration;

/// An NBD export as a path to a LUN.
#[derive(Debug, Clone)]
pub struct NbdPath {
    uri: NbdUri,
    name: String,
    options: Options,
}

impl NbdPath {
    /// Creates a path without connecting.
    pub fn new(uri: NbdUri, options: Options) -> NbdPath {
        NbdPath {
            name: uri.to_string(),
            uri,
            options,
        }
    }

    fn negotiate(&self, wish: ClientOptions, within: Duration) -> Result<Negotiated> {
        connect::connect(&self.uri, &self.options, wish, within)
    }

    fn identity_of(&self, export: &ServerExport) -> Identity {
        Identity {
            wwid: word(&export.description, "wwid="),
            serial: word(&export.description, "serial="),
            vendor: "NBD".into(),
            product: self.uri.export.clone(),
            size: usable_size(export),
            logical_block_size: export.block_min.max(512),
            read_only: self.options.read_only || export.has(c::FLAG_READ_ONLY),
            access: Access::Optimized,
        }
    }

    fn info_of(&self, export: &ServerExport, identity: &Identity) -> DeviceInfo {
        let block = identity.logical_block_size;
        let longest = self.options.max_transfer.min(export.block_max);
        DeviceInfo {
            name: self.name.clone(),
            wwid: match &identity.wwid {
                Some(wwid) => wwid.clone(),
                None => format!("nbd:{}", self.name),
            },
            size: identity.size,
            logical_block_size: block,
            optimal_io_size: export.block_preferred.max(block),
            max_transfer: (longest - longest % block).max(block),
            volatile_write_cache: export.has(c::FLAG_SEND_FLUSH),
            read_only: identity.read_only,
            discard: !identity.read_only && export.has(c::FLAG_SEND_TRIM),
            numa_node: None,
        }
    }
}

fn usable_size(export: &ServerExport) -> u64 {
    let block = u64::from(export.block_min.max(512));
    export.size - export.size % block
}

/// Finds the word after `key` in a description; it ends at white space, a comma or a semicolon.
fn word(description: &str, key: &str) -> Option<String> {
    let (_, rest) = description.split_once(key)?;
    let end = rest.find(|c: char| c.is_whitespace() || c == ',' || c == ';');
    let word = &rest[..end.unwrap_or(rest.len())];
    (!word.is_empty() && word.len() <= 256 && word.chars().all(|c| c.is_ascii_graphic()))
        .then(|| word.to_owned())
}

impl Lunpath for NbdPath {
    fn name(&self) -> &str {
        &self.name
    }

    fn transport(&self) -> Transport {
        Transport::Nbd
    }

    fn target_port(&self) -> String {
        match &self.uri.server {
            Server::Tcp(host, port) if host.contains(':') => format!("[{host}]:{port}"),
            Server::Tcp(host, port) => format!("{host}:{port}"),
            Server::Unix(path) => path.display().to_string(),
        }
    }

    fn identify(&self, within: Duration) -> Result<Identity> {
        let wish = ClientOptions {
            info_only: true,
            ..ClientOptions::default()
        };
        let told = self.negotiate(wish, within)?;
        Ok(self.identity_of(&told.export))
    }

    fn connect(&self, within: Duration) -> Result<Box<dyn Connection>> {
        let key = random_key()?;
        // EVFS servers accept the key and can fence the session later. Other servers know neither
        // context and do not confirm it.
        let session = format!("{}{key:016x}", c::SESSION_CONTEXT);
        let wish = ClientOptions {
            contexts: vec![session.clone()],
            ..ClientOptions::default()
        };
        let negotiated = self.negotiate(wish, within)?;
        let identity = self.identity_of(&negotiated.export);
        let info = self.info_of(&negotiated.export, &identity);
        if info.size == 0 {
            let why = "the export is smaller than one block";
            return Err(Error::new(ErrorKind::Invalid, &self.name, why));
        }
        let fence_key = negotiated.export.contexts.contains(&session).then_some(key);
        Ok(Box::new(NbdConnection {
            negotiated,
            identity,
            info,
            fence_key,
            queue_depth: self.options.queue_depth.clamp(1, 4096),
        }))
    }

    fn fence(&self, key: u64, within: Duration) -> Result<()> {
        let fence = format!("{}{key:016x}", c::FENCE_CONTEXT);
        let wish = ClientOptions {
            contexts: vec![fence.clone()],
            info_only: true,
            ..ClientOptions::default()
        };
        let told = self.negotiate(wish, within)?;
        if told.export.contexts.contains(&fence) {
            Ok(())
        } else {
            let why = "the server cannot fence the session of a lost path";
            Err(Error::new(ErrorKind::Unsupported, &self.name, why))
        }
    }
}

fn random_key() -> Result<u64> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes)
        .map_err(|e| Error::new(ErrorKind::Io, "random numbers", e.to_string()))?;
    Ok(u64::from_ne_bytes(bytes))
}

/// A negotiated connection.
struct NbdConnection {
    negotiated: Negotiated,
    identity: Identity,
    info: DeviceInfo,
    fence_key: Option<u64>,
    queue_depth: u32,
}

impl Connection for NbdConnection {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn fence_key(&self) -> Option<u64> {
        self.fence_key
    }

    fn open(self: Box<Self>) -> Result<Box<dyn PathQueue>> {
        let queue = NbdQueue::open(self.negotiated, self.info, self.queue_depth)?;
        Ok(Box::new(queue))
    }
}

/// An export as a standalone device that does not reconnect.
pub struct NbdDevice {
    path: Arc<NbdPath>,
    info: DeviceInfo,
    within: Duration,
}

impl NbdDevice {
    /// Queries the export's properties from the server. Each queue opens its own connection.
    ///
    /// # Errors
    /// Same as [`Lunpath::connect`].
    pub fn open(path: NbdPath, within: Duration) -> Result<NbdDevice> {
        let info = path.connect(within)?.info().clone();
        Ok(NbdDevice {
            path: Arc::new(path),
            info,
            within,
        })
    }
}

impl BlockDevice for NbdDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn queue(&self) -> Result<Box<dyn Queue>> {
        Ok(self.path.connect(self.within)?.open()?)
    }
}
