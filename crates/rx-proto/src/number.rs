//! Sequence and serial numbers: 32 bits that wrap around, compared as RFC 1982 compares them.

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
}
