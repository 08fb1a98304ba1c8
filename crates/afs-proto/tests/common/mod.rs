//! A request and a reply of every procedure, each field with a distinct value.
#![allow(dead_code)]

use afs_proto::cb::{self, Interface, InterfaceAddr};
use afs_proto::fs::{
    self, AfsFetchStatus, AfsFetchVolumeStatus, AfsStoreStatus, AfsStoreVolumeStatus, DiskName,
    FileType, LockType, ViceDisk, ViceStatistics, ViceVolumeType, VolumeInfo,
};
use afs_proto::vl::{self, ListAddrByAttributes, Site, UvldbSite, VolumeEntry, VolumeName};
use afs_proto::xdr::Bytes;
use afs_proto::{Abort, AfsCallBack, AfsFid, AfsVolSync, List, Rights, Text, Uuid, capability};
use std::net::Ipv4Addr;

pub const UUID: Uuid = Uuid([
    0x00, 0x62, 0x2a, 0x28, 0x8b, 0xd1, 0x1b, 0x01, 0x9b, 0x5e, 0x01, 0x00, 0x4d, 0x0a, 0xaa, 0x77,
]);

pub fn fid(n: u32) -> AfsFid {
    AfsFid {
        volume: 0x2000_0000 + n,
        vnode: 2 * n,
        unique: 100 + n,
    }
}

pub fn text<const MAX: usize>(words: &[u8]) -> Text<'_, MAX> {
    Text::new(words).expect("within the limit")
}

pub fn list<T, const MAX: usize>(elements: Vec<T>) -> List<T, MAX> {
    List::new(elements).expect("within the limit")
}

pub fn status(n: u32) -> AfsFetchStatus {
    AfsFetchStatus {
        file_type: FileType::File,
        link_count: 1 + n,
        length: 0x1_2345_6789 + u64::from(n),
        data_version: 0x2_0000_0003,
        author: 4,
        owner: 5,
        caller_access: Rights::ALL,
        anonymous_access: Rights::READ_LOOKUP,
        unix_mode_bits: 0o644,
        parent_vnode: 8,
        parent_unique: 9,
        residency_mask: 1,
        client_mod_time: 10,
        server_mod_time: 11,
        group: 12,
        sync_counter: 13,
        lock_count: -1,
        error_code: Abort(0),
    }
}

pub fn wanted() -> AfsStoreStatus {
    AfsStoreStatus {
        client_mod_time: Some(1_000_000_000),
        unix_mode_bits: Some(0o600),
        sync: true,
        ..AfsStoreStatus::default()
    }
}

pub const SYNC: AfsVolSync = AfsVolSync { creation: 77 };

pub fn fs_requests() -> Vec<fs::Request<'static>> {
    use fs::Request::*;
    let (name, message) = (text(b"name"), text(b"down for a while"));
    let directory = fid(1);
    let promise = AfsCallBack::promise(7200);
    let access_list = Bytes::new(b"0\n0\n\0").expect("within the limit");
    vec![
        FetchData {
            fid: fid(3),
            position: 4096,
            length: 8192,
        },
        FetchACL { fid: fid(3) },
        FetchStatus { fid: fid(3) },
        StoreData {
            fid: fid(3),
            wanted: wanted(),
            position: 5,
            length: 6,
            file_length: 11,
        },
        StoreACL {
            fid: fid(3),
            access_list,
        },
        StoreStatus {
            fid: fid(3),
            wanted: wanted(),
        },
        RemoveFile { directory, name },
        CreateFile {
            directory,
            name,
            wanted: wanted(),
        },
        Rename {
            old_directory: directory,
            old_name: name,
            new_directory: fid(2),
            new_name: text(b"other"),
        },
        Symlink {
            directory,
            name,
            contents: text(b"../there"),
            wanted: wanted(),
        },
        Link {
            directory,
            name,
            existing: fid(4),
        },
        MakeDir {
            directory,
            name,
            wanted: wanted(),
        },
        RemoveDir { directory, name },
        GetStatistics {},
        GiveUpCallBacks {
            fids: list(vec![fid(1), fid(2)]),
            callbacks: list(vec![promise, promise]),
        },
        GetVolumeInfo {
            volume_name: text(b"root.cell"),
        },
        GetVolumeStatus {
            volume: 0x2000_0003,
        },
        SetVolumeStatus {
            volume: 0x2000_0003,
            wanted: AfsStoreVolumeStatus {
                min_quota: None,
                max_quota: Some(5000),
            },
            name,
            offline_message: message,
            motd: text(b""),
        },
        GetRootVolume {},
        GetTime {},
        BulkStatus {
            fids: list((0..50).map(fid).collect()),
        },
        SetLock {
            fid: fid(3),
            lock: LockType::Write,
        },
        ExtendLock { fid: fid(3) },
        ReleaseLock { fid: fid(3) },
        Lookup { directory, name },
        FlushCPS {
            ids: list(vec![1, -101]),
            addresses: list(vec![Ipv4Addr::LOCALHOST]),
            spare1: 0,
        },
        InlineBulkStatus {
            fids: list((0..3).map(fid).collect()),
        },
        FetchData64 {
            fid: fid(3),
            position: 1 << 32,
            length: 1 << 20,
        },
        StoreData64 {
            fid: fid(3),
            wanted: wanted(),
            position: 1 << 32,
            length: 7,
            file_length: (1 << 32) + 7,
        },
        GiveUpAllCallBacks {},
        GetCapabilities {},
        GetStatistics64 { version: 16 },
    ]
}

