//! The address of a unit: it is on the interface of the owner only, and its neighbours learn of a
//! move at once.
//!
//! The kernel removes the address by itself when its lifetime is over, also if the process that
//! renews it stands still. Its lifetime is the time for which the machine may serve.

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::str::FromStr;
use std::time::Duration;

const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_REPLACE: u16 = 0x100;
const NLM_F_CREATE: u16 = 0x400;
const NLMSG_ERROR: u16 = 2;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_CACHEINFO: u16 = 6;
const IFA_FLAGS: u16 = 8;
/// The address is used at once, without a search for duplicates: the old owner may still have it.
const IFA_F_NODAD: u32 = 2;

/// An address with the length of its network's prefix, and the interface that gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    pub ip: IpAddr,
    pub prefix: u8,
    pub interface: String,
}

impl FromStr for Address {
    type Err = String;

    /// Parses `IP/PREFIX@INTERFACE`.
    fn from_str(text: &str) -> Result<Address, String> {
        let wrong = || format!("`{text}` is not of the form IP/PREFIX@INTERFACE");
        let (network, interface) = text.split_once('@').ok_or_else(wrong)?;
        let (ip, prefix) = network.split_once('/').ok_or_else(wrong)?;
        let ip: IpAddr = ip.parse().map_err(|_| wrong())?;
        let prefix: u8 = prefix.parse().map_err(|_| wrong())?;
        let longest = if ip.is_ipv4() { 32 } else { 128 };
        let is_name = !interface.is_empty() && interface.len() < 16 && !interface.contains('/');
        if prefix > longest || !is_name {
            return Err(wrong());
        }
        Ok(Address {
            ip,
            prefix,
            interface: interface.to_owned(),
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}@{}", self.ip, self.prefix, self.interface)
    }
}

impl Address {
    /// Adds the address for a time, in whole seconds and at least one, or renews it.
    ///
    /// # Errors
    /// There is no such interface, or this process has no `CAP_NET_ADMIN`.
    pub fn add(&self, lives: Duration) -> io::Result<()> {
        let secs = u32::try_from(lives.as_secs())
            .unwrap_or(u32::MAX - 1)
            .max(1);
        let flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
        self.change(RTM_NEWADDR, flags, Some(secs))
    }

    /// Removes the address, if the interface has it.
    ///
    /// # Errors
    /// Those of [`Address::add`].
    pub fn remove(&self) -> io::Result<()> {
        match self.change(RTM_DELADDR, NLM_F_REQUEST | NLM_F_ACK, None) {
            Err(e) if e.raw_os_error() == Some(libc::EADDRNOTAVAIL) => Ok(()),
            other => other,
        }
    }

    /// Reports whether this machine has the interface.
    ///
    /// # Errors
    /// The kernel cannot be asked.
    pub fn has_interface(&self) -> io::Result<bool> {
        match self.index() {
            Ok(_) => Ok(true),
            Err(e) if e.raw_os_error() == Some(libc::ENODEV) => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn octets(&self) -> Vec<u8> {
        match self.ip {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        }
    }

    fn index(&self) -> io::Result<u32> {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?;
        Ok(rustix::net::netdevice::name_to_index(
            &socket,
            &self.interface,
        )?)
    }

    /// The hardware address of the interface. `/sys` may show another network namespace.
    fn mac(&self) -> io::Result<[u8; 6]> {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?;
        // SAFETY: the structure consists of numbers.
        let mut ask: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in ask.ifr_name.iter_mut().zip(self.interface.bytes()) {
            *to = from as libc::c_char;
        }
        // SAFETY: the kernel reads the name, which ends with a zero byte, and writes the structure.
        if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFHWADDR, &mut ask) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has filled in this member.
        let data = unsafe { ask.ifr_ifru.ifru_hwaddr.sa_data };
        Ok(std::array::from_fn(|at| data[at] as u8))
    }

    fn change(&self, kind: u16, flags: u16, secs: Option<u32>) -> io::Result<()> {
        let family = if self.ip.is_ipv4() {
            libc::AF_INET
        } else {
            libc::AF_INET6
        };
        // struct ifaddrmsg: family, prefix, flags, scope, index.
        let mut body = vec![family as u8, self.prefix, 0, 0];
        body.extend(self.index()?.to_ne_bytes());
        attribute(&mut body, IFA_LOCAL, &self.octets());
        attribute(&mut body, IFA_ADDRESS, &self.octets());
        attribute(&mut body, IFA_FLAGS, &IFA_F_NODAD.to_ne_bytes());
        if let Some(secs) = secs {
            // struct ifa_cacheinfo: preferred and valid lifetime, and two times that are ignored.
            let lifetimes: Vec<u8> = [secs, secs, 0, 0]
                .iter()
                .flat_map(|n| n.to_ne_bytes())
                .collect();
            attribute(&mut body, IFA_CACHEINFO, &lifetimes);
        }
        let mut message = ((16 + body.len()) as u32).to_ne_bytes().to_vec();
        message.extend(kind.to_ne_bytes());
        message.extend(flags.to_ne_bytes());
        message.extend([0; 8]);
        message.extend(body);
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None,
        )?;
        rustix::net::sendto(
            &socket,
            &message,
            SendFlags::empty(),
            &SocketAddrNetlink::new(0, 0),
        )?;
        let mut answer = [0; 4096];
        let (length, _) = rustix::net::recv(&socket, &mut answer[..], RecvFlags::empty())?;
        let number = |at: usize| {
            answer
                .get(at..at + 4)
                .map(|b| i32::from_ne_bytes(b.try_into().unwrap_or_default()))
        };
        match (
            answer.get(4..6).map(|b| u16::from_ne_bytes([b[0], b[1]])),
            number(16),
        ) {
            (Some(NLMSG_ERROR), Some(0)) if length >= 20 => Ok(()),
            (Some(NLMSG_ERROR), Some(error)) if length >= 20 => {
                Err(io::Error::from_raw_os_error(-error))
            }
            _ => Err(io::Error::other("the kernel's answer cannot be read")),
        }
    }

