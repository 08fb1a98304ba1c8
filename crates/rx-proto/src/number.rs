//! The numbers of a packet's header, each a type of its own.
//!
//! Sequence, serial and call numbers are 32 bits that wrap around, compared as RFC 1982 compares
//! them. Epochs and connection ids are names and have no order.

/// Defines a 32-bit number type with wrapping order.
macro_rules! wrapping {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name(pub u32);

        impl $name {
            /// Returns the number after this one.
            #[must_use]
            pub const fn next(self) -> $name {
                self.plus(1)
            }

            /// Returns the number `count` after this one.
            #[must_use]
            pub const fn plus(self, count: u32) -> $name {
                $name(self.0.wrapping_add(count))
            }

            /// Computes the distance from `base` to this number, modulo 2^32.
            #[must_use]
            pub const fn distance(self, base: $name) -> u32 {
                self.0.wrapping_sub(base.0)
            }

            /// Checks whether this number comes after `other`: less than 2^31 ahead.
            #[must_use]
            pub const fn is_after(self, other: $name) -> bool {
                let ahead = self.distance(other);
                ahead != 0 && ahead < 1 << 31
            }
        }
    };
}

wrapping! {
    /// Number of a packet in the stream of one direction of a call; the first is 1.
    Seq
}

wrapping! {
    /// Number of a transmission on a connection; retransmissions have a number of their own.
    Serial
}

wrapping! {
    /// Number of a call on its channel; 0 denotes the connection.
    CallNumber
}

/// Identifier of a run of the client that made a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Epoch(pub u32);

impl Epoch {
    /// Returns `value` marked as chosen at random, by its highest bit; peers then identify a
    /// connection by its epoch and cid alone (OpenAFS, `rxi_FindConnection`).
    pub(crate) const fn random(value: u32) -> Epoch {
        Epoch(value | 0x8000_0000)
    }
}

/// Connection id of a packet: its low two bits are the channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Cid(pub u32);

impl Cid {
    /// Mask of the channel bits.
    const CHANNEL: u32 = 3;

    /// Returns the id of the connection, with channel bits of zero.
    #[inline]
    pub(crate) const fn connection(self) -> Cid {
        Cid(self.0 & !Cid::CHANNEL)
    }

    /// Returns the channel, 0 to 3.
    #[inline]
    pub(crate) const fn channel(self) -> usize {
        (self.0 & Cid::CHANNEL) as usize
    }

    /// Adds a channel to the id of a connection.
    #[inline]
    pub(crate) fn on_channel(self, channel: usize) -> Cid {
        // Less than the number of channels, so it fits two bits.
        Cid(self.0 | u32::try_from(channel).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_holds_around_zero() {
        assert!(Seq(2).is_after(Seq(1)) && !Seq(1).is_after(Seq(2)));
        assert!(!Seq(7).is_after(Seq(7)));
        assert!(Serial(0).is_after(Serial(u32::MAX)));
        assert!(!Serial(u32::MAX).is_after(Serial(0)));
        assert_eq!(CallNumber(u32::MAX).next(), CallNumber(0));
        assert_eq!(Seq(3).distance(Seq(u32::MAX)), 4);
    }

    #[test]
    fn a_cid_is_a_connection_and_a_channel() {
        let cid = Cid(0x5c0d_e3a2);
        assert_eq!((cid.connection(), cid.channel()), (Cid(0x5c0d_e3a0), 2));
        assert_eq!(cid.connection().on_channel(2), cid);
    }
}
