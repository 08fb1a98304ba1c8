//! Splits the incoming stream into PDUs and verifies their digests (sections 11.2 and 13.1).

use crate::pdu::{BHS_BYTES, Bhs, padding};
use crate::{ProtocolError, Result, broken};

/// Part of a PDU that was just completed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// Header; its digest, if any, was verified.
    Header(Bhs),
    /// The last `n` bytes that were consumed belong to the data segment.
    Data(usize),
    /// End of the PDU; the data digest, if any, was verified.
    End,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Header { have: usize },
    AdditionalHeader { left: usize },
    HeaderDigest { have: usize },
    Data { left: u32 },
    Padding { left: usize },
    DataDigest { have: usize },
}

/// Parts of a PDU that a CRC32C digest follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Digests {
    pub(crate) header: bool,
    pub(crate) data: bool,
}

impl Digests {
    /// No digests, as during the login.
    pub(crate) const NONE: Digests = Digests {
        header: false,
        data: false,
    };
}

/// Position in the incoming stream.
#[derive(Debug)]
pub(crate) struct Framer {
    digests: Digests,
    data_bytes_max: u32,
    state: State,
    bhs: Bhs,
    digest: [u8; 4],
    crc: u32,
}

impl Framer {
    pub(crate) fn new(digests: Digests, data_bytes_max: u32) -> Framer {
        Framer {
            digests,
            data_bytes_max,
            state: State::Header { have: 0 },
            bhs: Bhs([0; BHS_BYTES]),
            digest: [0; 4],
            crc: 0,
        }
    }

    /// Returns the unread bytes of the current data segment, or 0 outside a data segment.
    pub(crate) fn data_left(&self) -> u32 {
        match self.state {
            State::Data { left } => left,
            _ => 0,
        }
    }