    /// Tells the network that this machine has the address now: a gratuitous ARP request, or an
    /// unsolicited neighbour advertisement.
    ///
    /// # Errors
    /// This process has no `CAP_NET_RAW`, or the interface is down.
    pub fn announce(&self) -> io::Result<()> {
        let mac = self.mac()?;
        let index = self.index()?;
        match self.ip {
            IpAddr::V4(ip) => {
                let socket = raw(libc::AF_PACKET, libc::SOCK_DGRAM, 0)?;
                let mut to: libc::sockaddr_ll =
                    // SAFETY: the structure consists of numbers.
                    unsafe { std::mem::zeroed() };
                to.sll_family = libc::AF_PACKET as u16;
                to.sll_protocol = (libc::ETH_P_ARP as u16).to_be();
                to.sll_ifindex = index as i32;
                to.sll_halen = 6;
                to.sll_addr[..6].copy_from_slice(&[0xff; 6]);
                send(&socket, &arp(mac, ip.octets()), &to)
            }
            IpAddr::V6(ip) => {
                let socket = raw(libc::AF_INET6, libc::SOCK_RAW, libc::IPPROTO_ICMPV6)?;
                let hops = 255;
                rustix::net::sockopt::set_ipv6_multicast_hops(&socket, hops)?;
                let mut to: libc::sockaddr_in6 =
                    // SAFETY: the structure consists of numbers.
                    unsafe { std::mem::zeroed() };
                to.sin6_family = libc::AF_INET6 as u16;
                to.sin6_scope_id = index;
                // All nodes of the link.
                to.sin6_addr.s6_addr = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
                send(&socket, &advertisement(mac, ip.octets()), &to)
            }
        }
    }
}

fn attribute(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
    message.extend(((4 + value.len()) as u16).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(value);
    message.resize(message.len().next_multiple_of(4), 0);
}

/// An ARP request in which sender and target have the same address (RFC 5227, section 3).
fn arp(mac: [u8; 6], ip: [u8; 4]) -> Vec<u8> {
    let mut packet = vec![0, 1, 8, 0, 6, 4, 0, 1];
    packet.extend(mac);
    packet.extend(ip);
    packet.extend([0; 6]);
    packet.extend(ip);
    packet
}

/// A neighbour advertisement with the override flag (RFC 4861, section 4.4). The kernel
/// fills in the checksum.
fn advertisement(mac: [u8; 6], ip: [u8; 16]) -> Vec<u8> {
    let mut packet = vec![136, 0, 0, 0, 0x20, 0, 0, 0];
    packet.extend(ip);
    packet.extend([2, 1]);
    packet.extend(mac);
    packet
}

fn raw(family: i32, kind: i32, protocol: i32) -> io::Result<OwnedFd> {
    use std::os::fd::FromRawFd;
    // SAFETY: no pointers.
    match unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: the kernel just created it.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

fn send<A>(socket: &OwnedFd, packet: &[u8], to: &A) -> io::Result<()> {
    // SAFETY: the packet and the address are valid for the call, with their lengths.
    let sent = unsafe {
        libc::sendto(
            socket.as_fd().as_raw_fd(),
            packet.as_ptr().cast(),
            packet.len(),
            0,
            std::ptr::from_ref(to).cast(),
            size_of::<A>() as libc::socklen_t,
        )
    };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_its_network_and_its_interface() {
        let address: Address = "10.0.0.7/24@eth0".parse().unwrap();
        assert_eq!(address.to_string(), "10.0.0.7/24@eth0");
        assert!("2001:db8::7/64@eth0".parse::<Address>().is_ok());
        for wrong in [
            "10.0.0.7",
            "10.0.0.7/33@eth0",
            "10.0.0.7/24@",
            "x/24@eth0",
            "10.0.0.7/24@a/b",
        ] {
            assert!(wrong.parse::<Address>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_announcement_names_the_owner_as_sender_and_target() {
        let packet = arp([1, 2, 3, 4, 5, 6], [10, 0, 0, 7]);
        assert_eq!(packet.len(), 28);
        assert_eq!(
            (&packet[8..14], &packet[14..18]),
            (&[1, 2, 3, 4, 5, 6][..], &[10, 0, 0, 7][..])
        );
        assert_eq!(&packet[24..], &[10, 0, 0, 7]);
        assert_eq!(advertisement([0; 6], [0; 16]).len(), 32);
    }
}
