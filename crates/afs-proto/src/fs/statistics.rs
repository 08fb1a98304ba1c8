//! Counters of a file server, for `scout` and `afsmonitor`.
//!
//! Some describe the hardware of 1988 (load, network interface); servers leave most of them at 0.

use crate::xdr::{Reader, Xdr};
use crate::{Result, WireError};

/// Name of a partition, such as `/vicepa`: 32 bytes, zero-padded (`DiskName`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DiskName([u8; 32]);

impl DiskName {
    /// Creates a name of at most 32 bytes, without a zero byte.
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

    /// Returns the name without its padding.
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
    /// Space of one partition.
    #[derive(Copy, Default)]
    pub struct ViceDisk {
        /// Free space in KiB.
        blocks_available: i32,
        /// Capacity in KiB.
        total_blocks: i32,
        /// Name; empty if there is no partition.
        name: DiskName,
    }
}

structure! {
    /// 32-bit counters (`ViceStatistics`): 45 words and ten partitions. Times are Unix timestamps
    /// in seconds, rates are in bytes per second.
    #[derive(Default)]
    pub struct ViceStatistics {
        /// Newest log message; unused.
        current_message: u32,
        /// Oldest log message; unused.
        oldest_message: u32,
        current_time: u32,
        /// Boot time of the host.
        boot_time: u32,
        /// Start time of the server process.
        start_time: u32,
        /// Open connections.
        current_connections: i32,
        total_calls: u32,
        /// Calls that fetch data, an access list or a status.
        total_fetches: u32,
        /// Calls that fetch data.
        fetch_datas: u32,
        fetched_bytes: u32,
        /// Rate of fetching, in bytes per second.
        fetch_data_rate: i32,
        /// Calls that store data, an access list or a status.
        total_stores: u32,
        /// Calls that store data.
        store_datas: u32,
        stored_bytes: u32,
        /// Rate of storing, in bytes per second.
        store_data_rate: i32,
        /// Bytes sent by Rx.
        rpc_bytes_sent: u32,
        /// Bytes received by Rx.
        rpc_bytes_received: u32,
        /// Packets sent by Rx.
        rpc_packets_sent: u32,
        /// Packets received by Rx.
        rpc_packets_received: u32,
        /// Packets lost by Rx.
        rpc_packets_lost: u32,
        /// Malformed packets.
        rpc_bogus_packets: u32,
        /// CPU time in the kernel.
        system_cpu: i32,
        /// CPU time in user space.
        user_cpu: i32,
        /// CPU time of low-priority processes.
        nice_cpu: i32,
        /// Idle CPU time.
        idle_cpu: i32,
        /// Disk transfers.
        total_io: i32,
        /// Memory in use.
        active_vm: i32,
        /// Total memory.
        total_vm: i32,
        /// Errors of the network interface.
        ethernet_errors: i32,
        /// Packets sent by the network interface.
        ethernet_writes: i32,
        /// Interrupts of the network interface.
        ethernet_interrupts: i32,
        /// Packets received by the network interface.
        ethernet_reads: i32,
        /// Bytes sent by the network interface.
        ethernet_bytes_written: i32,
        /// Bytes received by the network interface.
        ethernet_bytes_read: i32,
        /// Memory of the server process, in KiB.
        process_size: i32,
        /// Known clients.
        workstations: i32,
        /// Clients that called within the last minutes.
        active_workstations: i32,
        /// Reserved; zero.
        spare: [i32; 8],
        /// Partitions; unused elements have an empty name.
        disks: [ViceDisk; 10],
    }
}

/// Indices into the reply to `GetStatistics64` (`STATS64_*`).
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
    /// Number of counters (`STATS64_VERSION`).
    pub const COUNT: usize = 16;
}
