//! A scripted target for behavior that no real target shows on demand. It has one LUN, which either
//! reads as zeros or is a [`Disk`] that several targets share as its ports.

pub mod disk;
pub mod reserve;

use disk::{Disk, End};
use reserve::{Reservations, Told};
use std::io::{Read, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Reaction of the target to a command.
pub enum Reply {
    /// Executes the command.
    Good,
    /// Ends the command with a status, a status qualifier and sense data.
    Status(u8, u16, &'static [u8]),
    /// Pings the initiator, waits for its response, then executes the command.
    AfterPing,
    /// Sends half of the data without an error.
    Half,
    /// Executes the command but corrupts a byte of the data.
    Corrupt,
    /// Requests a logout from the initiator.
    Leave,
}

/// Chooses the reply to a command by its CDB. Called only for reads, writes and similar commands.
pub type Script = Box<dyn FnMut(&[u8; 16]) -> Reply + Send>;

/// Properties of the target.
#[derive(Clone, Default)]
pub struct Manner {
    /// Append digests to data segments.
    pub data_digest: bool,
    /// Support ten-byte commands only, with a small capacity.
    pub narrow: bool,
    /// Vendor in the INQUIRY data, of eight characters; `TEST` by default.
    pub vendor: Option<&'static [u8; 8]>,
    /// Disk, and the port of it that this target is.
    pub port: Option<(Arc<Disk>, usize)>,
    /// Reservations of the unit, and the port that this target is.
    pub reservations: Option<(Arc<Reservations>, usize)>,
    /// Maximum number of reads and writes in progress per session, and the duration of each;
    /// further ones end in TASK SET FULL.
    pub tasks: Option<(usize, Duration)>,
}

/// A running target; its threads run until the process ends.
pub struct Scripted {
    /// URI of its LUN.
    pub uri: String,
    /// Portal as `HOST:PORT`.
    pub portal: String,
    /// Opcodes of the commands received after the unit was probed.
    pub seen: Arc<Mutex<Vec<u8>>>,
    /// Number of commands that ended in TASK SET FULL.
    pub full: Arc<AtomicUsize>,
}

/// Starts a target.
pub fn start(manner: Manner, script: Script) -> Scripted {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let portal = listener.local_addr().expect("its address").to_string();
    let scripted = Scripted {
        uri: format!("iscsi://{portal}/iqn.scripted/0"),
        portal,
        seen: Arc::default(),
        full: Arc::default(),
    };
    let (seen, full) = (Arc::clone(&scripted.seen), Arc::clone(&scripted.full));
    let script = Arc::new(Mutex::new(script));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let session = Session {
                told: manner.changes(),
                input: stream.try_clone().expect("a descriptor"),
                shared: Shared {
                    out: Arc::new(Mutex::new(Out {
                        stream,
                        stat_sn: 1,
                        data_digest: manner.data_digest,
                    })),
                    manner: manner.clone(),
                    script: Arc::clone(&script),
                    seen: Arc::clone(&seen),
                    full: Arc::clone(&full),
                    under_way: Arc::default(),
                    isid: [0; 6],
                },
            };
            // A disconnect by the initiator is not an error.
            std::thread::spawn(move || session.serve());
        }
    });
    scripted
}

/// Starts a target that redirects every login to another portal. Returns the URI of its LUN.
pub fn start_moved(to: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let portal = listener.local_addr().expect("its address").to_string();
    let text = format!("TargetAddress={to},1\0");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = receive(&mut stream, false);
            let mut out = Out {
                stream,
                stat_sn: 1,
                data_digest: false,
            };
            let _ = out.send(0x23, 0, [0; 4], &[(36, &[1, 1])], text.as_bytes());
        }
    });
    format!("iscsi://{portal}/iqn.scripted/0")
}

impl Manner {
    fn changes(&self) -> u64 {
        let port = self.port.as_ref();
        port.map_or(0, |(disk, _)| disk.changes.load(SeqCst))
    }
}

