//! Volume location service: every volume is on this server.
//!
//! Clients ask by name or by number, in three generations of replies. The newest identifies a
//! server by UUID, whose addresses the client then requests.

use crate::admission::AdmissionControl;
use crate::error::{CallResult, ErrnoForm, Fault};
use crate::shared::{Shared, receive};
use crate::volume::{Kind, Volume};
use afs_proto::vl::{
    ListAddrByAttributes, NvldbEntry, Reply, Request, Site, UvldbEntry, UvldbSite, VldbEntry,
    VolumeEntry, VolumeName, address_by, site_flag, volume_flag,
};
use afs_proto::{Abort, List};
use layer_cpu::{Layer, home};
use rx::{Call, Handler};
use std::net::Ipv4Addr;
use std::sync::Arc;

/// Handler of the volume location service.
pub(crate) struct Location {
    pub(crate) shared: Arc<Shared>,
    pub(crate) admission: AdmissionControl,
}

/// `/vicepa`, the only partition.
const PARTITION: u32 = 0;

/// Counter of changes to a server's addresses; they are fixed at the start of this server.
const UNIQUE: u32 = 1;

impl Handler for Location {
    fn serve(&self, call: &mut Call) -> Result<(), rx::Abort> {
        home(Layer::Protocol);
        self.answer(call)
            .map_err(|fault| rx::Abort(fault.code(ErrnoForm::Table).0))
    }
}

impl Location {
    fn answer(&self, call: &mut Call) -> CallResult<()> {
        self.shared.check_allowed(call)?;
        let head = receive(call, &self.admission, |bytes| {
            afs_proto::prefix::<Request<'_>>(bytes).map(drop)
        })?;
        let (request, _) = afs_proto::prefix::<Request<'_>>(head.as_ref())?;
        let mut bytes = Vec::new();
        self.reply(call, &request)?.write(&mut bytes);
        Ok(call.write(bytes)?)
    }

    fn reply(&self, call: &Call, request: &Request<'_>) -> CallResult<Reply> {
        match request {
            Request::GetEntryByIDO { volume, .. } => self.old(call, self.by_id(*volume)?),
            Request::GetEntryByNameO { volume_name } => {
                self.old(call, self.by_name(volume_name.as_bytes())?)
            }
            Request::ProbeServer {} => Ok(Reply::ProbeServer {}),
            Request::GetEntryByIDN { volume, .. } => {
                let entry = self.by_address(call, &*self.by_id(*volume)?)?;
                Ok(Reply::GetEntryByIDN { entry })
            }
            Request::GetEntryByNameN { volume_name } => {
                let entry = self.by_address(call, &*self.by_name(volume_name.as_bytes())?)?;
                Ok(Reply::GetEntryByNameN { entry })
            }
            Request::GetEntryByIDU { volume, .. } => {
                let entry = Box::new(self.by_identity(&*self.by_id(*volume)?)?);
                Ok(Reply::GetEntryByIDU { entry })
            }
            Request::GetEntryByNameU { volume_name } => {
                let entry = Box::new(self.by_identity(&*self.by_name(volume_name.as_bytes())?)?);
                Ok(Reply::GetEntryByNameU { entry })
            }
            Request::GetAddrsU { wanted } => self.addresses(wanted),
            Request::GetCapabilities {} => Ok(Reply::GetCapabilities {
                capabilities: List::new(Vec::new())?,
            }),
        }
    }
}

impl Location {
    fn by_id(&self, id: u32) -> CallResult<Arc<Volume>> {
        self.shared.volumes.get(id).ok_or(Abort::VL_NOENT.into())
    }

    fn by_name(&self, name: &[u8]) -> CallResult<Arc<Volume>> {
        self.shared.volumes.find(name).ok_or(Abort::VL_NOENT.into())
    }

    /// Chooses the address for replies that can name only one: the called one, if it is announced.
    fn address(&self, call: &Call) -> CallResult<Ipv4Addr> {
        let called = match call.local().map(|address| address.to_canonical()) {
            Some(std::net::IpAddr::V4(address)) => Some(address),
            _ => None,
        };
        let announced = &self.shared.config.announced;
        let called = called.filter(|address| announced.contains(address));
        called
            .or(announced.first().copied())
            .ok_or(Abort::VL_NOENT.into())
    }

    fn by_identity(&self, volume: &Volume) -> CallResult<UvldbEntry> {
        let site = |flags| UvldbSite {
            server: self.shared.identity,
            unique: UNIQUE,
            partition: PARTITION,
            flags: flags | site_flag::UUID,
        };
        self.entry(volume, site)
    }

    fn by_address(&self, call: &Call, volume: &Volume) -> CallResult<NvldbEntry> {
        let server = self.address(call)?;
        let site = |flags| Site {
            server,
            partition: PARTITION,
            flags,
        };
        self.entry(volume, site)
    }

    fn old(&self, call: &Call, volume: Arc<Volume>) -> CallResult<Reply> {
        let entry = self.by_address(call, &volume)?;
        let entry = VldbEntry {
            name: entry.name,
            sites: List::new(entry.sites.into_vec())?,
            volumes: entry.volumes,
            clone: entry.clone,
            flags: entry.flags,
        };
        Ok(Reply::GetEntryByNameO { entry })
    }

    /// Builds the entry for a volume with its replica and backup, as far as they exist.
    fn entry<S, const SITES: usize>(
        &self,
        volume: &Volume,
        site: impl FnOnce(u32) -> S,
    ) -> CallResult<VolumeEntry<S, SITES>> {
        let family = self.shared.volumes.family(volume);
        let has = |kind: Kind| family[kind as usize].is_some();
        let if_there = |kind: Kind, flag: u32| if has(kind) { flag } else { 0 };
        let name = volume.name.strip_suffix(volume.kind.suffix());
        let (write, read, backup) = (Kind::ReadWrite, Kind::ReadOnly, Kind::Backup);
        let at_site = if_there(write, site_flag::RWVOL)
            | if_there(read, site_flag::ROVOL)
            | if_there(backup, site_flag::BACKVOL);
        let flags = if_there(write, volume_flag::RWEXISTS)
            | if_there(read, volume_flag::ROEXISTS)
            | if_there(backup, volume_flag::BACKEXISTS);
        Ok(VolumeEntry {
            name: VolumeName::new(name.unwrap_or_default().as_bytes())?,
            sites: List::new(vec![site(at_site)])?,
            volumes: Kind::ALL.map(|kind| if_there(kind, volume.parent + kind as u32)),
            clone: 0,
            flags,
        })
    }

    fn addresses(&self, wanted: &ListAddrByAttributes) -> CallResult<Reply> {
        let identity = self.shared.identity;
        let announced = &self.shared.config.announced;
        let is_ours = match wanted.mask {
            address_by::UUID => wanted.uuid == identity,
            address_by::ADDRESS => announced.contains(&wanted.address),
            address_by::INDEX => wanted.index == 1,
            _ => return Err(Fault::Code(Abort::VL_BADMASK)),
        };
        if !is_ours {
            return Err(Abort::VL_NOENT.into());
        }
        Ok(Reply::GetAddrsU {
            uuid: identity,
            uniquifier: UNIQUE,
            count: u32::try_from(announced.len()).unwrap_or(0),
            addresses: List::new(announced.clone())?,
        })
    }
}