    /// Accounts for data that the driver read directly, at most [`Framer::data_left`] bytes.
    pub(crate) fn took_data(&mut self, bytes: &[u8]) {
        if let State::Data { left } = &mut self.state {
            *left = left.saturating_sub(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
            if self.digests.data {
                self.crc = crc32c::crc32c_append(self.crc, bytes);
            }
        }
    }

    /// Consumes bytes of `input`. Returns the number of bytes consumed and the frame that they
    /// completed; `None` means that more input is needed.
    pub(crate) fn next(&mut self, input: &[u8]) -> Result<(usize, Option<Frame>)> {
        let mut at = 0;
        loop {
            let rest = input.get(at..).unwrap_or_default();
            match self.state {
                State::Header { have } => {
                    let take = fill(&mut self.bhs.0, have, rest);
                    at += take;
                    if have + take < BHS_BYTES {
                        self.state = State::Header { have: have + take };
                        return Ok((at, None));
                    }
                    if self.bhs.data_bytes() > self.data_bytes_max {
                        return broken(format!(
                            "a data segment of {} bytes exceeds the limit of {}",
                            self.bhs.data_bytes(),
                            self.data_bytes_max
                        ));
                    }
                    if self.digests.header {
                        self.crc = crc32c::crc32c(&self.bhs.0);
                    }
                    let left = self.bhs.ahs_bytes();
                    if left == 0 && !self.digests.header {
                        return Ok((at, Some(self.begin_data())));
                    }
                    self.state = State::AdditionalHeader { left };
                }
                State::AdditionalHeader { left } => {
                    let take = left.min(rest.len());
                    if self.digests.header {
                        let part = rest.get(..take).unwrap_or_default();
                        self.crc = crc32c::crc32c_append(self.crc, part);
                    }
                    at += take;
                    if take < left {
                        self.state = State::AdditionalHeader { left: left - take };
                        return Ok((at, None));
                    }
                    if !self.digests.header {
                        return Ok((at, Some(self.begin_data())));
                    }
                    self.state = State::HeaderDigest { have: 0 };
                }
                State::HeaderDigest { have } => {
                    let take = fill(&mut self.digest, have, rest);
                    at += take;
                    if have + take < 4 {
                        self.state = State::HeaderDigest { have: have + take };
                        return Ok((at, None));
                    }
                    self.check("header")?;
                    return Ok((at, Some(self.begin_data())));
                }
                State::Data { left: 0 } => {
                    self.state = State::Padding {
                        left: padding(self.bhs.data_bytes()),
                    };
                }
                State::Data { left } => {
                    let left = usize::try_from(left).unwrap_or(usize::MAX);
                    let part = rest.get(..left.min(rest.len())).unwrap_or_default();
                    if part.is_empty() {
                        return Ok((at, None));
                    }
                    self.took_data(part);
                    return Ok((at + part.len(), Some(Frame::Data(part.len()))));
                }
                State::Padding { left } => {
                    let take = left.min(rest.len());
                    if self.digests.data {
                        let part = rest.get(..take).unwrap_or_default();
                        self.crc = crc32c::crc32c_append(self.crc, part);
                    }
                    at += take;
                    if take < left {
                        self.state = State::Padding { left: left - take };
                        return Ok((at, None));
                    }
                    if !self.digests.data || self.bhs.data_bytes() == 0 {
                        self.state = State::Header { have: 0 };
                        return Ok((at, Some(Frame::End)));
                    }
                    self.state = State::DataDigest { have: 0 };
                }
                State::DataDigest { have } => {
                    let take = fill(&mut self.digest, have, rest);
                    at += take;
                    if have + take < 4 {
                        self.state = State::DataDigest { have: have + take };
                        return Ok((at, None));
                    }
                    self.check("data segment")?;
                    self.state = State::Header { have: 0 };
                    return Ok((at, Some(Frame::End)));
                }
            }
        }
    }

    fn begin_data(&mut self) -> Frame {
        self.crc = 0;
        self.state = State::Data {
            left: self.bhs.data_bytes(),
        };
        Frame::Header(self.bhs)
    }

    /// Verifies a digest. It is sent least significant byte first (appendix A of RFC 3720).
    fn check(&self, what: &'static str) -> Result<()> {
        if self.crc.to_le_bytes() == self.digest {
            Ok(())
        } else {
            Err(ProtocolError::Digest(what))
        }
    }
}

/// Copies input into `out` after its first `have` bytes. Returns the number of bytes copied.
fn fill(out: &mut [u8], have: usize, input: &[u8]) -> usize {
    let room = out.get_mut(have..).unwrap_or_default();
    let take = room.len().min(input.len());
    for (to, from) in room.iter_mut().zip(input) {
        *to = *from;
    }
    take
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a PDU with 5 bytes of data and the given digests.
    fn stream(digests: Digests) -> Vec<u8> {
        let mut bhs = Bhs::new(0x20, 0x80);
        bhs.set_data_bytes(5);
        let mut out = bhs.0.to_vec();
        if digests.header {
            out.extend(crc32c::crc32c(&bhs.0).to_le_bytes());
        }
        out.extend(b"hello\0\0\0");
        if digests.data {
            out.extend(crc32c::crc32c(b"hello\0\0\0").to_le_bytes());
        }
        out
    }

    fn run(framer: &mut Framer, stream: &[u8], step: usize) -> Result<(Vec<u8>, usize)> {
        let (mut data, mut ends) = (Vec::new(), 0);
        for piece in stream.chunks(step) {
            let mut at = 0;
            loop {
                let (taken, frame) = framer.next(&piece[at..])?;
                at += taken;
                match frame {
                    Some(Frame::Data(n)) => data.extend(&piece[at - n..at]),
                    Some(Frame::End) => ends += 1,
                    Some(Frame::Header(_)) => {}
                    None => break,
                }
            }
            assert_eq!(at, piece.len());
        }
        Ok((data, ends))
    }

    #[test]
    fn any_cut_of_the_stream_gives_the_same() {
        for (header, data) in [(false, false), (true, false), (false, true), (true, true)] {
            let digests = Digests { header, data };
            let stream = stream(digests).repeat(3);
            for step in 1..=stream.len() {
                let mut framer = Framer::new(digests, 8192);
                let got = run(&mut framer, &stream, step).unwrap();
                assert_eq!(got, (b"hello".repeat(3), 3), "{header} {data} {step}");
            }
        }
    }

    #[test]
    fn each_changed_byte_is_found_by_the_digests() {
        let both = Digests {
            header: true,
            data: true,
        };
        let good = stream(both);
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            let mut framer = Framer::new(both, 0x00ff_ffff);
            // A corrupted length may announce more bytes than the input holds; the PDU never
            // completes.
            let got = run(&mut framer, &bad, bad.len());
            assert!(
                got.as_ref().map_or(true, |(_, ends)| *ends == 0),
                "byte {at}: {got:?}"
            );
        }
    }

    #[test]
    fn the_digest_is_that_of_the_standard() {
        // Appendix B.4 of RFC 3720: 32 zero bytes.
        assert_eq!(
            crc32c::crc32c(&[0; 32]).to_le_bytes(),
            [0xaa, 0x36, 0x91, 0x8a]
        );
    }

    #[test]
    fn a_data_segment_has_a_limit() {
        let mut bhs = Bhs::new(0x20, 0x80);
        bhs.set_data_bytes(8193);
        assert!(Framer::new(Digests::NONE, 8192).next(&bhs.0).is_err());
    }
}