/// A command from the initiator.
struct Command {
    task: [u8; 4],
    cdb: [u8; 16],
    /// Number of bytes to read.
    wants: usize,
    data: Vec<u8>,
}

/// A session, owned by the thread that reads from it.
struct Session {
    input: TcpStream,
    /// Number of access changes that this session has reported.
    told: u64,
    shared: Shared,
}

/// State that the threads of a session share.
#[derive(Clone)]
struct Shared {
    out: Arc<Mutex<Out>>,
    manner: Manner,
    script: Arc<Mutex<Script>>,
    seen: Arc<Mutex<Vec<u8>>>,
    full: Arc<AtomicUsize>,
    under_way: Arc<AtomicUsize>,
    /// Session identifier, initiator part.
    isid: [u8; 6],
}

impl Session {
    fn serve(mut self) -> Result<()> {
        self.log_in()?;
        let slow = self.shared.manner.tasks.map(|(_, time)| {
            let (hand, handed) = std::sync::mpsc::channel();
            let shared = self.shared.clone();
            std::thread::spawn(move || {
                for command in handed {
                    std::thread::sleep(time);
                    let done = shared.carry_out(&command);
                    shared.under_way.fetch_sub(1, SeqCst);
                    if done.is_err() {
                        break;
                    }
                }
            });
            hand
        });
        loop {
            let (header, data) = self.receive()?;
            let task = [header[16], header[17], header[18], header[19]];
            match header[0] & 0x3f {
                0x01 => {
                    let len = u32::from_be_bytes([header[20], header[21], header[22], header[23]]);
                    let reads = header[1] & 0x40 != 0;
                    let command = Command {
                        task,
                        cdb: header[32..48].try_into().expect("16 bytes"),
                        wants: if reads { len as usize } else { 0 },
                        data,
                    };
                    self.command(command, slow.as_ref())?;
                }
                0x00 if task != [0xff; 4] => self.shared.send(0x20, 0x80, task, &[], &[])?,
                0x06 => return self.shared.send(0x26, 0x80, task, &[], &[]),
                _ => {}
            }
        }
    }

    fn log_in(&mut self) -> Result<()> {
        let (login, _) = self.receive()?;
        self.shared.isid.copy_from_slice(&login[8..14]);
        let auth = b"AuthMethod=None\0";
        self.shared.send(0x23, 0x81, [0; 4], &[], auth)?;
        self.receive()?;
        let digest = if self.shared.manner.data_digest {
            "CRC32C"
        } else {
            "None"
        };
        let text = format!(
            "HeaderDigest=None\0DataDigest={digest}\0MaxRecvDataSegmentLength=262144\0\
             InitialR2T=Yes\0ImmediateData=Yes\0MaxBurstLength=262144\0FirstBurstLength=262144\0"
        );
        self.shared.send(0x23, 0x87, [0; 4], &[], text.as_bytes())
    }

    fn command(&mut self, command: Command, slow: Option<&Sender<Command>>) -> Result<()> {
        let Command { task, cdb, .. } = &command;
        let shared = &self.shared;
        if let Some((reservations, port)) = &shared.manner.reservations {
            let nexus = (shared.isid, *port);
            let told = match cdb[0] {
                0x5e => reservations.tell(cdb),
                0x5f => reservations.change(nexus, cdb, &command.data),
                0x8a | 0x93 if !reservations.lets_write(nexus) => Told::Conflict,
                _ => return shared.plain(&mut self.input, &command),
            };
            return match told {
                Told::Data(data) => shared.end(&command, End::Data(data)),
                Told::Good => shared.end(&command, End::Good),
                Told::Conflict => shared.status(*task, 0x18, 0, &[]),
            };
        }
        let Some((disk, port)) = &shared.manner.port else {
            return shared.plain(&mut self.input, &command);
        };
        let changes = shared.manner.changes();
        if self.told < changes && !Disk::always(cdb) {
            self.told = changes;
            return shared.end(&command, End::Check(6, 0x2a, 0x06));
        }
        if let Some(refusal) = disk.refusal(*port, cdb) {
            return shared.end(&command, refusal);
        }
        if !Disk::is_io(cdb) {
            return shared.end(&command, disk.run(*port, cdb, &command.data));
        }
        let Some((most, slow)) = shared.manner.tasks.map(|(most, _)| most).zip(slow) else {
            return shared.scripted(&mut self.input, &command);
        };
        if shared.under_way.load(SeqCst) >= most {
            shared.full.fetch_add(1, SeqCst);
            return shared.status(*task, 0x28, 0, &[]);
        }
        shared.under_way.fetch_add(1, SeqCst);
        let _ = slow.send(command);
        Ok(())
    }

