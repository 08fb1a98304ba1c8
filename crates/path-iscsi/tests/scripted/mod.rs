//! A target that does what a test wants, for what no real one does on demand. One LUN of 16 MiB that
//! reads as zeros; one connection at a time.

use std::io::{Read, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// What the target does about a command.
pub enum Reply {
    /// Carries it out.
    Good,
    /// Ends it with a status, a status qualifier and sense data.
    Status(u8, u16, &'static [u8]),
    /// Pings the initiator, waits for its answer, and carries it out.
    AfterPing,
    /// Sends half of the data, and no error.
    Half,
    /// Carries it out with a changed byte in the data.
    Corrupt,
    /// Asks the initiator to leave.
    Leave,
}

/// Decides by the command block, and counts them.
pub type Script = Box<dyn FnMut(&[u8; 16]) -> Reply + Send>;

/// How the target is.
#[derive(Clone, Copy, Default)]
pub struct Manner {
    /// Digests behind data.
    pub data_digest: bool,
    /// Commands of ten bytes only, and a small capacity.
    pub narrow: bool,
}

/// A running target; its thread ends with the process.
pub struct Scripted {
    /// The address of its LUN.
    pub uri: String,
    /// `HOST:PORT`
    pub portal: String,
    /// Opcodes of the commands after the probing ones.
    pub seen: Arc<Mutex<Vec<u8>>>,
}

/// Starts one.
pub fn start(manner: Manner, mut script: Script) -> Scripted {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let portal = listener.local_addr().expect("its address").to_string();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let record = Arc::clone(&seen);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // An initiator that leaves is no fault here.
            let _ = Target {
                stream,
                manner,
                stat_sn: 1,
            }
            .serve(&mut script, &record);
        }
    });
    Scripted {
        uri: format!("iscsi://{portal}/iqn.scripted/0"),
        portal,
        seen,
    }
}

/// Starts one that sends everybody to another portal.
pub fn start_moved(to: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let portal = listener.local_addr().expect("its address").to_string();
    let text = format!("TargetAddress={to},1\0");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut target = Target {
                stream,
                manner: Manner::default(),
                stat_sn: 1,
            };
            let _ = target.receive();
            let _ = target.send(0x23, 0, [0; 4], &[(36, &[1, 1])], text.as_bytes());
        }
    });
    format!("iscsi://{portal}/iqn.scripted/0")
}

struct Target {
    stream: TcpStream,
    manner: Manner,
    stat_sn: u32,
}

impl Target {
    fn serve(&mut self, script: &mut Script, seen: &Mutex<Vec<u8>>) -> Result<()> {
        self.receive()?;
        self.send(0x23, 0x81, [0; 4], &[], b"AuthMethod=None\0")?;
        self.receive()?;
        let digest = if self.manner.data_digest {
            "CRC32C"
        } else {
            "None"
        };
        let text = format!(
            "HeaderDigest=None\0DataDigest={digest}\0MaxRecvDataSegmentLength=262144\0\
             InitialR2T=Yes\0ImmediateData=Yes\0MaxBurstLength=262144\0FirstBurstLength=262144\0"
        );
        self.send(0x23, 0x87, [0; 4], &[], text.as_bytes())?;
        loop {
            let header = self.receive()?;
            let task = [header[16], header[17], header[18], header[19]];
            match header[0] & 0x3f {
                0x01 => {
                    let cdb: [u8; 16] = header[32..48].try_into().expect("16 bytes");
                    self.command(task, &cdb, &header, script, seen)?;
                }
                0x06 => return self.send(0x26, 0x80, task, &[], &[]),
                _ => {}
            }
        }
    }

