//! The connection between a server and its keeper: messages with descriptors.
//!
//! ```text
//!   +NAME  descriptors   add to those of the name
//!   =NAME  descriptors   replace those of the name, at once
//!   -NAME                close those of the name
//!   !                    the server serves
//!   >                    start the program that has the place of this one now, in place of the server
//!   .                    close all: nothing can be continued
//! ```

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Longest name in bytes.
const NAME_MAX: usize = 60;

/// Most descriptors of one message; the kernel permits 253.
const DESCRIPTORS_MAX: usize = 128;

/// Descriptors by name.
#[derive(Default)]
pub struct Kept(BTreeMap<String, Vec<OwnedFd>>);

impl Kept {
    /// Takes the descriptors of a name.
    pub fn take(&mut self, name: &str) -> Vec<OwnedFd> {
        self.0.remove(name).unwrap_or_default()
    }

    /// Takes the only descriptor of a name.
    pub fn take_one(&mut self, name: &str) -> Option<OwnedFd> {
        let mut all = self.take(name);
        if all.len() == 1 { all.pop() } else { None }
    }

    /// Reports whether something is held under a name.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Puts descriptors under a name, instead of those that are there.
    pub(crate) fn put(&mut self, name: &str, descriptors: Vec<OwnedFd>) {
        self.0.insert(name.to_owned(), descriptors);
    }

    /// Lists the names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Lists everything.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, &[OwnedFd])> {
        self.0
            .iter()
            .map(|(name, all)| (name.as_str(), all.as_slice()))
    }

    /// Reports whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Reports whether a text may be a name: it has visible ASCII characters only.
pub(crate) fn is_name(text: &str) -> bool {
    text.len() <= NAME_MAX && !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// What messages have said.
#[derive(Default)]
pub(crate) struct Received {
    /// Another program is to take the place of the server.
    pub replace: bool,
    /// The server serves.
    pub serves: bool,
    /// There will be no further message.
    pub is_over: bool,
}

/// One end of the connection.
pub struct Link(OwnedFd);

impl Link {
    /// Creates both ends.
    pub(crate) fn pair() -> io::Result<(Link, Link)> {
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        Ok((Link(ours), Link(theirs)))
    }

    /// Takes over the end of a server.
    pub(crate) fn of(descriptor: OwnedFd) -> Link {
        Link(descriptor)
    }

    /// Gives descriptors to the keeper, in addition to those that it holds under this name.
    ///
    /// # Errors
    /// The keeper has died; the name is too long.
    pub fn add(&self, name: &str, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        for some in descriptors.chunks(DESCRIPTORS_MAX) {
            self.send('+', name, some)?;
        }
        Ok(())
    }

    /// Gives descriptors to the keeper instead of those that it holds under this name, all at once.
    ///
    /// # Errors
    /// As [`Link::add`]; too many descriptors.
    pub fn replace(&self, name: &str, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        if descriptors.len() > DESCRIPTORS_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.send('=', name, descriptors)
    }

    /// Lets the keeper close the descriptors of a name.
    ///
    /// # Errors
    /// As [`Link::add`].
    pub fn close(&self, name: &str) -> io::Result<()> {
        self.send('-', name, &[])
    }

    /// Announces that the server serves.
    ///
    /// # Errors
    /// The keeper has died.
    pub fn serving(&self) -> io::Result<()> {
        self.send('!', "", &[])
    }

    /// Asks the keeper to kill this server, and to start the program that has the place of this one
    /// now. If that does not serve, this program goes on.
    ///
    /// # Errors
    /// The keeper has died.
    pub fn restart(&self) -> io::Result<()> {
        self.send('>', "", &[])
    }

    /// Announces that no other server could continue either: the keeper ends with this one.
    ///
    /// # Errors
    /// The keeper has died.
    pub fn give_up(&self) -> io::Result<()> {
        self.send('.', "", &[])
    }

    fn send(&self, kind: char, name: &str, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        if !name.is_empty() && !is_name(name) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let message = format!("{kind}{name}");
        let parts = [IoSlice::new(message.as_bytes())];
        loop {
            match rustix::net::sendmsg(&self.0, &parts, &mut control, SendFlags::NOSIGNAL) {
                Err(Errno::INTR) => {}
                sent => return Ok(sent.map(drop)?),
            }
        }
    }

    /// Takes the messages that are there, and changes what is held accordingly.
    pub(crate) fn receive(&self, kept: &mut Kept) -> io::Result<Received> {
        let mut all = Received::default();
        while !all.is_over && self.has_message()? {
            self.receive_one(kept, &mut all)?;
        }
        Ok(all)
    }

    fn has_message(&self) -> io::Result<bool> {
        let mut polled = [PollFd::new(&self.0, PollFlags::IN)];
        poll(&mut polled, Some(&Timespec::default()))?;
        Ok(!polled[0].revents().is_empty())
    }

    fn receive_one(&self, kept: &mut Kept, all: &mut Received) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; 1 + NAME_MAX];
        let received = loop {
            let mut into = [IoSliceMut::new(&mut bytes)];
            let flags = RecvFlags::CMSG_CLOEXEC;
            match rustix::net::recvmsg(&self.0, &mut into, &mut control, flags) {
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => {
                    all.is_over = true;
                    return Ok(());
                }
                received => break received?,
            }
        };
        let descriptors = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        let descriptors: Vec<OwnedFd> = descriptors.flatten().collect();
        let Some((kind, name)) = bytes[..received.bytes.min(bytes.len())].split_first() else {
            all.is_over = true;
            return Ok(());
        };
        let name = String::from_utf8_lossy(name).into_owned();
        match kind {
            b'+' | b'=' if !is_name(&name) => {}
            b'+' => kept.0.entry(name).or_default().extend(descriptors),
            b'=' => drop(kept.0.insert(name, descriptors)),
            b'-' => drop(kept.0.remove(&name)),
            b'!' => all.serves = true,
            b'>' => all.replace = true,
            b'.' => kept.0.clear(),
            _ => {}
        }
        Ok(())
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends by `send`, and takes all messages.
    fn kept_after(kept: &mut Kept, send: impl FnOnce(&Link)) -> bool {
        let (ours, theirs) = Link::pair().unwrap();
        send(&theirs);
        drop(theirs);
        let received = ours.receive(kept).unwrap();
        assert!(received.is_over);
        received.serves
    }

    #[test]
    fn descriptors_are_added_replaced_and_closed_by_name() {
        let mut kept = Kept::default();
        let file = tempfile::tempfile().unwrap();
        let many = vec![file.as_fd(); 300];
        let serves = kept_after(&mut kept, |link| {
            link.add("a", &many).unwrap();
            link.add("a", &many[..2]).unwrap();
            link.replace("b", &many[..3]).unwrap();
            link.replace("b", &many[..1]).unwrap();
            link.add("c", &many[..1]).unwrap();
            link.close("c").unwrap();
            assert!(link.replace("d", &many).is_err());
            assert!(link.close(&"x".repeat(61)).is_err());
            assert!(link.add("a name", &many[..1]).is_err());
        });
        let mut other = Kept::default();
        kept_after(&mut other, |link| {
            link.add("a", &many[..1]).unwrap();
            link.give_up().unwrap();
        });
        assert!(other.is_empty());
        assert!(!serves && !kept.is_empty());
        assert_eq!(kept.take("a").len(), 302);
        assert!(kept.take_one("b").is_some() && kept.take_one("c").is_none());
        assert!(kept.is_empty());
        assert!(kept_after(&mut kept, |link| link.serving().unwrap()));
    }
}
