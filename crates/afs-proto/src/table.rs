//! Macros that generate wire encoding from tables: enumerations, structures, and the procedures of
//! a service. Table order is wire order.

/// Defines an enumeration encoded as one word; undefined numbers are refused.
macro_rules! enumeration {
    ($(#[$about:meta])* pub enum $name:ident: $what:literal { $($(#[$doc:meta])* $member:ident = $number:literal,)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($(#[$doc])* $member = $number,)* }

        impl TryFrom<u32> for $name {
            type Error = $crate::WireError;
            fn try_from(value: u32) -> $crate::Result<Self> {
                match value {
                    $($number => Ok($name::$member),)*
                    _ => Err($crate::WireError::Undefined { what: $what, value }),
                }
            }
        }

        impl<'a> $crate::xdr::Xdr<'a> for $name {
            fn read(from: &mut $crate::xdr::Reader<'a>) -> $crate::Result<Self> {
                u32::read(from)?.try_into()
            }
            fn write(&self, to: &mut Vec<u8>) {
                (*self as u32).write(to);
            }
        }
    };
}

/// Defines a structure encoded as its fields in order.
macro_rules! structure {
    ($(#[$about:meta])* pub struct $name:ident { $($(#[$doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name { $($(#[$doc])* pub $field: $type,)* }

        impl<'a> $crate::xdr::Xdr<'a> for $name {
            fn read(from: &mut $crate::xdr::Reader<'a>) -> $crate::Result<Self> {
                Ok($name { $($field: $crate::xdr::Xdr::read(from)?,)* })
            }
            fn write(&self, to: &mut Vec<u8>) {
                $(self.$field.write(to);)*
            }
        }
    };
}

/// Defines the procedures of one service. A line is `opcode Name { arguments } => { results }`; a
/// request is encoded as opcode and arguments, a reply as the results alone.
///
/// `'a` is the lifetime of data borrowed from the wire; a direction that borrows nothing omits it.
/// The fields have the names of the interface definition and no documentation of their own.
macro_rules! procedures {
    (
        $life:lifetime;
        $(#[$about_request:meta])+ pub enum Request $(<$request:lifetime>)?;
        $(#[$about_reply:meta])+ pub enum Reply $(<$reply:lifetime>)?;
        $(
            $(#[$doc:meta])*
            $opcode:literal $name:ident { $($argument:ident: $in:ty),* } => { $($result:ident: $out:ty),* }
        )*
    ) => {
        /// Opcode and name of each implemented procedure.
        pub const PROCEDURES: &[(u32, &str)] = &[$(($opcode, stringify!($name))),*];

        $(#[$about_request])+
        #[allow(missing_docs)]
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Request $(<$request>)? {
            $($(#[$doc])* $name { $($argument: $in),* },)*
        }

        $(#[$about_reply])+
        #[allow(missing_docs)]
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Reply $(<$reply>)? {
            $(
                #[doc = concat!("Answers [`Request::", stringify!($name), "`].")]
                $name { $($result: $out),* },
            )*
        }

        impl $(<$request>)? Request $(<$request>)? {
            /// Returns the opcode of the procedure.
            pub fn opcode(&self) -> u32 {
                match self { $(Request::$name { .. } => $opcode,)* }
            }
        }

        impl<$life> $crate::xdr::Xdr<$life> for Request $(<$request>)? {
            fn read(from: &mut $crate::xdr::Reader<$life>) -> $crate::Result<Self> {
                match u32::read(from)? {
                    $($opcode => Ok(Request::$name { $($argument: $crate::xdr::Xdr::read(from)?),* }),)*
                    opcode => Err($crate::WireError::Opcode(opcode)),
                }
            }
            fn write(&self, to: &mut Vec<u8>) {
                self.opcode().write(to);
                match self {
                    $(Request::$name { $($argument),* } => { $($argument.write(to);)* })*
                }
            }
        }

        impl $(<$reply>)? Reply $(<$reply>)? {
            /// Returns the opcode of the procedure.
            pub fn opcode(&self) -> u32 {
                match self { $(Reply::$name { .. } => $opcode,)* }
            }

            /// Appends the encoded results to `to`.
            pub fn write(&self, to: &mut Vec<u8>) {
                match self {
                    $(Reply::$name { $($result),* } => { $($result.write(to);)* })*
                }
            }
        }

        /// Reads the results of procedure `opcode` from the front of `from`.
        pub fn read_reply<$life>(
            opcode: u32,
            from: &mut $crate::xdr::Reader<$life>,
        ) -> $crate::Result<Reply $(<$reply>)?> {
            match opcode {
                $($opcode => Ok(Reply::$name { $($result: $crate::xdr::Xdr::read(from)?),* }),)*
                _ => Err($crate::WireError::Opcode(opcode)),
            }
        }
    };
}
