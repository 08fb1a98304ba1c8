//! A small blocking client with one connection over a Unix socket or TCP: for the quickstart, which
//! must not depend on another program, and for tests that count acknowledged requests.
//!
//! One request at a time, simple replies, no TLS. Section names are those of the NBD protocol
//! document (`doc/proto.md` of the NetworkBlockDevice project).

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
const REP_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const OPT_GO: u32 = 7;
const REP_ACK: u32 = 1;
const REP_INFO: u32 = 3;
const REP_ERROR_BIT: u32 = 1 << 31;
const INFO_EXPORT: u16 = 0;
const INFO_BLOCK_SIZE: u16 = 3;
/// Longest option reply that is accepted, in bytes.
const REPLY_BYTES_MAX: u32 = 64 * 1024;
/// Longest transfer of one request, in bytes; every server accepts it (block size constraints).
const TRANSFER_MAX: usize = 1 << 20;

/// A socket.
trait Stream: Read + Write + Send {}

impl<S: Read + Write + Send> Stream for S {}

/// A connection to an export.
pub struct Client {
    stream: Box<dyn Stream>,
    size: u64,
    flags: u16,
    cookie: u64,
}

impl Client {
    /// Connects over a Unix socket and selects an export.
    ///
    /// # Errors
    /// Those of the socket; [`io::ErrorKind::InvalidData`] for an answer that is not NBD, and
    /// [`io::ErrorKind::NotFound`] if the server refuses the export.
    pub fn connect(socket: &Path, export: &str) -> io::Result<Client> {
        Client::over(Box::new(UnixStream::connect(socket)?), export)
    }

