//! Counts that a file server keeps, for `scout` and `afsmonitor`.
//!
//! The numbers of a machine of 1988 stand among them (its load, its network board); servers leave
//! most at 0.

use crate::xdr::{Reader, Xdr};
use crate::{Result, WireError};

/// The name of a partition, such as `/vicepa`: 32 bytes, zeros at the end (`DiskName`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DiskName([u8; 32]);

impl DiskName {
    /// A name of at most 32 bytes, without a zero byte.
    pub fn new(name: &[u8]) -> Result<DiskName> {
        let mut bytes = [0; 32];
        let (what, length, max) = ("a partition's name", name.len(), bytes.len());
        let place = bytes
            .get_mut(..length)
            .ok_or(WireError::TooLong { what, length, max })?;
        place.copy_from_slice(name);
        if name.contains(&0) {
            return Err(WireError::ZeroInString);
        }
        Ok(DiskName(bytes))
    }

    /// The name, without the zeros at its end.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.split(|byte| *byte == 0).next().unwrap_or_default()
    }
}

impl<'a> Xdr<'a> for DiskName {
    fn read(from: &mut Reader<'a>) -> Result<Self> {
        from.array().map(DiskName)
    }
    fn write(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.0);
    }
}

structure! {
    /// A partition.
    #[derive(Copy, Default)]
    pub struct ViceDisk {
        /// Free, in KiB.
        blocks_available: i32,
        /// In all, in KiB.
        total_blocks: i32,
        /// Its name; empty where there is no partition.
        name: DiskName,
    }
}

structure! {
    /// Counts of 32 bits (`ViceStatistics`): 45 words and ten partitions. Times are seconds of 1970,
    /// rates bytes in a second.
    #[derive(Default)]
    pub struct ViceStatistics {
        /// Newest message of the log; not used.
        current_message: u32,
        /// Oldest message of the log; not used.
        oldest_message: u32,
        /// Now.
        current_time: u32,
        /// When the machine was started.
        boot_time: u32,
        /// When the server was started.
        start_time: u32,
        /// Connections.
        current_connections: i32,
        /// Calls.
        total_calls: u32,
        /// Calls that fetch data, an access list or a status.
        total_fetches: u32,
        /// Calls that fetch data.
        fetch_datas: u32,
        /// Bytes fetched.
        fetched_bytes: u32,
        /// Rate of fetching.
        fetch_data_rate: i32,
        /// Calls that store data, an access list or a status.
        total_stores: u32,
        /// Calls that store data.
        store_datas: u32,
        /// Bytes stored.
        stored_bytes: u32,
        /// Rate of storing.
        store_data_rate: i32,
        /// Bytes sent by Rx.
        rpc_bytes_sent: u32,
        /// Bytes received by Rx.
        rpc_bytes_received: u32,
        /// Packets sent by Rx.
        rpc_packets_sent: u32,
        /// Packets received by Rx.
        rpc_packets_received: u32,
        /// Packets lost.
        rpc_packets_lost: u32,
        /// Packets that made no sense.
        rpc_bogus_packets: u32,
        /// Processor time in the kernel.
        system_cpu: i32,
        /// Processor time of programs.
        user_cpu: i32,
        /// Processor time of programs of low priority.
        nice_cpu: i32,
        /// Processor time of nobody.
        idle_cpu: i32,
        /// Transfers of disks.
        total_io: i32,
        /// Memory in use.
        active_vm: i32,
        /// Memory.
        total_vm: i32,
        /// Errors of the network board.
        ethernet_errors: i32,
        /// Packets written to it.
        ethernet_writes: i32,
        /// Its interrupts.
        ethernet_interrupts: i32,
        /// Packets read from it.
        ethernet_reads: i32,
        /// Bytes written to it.
        ethernet_bytes_written: i32,
        /// Bytes read from it.
        ethernet_bytes_read: i32,
        /// Memory of the server, in KiB.
        process_size: i32,
        /// Clients known.
        workstations: i32,
        /// Clients that called within the last minutes.
        active_workstations: i32,
        /// Zeros.
        spare: [i32; 8],
        /// Partitions.
        disks: [ViceDisk; 10],
    }
}

/// Places in the answer to `GetStatistics64` (`STATS64_*`).
pub mod stats64 {
    #![allow(missing_docs)]
    pub const CURRENT_TIME: usize = 0;
    pub const BOOT_TIME: usize = 1;
    pub const START_TIME: usize = 2;
    pub const CURRENT_CONNECTIONS: usize = 3;
    pub const TOTAL_FETCHES: usize = 4;
    pub const FETCH_DATAS: usize = 5;
    pub const FETCHED_BYTES: usize = 6;
    pub const FETCH_DATA_RATE: usize = 7;
    pub const TOTAL_STORES: usize = 8;
    pub const STORE_DATAS: usize = 9;
    pub const STORED_BYTES: usize = 10;
    pub const STORE_DATA_RATE: usize = 11;
    pub const TOTAL_VICE_CALLS: usize = 12;
    pub const WORKSTATIONS: usize = 13;
    pub const ACTIVE_WORKSTATIONS: usize = 14;
    pub const PROCESS_SIZE: usize = 15;
    /// How many there are (`STATS64_VERSION`).
    pub const COUNT: usize = 16;
}