    fn receive(&mut self) -> Result<(Vec<u8>, Vec<u8>)> {
        receive(&mut self.input, self.shared.manner.data_digest)
    }
}

impl Shared {
    /// Executes a command on the LUN that reads as zeros.
    fn plain(&self, input: &mut TcpStream, command: &Command) -> Result<()> {
        const ILLEGAL: &[u8] = &[0x72, 5, 0x20, 0, 0, 0, 0, 0];
        let block = 0x0200u32.to_be_bytes();
        let Command { task, cdb, .. } = command;
        match cdb[0] {
            0x00 => self.status(*task, 0, 0, &[]),
            0x12 if cdb[1] == 0 => {
                let mut inquiry = *b"\0\0\x05\x02\x1f\0\0\0TEST    SCRIPTED        1   ";
                inquiry[4] = 31;
                if let Some(vendor) = self.manner.vendor {
                    inquiry[8..16].copy_from_slice(vendor);
                }
                self.data(*task, &inquiry)
            }
            0x9e if !self.manner.narrow => {
                let mut capacity = [0; 32];
                capacity[4..8].copy_from_slice(&0x7fffu32.to_be_bytes());
                capacity[8..12].copy_from_slice(&block);
                self.data(*task, &capacity)
            }
            0x25 => self.data(*task, &[0x7fff_u32.to_be_bytes(), block].concat()),
            0x12 | 0x9e | 0x1a => self.status(*task, 2, 0, ILLEGAL),
            _ => self.scripted(input, command),
        }
    }

    /// Asks the script about a read, write or similar command, and acts on its reply.
    fn scripted(&self, input: &mut TcpStream, command: &Command) -> Result<()> {
        let Command { task, cdb, .. } = command;
        self.seen
            .lock()
            .expect("no panic under this lock")
            .push(cdb[0]);
        let reply = self.script.lock().expect("no panic under this lock")(cdb);
        match reply {
            Reply::Good => self.carry_out(command),
            Reply::Status(status, qualifier, sense) => self.status(*task, status, qualifier, sense),
            Reply::AfterPing => {
                let ttt: (usize, &[u8]) = (20, &[0, 0, 0, 9]);
                self.send(0x20, 0x80, [0xff; 4], &[ttt], &[])?;
                loop {
                    let (pong, _) = receive(input, self.manner.data_digest)?;
                    if pong[0] == 0x40 && pong[20..24] == [0, 0, 0, 9] {
                        return self.carry_out(command);
                    }
                }
            }
            Reply::Half => self.data(*task, &vec![0; command.wants / 2]),
            Reply::Corrupt => {
                let mut out = self.out.lock().expect("no panic under this lock");
                out.stat_sn += 1;
                let mut pdu = out.pdu(0x25, 0x81, *task, &[], &vec![0; command.wants]);
                pdu[60] ^= 1;
                out.stream.write_all(&pdu)
            }
            Reply::Leave => self.send(0x32, 0x80, [0xff; 4], &[(36, &[1])], &[]),
        }
    }