    /// Connects over TCP and selects an export. Here and later, each step of the connection (a
    /// handshake, bytes sent, bytes received) may take `within`; then the connection is of no use
    /// any more.
    ///
    /// # Errors
    /// See [`Client::connect`]; an error of the socket also if a step takes longer.
    pub fn connect_tcp(server: SocketAddr, export: &str, within: Duration) -> io::Result<Client> {
        let stream = TcpStream::connect_timeout(&server, within)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(within))?;
        stream.set_write_timeout(Some(within))?;
        Client::over(Box::new(stream), export)
    }

    fn over(stream: Box<dyn Stream>, export: &str) -> io::Result<Client> {
        let mut client = Client {
            stream,
            size: 0,
            flags: 0,
            cookie: 0,
        };
        // "Fixed newstyle negotiation": greeting, then client flags (fixed newstyle, no zeroes).
        expect(client.u64()?, NBDMAGIC, "magic")?;
        expect(client.u64()?, IHAVEOPT, "option magic")?;
        client.u16()?;
        client.stream.write_all(&3u32.to_be_bytes())?;
        client.go(export)?;
        Ok(client)
    }

    /// Sends `NBD_OPT_GO` with a request for block sizes, so that the server may enforce them.
    fn go(&mut self, export: &str) -> io::Result<()> {
        let mut message = Vec::new();
        message.extend(IHAVEOPT.to_be_bytes());
        message.extend(OPT_GO.to_be_bytes());
        message.extend((4 + export.len() as u32 + 4).to_be_bytes());
        message.extend((export.len() as u32).to_be_bytes());
        message.extend(export.as_bytes());
        message.extend(1u16.to_be_bytes());
        message.extend(INFO_BLOCK_SIZE.to_be_bytes());
        self.stream.write_all(&message)?;
        loop {
            expect(self.u64()?, REP_MAGIC, "option reply magic")?;
            let (_, kind, len) = (self.u32()?, self.u32()?, self.u32()?);
            if len > REPLY_BYTES_MAX {
                return Err(invalid("an option reply is too long"));
            }
            let mut data = vec![0; len as usize];
            self.stream.read_exact(&mut data)?;
            match kind {
                REP_ACK => return Ok(()),
                REP_INFO => self.info(&data),
                _ if kind & REP_ERROR_BIT != 0 => {
                    let why = format!("the server refuses the export `{export}`");
                    return Err(io::Error::new(io::ErrorKind::NotFound, why));
                }
                _ => {}
            }
        }
    }

    fn info(&mut self, data: &[u8]) {
        if let Some((kind, rest)) = data.split_first_chunk::<2>()
            && u16::from_be_bytes(*kind) == INFO_EXPORT
            && let Some((size, rest)) = rest.split_first_chunk::<8>()
            && let Some((flags, _)) = rest.split_first_chunk::<2>()
        {
            self.size = u64::from_be_bytes(*size);
            self.flags = u16::from_be_bytes(*flags);
        }
    }

    /// Returns the size of the export in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the transmission flags of the export.
    pub fn flags(&self) -> u16 {
        self.flags
    }

    /// Reads into `out` from `offset`.
    pub fn read_at(&mut self, mut offset: u64, out: &mut [u8]) -> io::Result<()> {
        for piece in out.chunks_mut(TRANSFER_MAX) {
            self.request(0, 0, offset, piece.len() as u32, &[])?;
            self.reply()?;
            self.stream.read_exact(piece)?;
            offset += piece.len() as u64;
        }
        Ok(())
    }

    /// Writes `data` at `offset`; the data is acknowledged, but not yet on stable storage.
    pub fn write_at(&mut self, mut offset: u64, data: &[u8]) -> io::Result<()> {
        for piece in data.chunks(TRANSFER_MAX) {
            self.request(1, 0, offset, piece.len() as u32, piece)?;
            self.reply()?;
            offset += piece.len() as u64;
        }
        Ok(())
    }

    /// Puts all acknowledged writes on stable storage.
    pub fn flush(&mut self) -> io::Result<()> {
        self.request(3, 0, 0, 0, &[])?;
        self.reply()
    }

    /// Sends the disconnect request.
    pub fn disconnect(mut self) -> io::Result<()> {
        self.request(2, 0, 0, 0, &[])
    }

    fn request(
        &mut self,
        kind: u16,
        flags: u16,
        offset: u64,
        len: u32,
        data: &[u8],
    ) -> io::Result<()> {
        self.cookie += 1;
        let mut message = Vec::with_capacity(28 + data.len());
        message.extend(REQUEST_MAGIC.to_be_bytes());
        message.extend(flags.to_be_bytes());
        message.extend(kind.to_be_bytes());
        message.extend(self.cookie.to_be_bytes());
        message.extend(offset.to_be_bytes());
        message.extend(len.to_be_bytes());
        message.extend(data);
        self.stream.write_all(&message)
    }

    /// Reads a simple reply, the only kind without negotiated structured replies.
    fn reply(&mut self) -> io::Result<()> {
        let (magic, error, cookie) = (self.u32()?, self.u32()?, self.u64()?);
        expect(
            u64::from(magic),
            u64::from(SIMPLE_REPLY_MAGIC),
            "reply magic",
        )?;
        expect(cookie, self.cookie, "cookie")?;
        match error {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno as i32)),
        }
    }

    fn u16(&mut self) -> io::Result<u16> {
        let mut bytes = [0; 2];
        self.stream.read_exact(&mut bytes)?;
        Ok(u16::from_be_bytes(bytes))
    }

    fn u32(&mut self) -> io::Result<u32> {
        let mut bytes = [0; 4];
        self.stream.read_exact(&mut bytes)?;
        Ok(u32::from_be_bytes(bytes))
    }

    fn u64(&mut self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.stream.read_exact(&mut bytes)?;
        Ok(u64::from_be_bytes(bytes))
    }
}

fn expect(got: u64, wanted: u64, what: &str) -> io::Result<()> {
    if got == wanted {
        Ok(())
    } else {
        Err(invalid(&format!("wrong {what}: {got:#x}")))
    }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("not the NBD protocol: {why}"),
    )
}