pub fn fs_replies() -> Vec<fs::Reply<'static>> {
    use fs::Reply::*;
    let (sync, callback) = (SYNC, AfsCallBack::promise(7200));
    let (status, directory_status) = (status(1), status(2));
    let lists = || (list(vec![status; 50]), list(vec![callback; 50]));
    let (statuses, callbacks) = lists();
    let (statuses_inline, callbacks_inline) = lists();
    let access_list = Bytes::new(b"0\n0\n\0").expect("within the limit");
    vec![
        FetchData {
            status,
            callback,
            sync,
        },
        FetchACL {
            access_list,
            status,
            sync,
        },
        FetchStatus {
            status,
            callback,
            sync,
        },
        StoreData { status, sync },
        StoreACL { status, sync },
        StoreStatus { status, sync },
        RemoveFile {
            directory_status,
            sync,
        },
        CreateFile {
            fid: fid(9),
            status,
            directory_status,
            callback,
            sync,
        },
        Rename {
            old_directory_status: status,
            new_directory_status: directory_status,
            sync,
        },
        Symlink {
            fid: fid(9),
            status,
            directory_status,
            sync,
        },
        Link {
            status,
            directory_status,
            sync,
        },
        MakeDir {
            fid: fid(9),
            status,
            directory_status,
            callback,
            sync,
        },
        RemoveDir {
            directory_status,
            sync,
        },
        GetStatistics {
            statistics: Box::new(statistics()),
        },
        GiveUpCallBacks {},
        GetVolumeInfo {
            info: VolumeInfo {
                volume: 1,
                kind: 0,
                types: [1, 2, 3, 4, 5],
                server_count: 1,
                servers: [0x0a4d_0001, 0, 0, 0, 0, 0, 0, 8],
            },
        },
        GetVolumeStatus {
            status: AfsFetchVolumeStatus {
                volume: 0x2000_0003,
                parent: 0x2000_0003,
                online: true,
                in_service: true,
                blessed: true,
                needs_salvage: false,
                kind: ViceVolumeType::ReadWrite,
                min_quota: 0,
                max_quota: 5000,
                blocks_in_use: 284,
                partition_blocks_available: 1_000_000,
                partition_max_blocks: 2_000_000,
            },
            name: text(b"root.cell"),
            offline_message: text(b""),
            motd: text(b"be kind"),
        },
        SetVolumeStatus {},
        GetRootVolume {
            volume_name: text(b"root.afs"),
        },
        GetTime {
            seconds: 1,
            microseconds: 2,
        },
        BulkStatus {
            statuses,
            callbacks,
            sync,
        },
        SetLock { sync },
        ExtendLock { sync },
        ReleaseLock { sync },
        Lookup {
            fid: fid(9),
            status,
            directory_status,
            callback,
            sync,
        },
        FlushCPS {
            spare2: 1,
            spare3: -1,
        },
        InlineBulkStatus {
            statuses: statuses_inline,
            callbacks: callbacks_inline,
            sync,
        },
        FetchData64 {
            status,
            callback,
            sync,
        },
        StoreData64 { status, sync },
        GiveUpAllCallBacks {},
        GetCapabilities {
            capabilities: list(vec![capability::ERRORTRANS | capability::FILES64]),
        },
        GetStatistics64 {
            statistics: list((0..16).collect()),
        },
    ]
}