    fn carry_out(&self, command: &Command) -> Result<()> {
        let end = match &self.manner.port {
            Some((disk, port)) => disk.run(*port, &command.cdb, &command.data),
            None if command.wants > 0 => End::Data(vec![0; command.wants]),
            None => End::Good,
        };
        self.end(command, end)
    }

    fn end(&self, command: &Command, end: End) -> Result<()> {
        match end {
            End::Good => self.status(command.task, 0, 0, &[]),
            End::Data(mut data) => {
                data.truncate(command.wants);
                self.data(command.task, &data)
            }
            End::Check(key, code, qualifier) => {
                let sense = [0x72, key, code, qualifier, 0, 0, 0, 0];
                self.status(command.task, 2, 0, &sense)
            }
        }
    }

    fn data(&self, task: [u8; 4], data: &[u8]) -> Result<()> {
        self.send(0x25, 0x81, task, &[], data)
    }

    fn status(&self, task: [u8; 4], status: u8, qualifier: u16, sense: &[u8]) -> Result<()> {
        let mut data = Vec::new();
        if !sense.is_empty() {
            data.extend((sense.len() as u16).to_be_bytes());
            data.extend(sense);
        }
        let fields: [(usize, &[u8]); 2] = [(3, &[status]), (8, &qualifier.to_be_bytes())];
        self.send(0x21, 0x80, task, &fields, &data)
    }

    fn send(
        &self,
        opcode: u8,
        flags: u8,
        task: [u8; 4],
        fields: &[(usize, &[u8])],
        data: &[u8],
    ) -> Result<()> {
        let mut out = self.out.lock().expect("no panic under this lock");
        out.send(opcode, flags, task, fields, data)
    }
}

/// Target side of a connection.
struct Out {
    stream: TcpStream,
    stat_sn: u32,
    data_digest: bool,
}

impl Out {
    fn send(
        &mut self,
        opcode: u8,
        flags: u8,
        task: [u8; 4],
        fields: &[(usize, &[u8])],
        data: &[u8],
    ) -> Result<()> {
        let pdu = self.pdu(opcode, flags, task, fields, data);
        self.stat_sn += 1;
        self.stream.write_all(&pdu)
    }

    fn pdu(
        &self,
        opcode: u8,
        flags: u8,
        task: [u8; 4],
        fields: &[(usize, &[u8])],
        data: &[u8],
    ) -> Vec<u8> {
        let mut pdu = vec![0; 48];
        (pdu[0], pdu[1]) = (opcode, flags);
        pdu[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
        pdu[16..20].copy_from_slice(&task);
        pdu[20..24].fill(0xff);
        pdu[24..28].copy_from_slice(&self.stat_sn.to_be_bytes());
        // A wide command window; stale values are ignored.
        pdu[28..32].copy_from_slice(&1u32.to_be_bytes());
        pdu[32..36].copy_from_slice(&1_000_000_000u32.to_be_bytes());
        for (at, value) in fields {
            pdu[*at..*at + value.len()].copy_from_slice(value);
        }
        if opcode == 0x25 {
            pdu[36..48].fill(0);
        }
        pdu.extend(data);
        pdu.resize(pdu.len().next_multiple_of(4), 0);
        if self.data_digest && opcode != 0x23 && !data.is_empty() {
            let digest = crc32c::crc32c(&pdu[48..]);
            pdu.extend(digest.to_le_bytes());
        }
        pdu
    }
}

/// Receives a PDU. Returns its header and its data.
fn receive(input: &mut TcpStream, data_digest: bool) -> Result<(Vec<u8>, Vec<u8>)> {
    let mut header = vec![0; 48];
    input.read_exact(&mut header)?;
    let len = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
    let digest = if data_digest && len > 0 && header[0] & 0x3f != 3 {
        4
    } else {
        0
    };
    let mut data = vec![0; len.next_multiple_of(4) + digest];
    input.read_exact(&mut data)?;
    data.truncate(len);
    Ok((header, data))
}