    fn command(
        &mut self,
        task: [u8; 4],
        cdb: &[u8; 16],
        header: &[u8],
        script: &mut Script,
        seen: &Mutex<Vec<u8>>,
    ) -> Result<()> {
        const ILLEGAL: &[u8] = &[0x72, 5, 0x20, 0, 0, 0, 0, 0];
        let block = 0x0200u32.to_be_bytes();
        match cdb[0] {
            0x00 => self.status(task, 0, 0, &[]),
            0x12 if cdb[1] == 0 => {
                let mut inquiry = *b"\0\0\x05\x02\x1f\0\0\0TEST    SCRIPTED        1   ";
                inquiry[4] = 31;
                self.data(task, &inquiry)
            }
            0x9e if !self.manner.narrow => {
                let mut capacity = [0; 32];
                capacity[4..8].copy_from_slice(&0x7fffu32.to_be_bytes());
                capacity[8..12].copy_from_slice(&block);
                self.data(task, &capacity)
            }
            0x25 => self.data(task, &[0x7fff_u32.to_be_bytes(), block].concat()),
            0x12 | 0x9e | 0x1a => self.status(task, 2, 0, ILLEGAL),
            opcode => {
                seen.lock().expect("nobody panicked").push(opcode);
                let len = u32::from_be_bytes([header[20], header[21], header[22], header[23]]);
                let reads = header[1] & 0x40 != 0;
                let mut data = vec![0; if reads { len as usize } else { 0 }];
                match script(cdb) {
                    Reply::Good if reads => self.data(task, &data),
                    Reply::Good => self.status(task, 0, 0, &[]),
                    Reply::Status(status, qualifier, sense) => {
                        self.status(task, status, qualifier, sense)
                    }
                    Reply::AfterPing => {
                        let ttt: (usize, &[u8]) = (20, &[0, 0, 0, 9]);
                        self.send(0x20, 0x80, [0xff; 4], &[ttt], &[])?;
                        loop {
                            let pong = self.receive()?;
                            if pong[0] == 0x40 && pong[20..24] == [0, 0, 0, 9] {
                                return self.data(task, &data);
                            }
                        }
                    }
                    Reply::Half => {
                        data.truncate(len as usize / 2);
                        self.data(task, &data)
                    }
                    Reply::Corrupt => {
                        self.stat_sn += 1;
                        let mut pdu = self.pdu(0x25, 0x81, task, &[], &data);
                        pdu[60] ^= 1;
                        self.stream.write_all(&pdu)
                    }
                    Reply::Leave => self.send(0x32, 0x80, [0xff; 4], &[(36, &[1])], &[]),
                }
            }
        }
    }

    fn data(&mut self, task: [u8; 4], data: &[u8]) -> Result<()> {
        self.send(0x25, 0x81, task, &[], data)
    }

    fn status(&mut self, task: [u8; 4], status: u8, qualifier: u16, sense: &[u8]) -> Result<()> {
        let mut data = Vec::new();
        if !sense.is_empty() {
            data.extend((sense.len() as u16).to_be_bytes());
            data.extend(sense);
        }
        let fields: [(usize, &[u8]); 2] = [(3, &[status]), (8, &qualifier.to_be_bytes())];
        self.send(0x21, 0x80, task, &fields, &data)
    }

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
        // A wide window of commands; old values are ignored.
        pdu[28..32].copy_from_slice(&1u32.to_be_bytes());
        pdu[32..36].copy_from_slice(&100_000u32.to_be_bytes());
        for (at, value) in fields {
            pdu[*at..*at + value.len()].copy_from_slice(value);
        }
        if opcode == 0x25 {
            pdu[36..48].fill(0);
        }
        pdu.extend(data);
        pdu.resize(pdu.len().next_multiple_of(4), 0);
        if self.manner.data_digest && opcode != 0x23 && !data.is_empty() {
            let digest = crc32c::crc32c(&pdu[48..]);
            pdu.extend(digest.to_le_bytes());
        }
        pdu
    }

    /// A header; its data is read and dropped.
    fn receive(&mut self) -> Result<Vec<u8>> {
        let mut header = vec![0; 48];
        self.stream.read_exact(&mut header)?;
        let len = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
        let digest = if self.manner.data_digest && len > 0 && header[0] & 0x3f != 3 {
            4
        } else {
            0
        };
        let mut data = vec![0; len.next_multiple_of(4) + digest];
        self.stream.read_exact(&mut data)?;
        Ok(header)
    }
}