pub fn statistics() -> ViceStatistics {
    let mut disks = [ViceDisk::default(); 10];
    disks[0] = ViceDisk {
        blocks_available: 7,
        total_blocks: 8,
        name: DiskName::new(b"/vicepa").expect("short"),
    };
    ViceStatistics {
        current_message: 1,
        current_connections: -2,
        active_workstations: 3,
        spare: [4; 8],
        disks,
        ..ViceStatistics::default()
    }
}

pub fn vl_requests() -> Vec<vl::Request<'static>> {
    use vl::Request::*;
    let (volume, kind, volume_name) = (0x2000_0003, vl::ANY_TYPE, text(b"root.cell"));
    let wanted = ListAddrByAttributes {
        mask: vl::address_by::UUID,
        address: Ipv4Addr::UNSPECIFIED,
        index: 0,
        spare: 0,
        uuid: UUID,
    };
    vec![
        GetEntryByIDO { volume, kind },
        GetEntryByNameO { volume_name },
        ProbeServer {},
        GetEntryByIDN { volume, kind },
        GetEntryByNameN { volume_name },
        GetEntryByIDU { volume, kind },
        GetEntryByNameU { volume_name },
        GetAddrsU { wanted },
        GetCapabilities {},
    ]
}

pub fn volume<S, const N: usize>(sites: Vec<S>) -> VolumeEntry<S, N> {
    VolumeEntry {
        name: VolumeName::new(b"root.cell").expect("short"),
        sites: list(sites),
        volumes: [0x2000_0003, 0x2000_0004, 0],
        clone: 5,
        flags: vl::volume_flag::RWEXISTS | vl::volume_flag::ROEXISTS,
    }
}

pub fn vl_replies() -> Vec<vl::Reply> {
    use vl::Reply::*;
    let site = |n| Site {
        server: Ipv4Addr::new(10, 77, 0, n),
        partition: u32::from(n),
        flags: vl::site_flag::ROVOL,
    };
    let usite = |n| UvldbSite {
        server: UUID,
        unique: n,
        partition: 1,
        flags: vl::site_flag::RWVOL | vl::site_flag::UUID,
    };
    vec![
        GetEntryByIDO {
            entry: volume((1..9).map(site).collect()),
        },
        GetEntryByNameO {
            entry: volume(vec![site(1)]),
        },
        ProbeServer {},
        GetEntryByIDN {
            entry: volume((1..14).map(site).collect()),
        },
        GetEntryByNameN {
            entry: volume(vec![]),
        },
        GetEntryByIDU {
            entry: Box::new(volume((0..13).map(usite).collect())),
        },
        GetEntryByNameU {
            entry: Box::new(volume(vec![usite(1)])),
        },
        GetAddrsU {
            uuid: UUID,
            uniquifier: 2,
            count: 2,
            addresses: list(vec![
                Ipv4Addr::new(10, 77, 0, 1),
                Ipv4Addr::new(10, 78, 0, 1),
            ]),
        },
        GetCapabilities {
            capabilities: list(vec![]),
        },
    ]
}

pub fn cb_requests() -> Vec<cb::Request> {
    use cb::Request::*;
    vec![
        CallBack {
            fids: list((0..50).map(fid).collect()),
            callbacks: list(vec![AfsCallBack::dropped(); 50]),
        },
        InitCallBackState {},
        Probe {},
        InitCallBackState2 {},
        WhoAreYou {},
        InitCallBackState3 { server: UUID },
        ProbeUuid { client: UUID },
        TellMeAboutYourself {},
    ]
}

pub fn cb_replies() -> Vec<cb::Reply> {
    use cb::Reply::*;
    let interface = |n| Interface {
        address: Ipv4Addr::new(10, 77, 0, n),
        mask: Ipv4Addr::new(255, 255, 255, 0),
        mtu: 1500,
    };
    let address = |count| InterfaceAddr {
        uuid: UUID,
        interfaces: list((0..count).map(interface).collect()),
    };
    vec![
        CallBack {},
        InitCallBackState {},
        Probe {},
        InitCallBackState2 {
            address: address(0),
        },
        WhoAreYou {
            address: address(32),
        },
        InitCallBackState3 {},
        ProbeUuid {},
        TellMeAboutYourself {
            address: address(2),
            capabilities: list(vec![capability::ERRORTRANS; 196]),
        },
    ]
}
