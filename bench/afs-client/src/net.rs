//! A UDP port shared by many clients, and the dispatch of a server's callbacks to them.
//!
//! **Invariant:** no two clients of a port have the same address at a time.

use crate::cache::Cache;
use afs_proto::cb::{self, InterfaceAddr};
use afs_proto::{Abort, List, Uuid, capability, prefix};
use rx::{Call, Connection, Port, Service, Settings, Timeouts};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Largest size in bytes of a server's call: 50 files and their callbacks.
const CALL_BYTES_MAX: usize = 4096;

/// Largest number of clients per port. Its thread and its lock serve them all, and its receive
/// buffer holds the packets for several of them at once.
const CLIENTS_MAX: usize = 64;

/// Largest number of concurrent calls from servers per port, each served by a thread created on
/// demand.
const WORKERS: usize = 16;

/// Observer of the calls that servers make to a client. It runs before the cache is updated and the
/// server gets its answer. If it blocks, the client looks dead to the server.
pub type CallbackObserver = Box<dyn Fn(&cb::Request) + Send + Sync>;

/// A port, and its clients by address.
pub(crate) struct Line {
    port: Port,
    clients: Arc<Clients>,
}

type Clients = Mutex<HashMap<IpAddr, Weak<CallbackState>>>;

/// State of a client that its server's callbacks use.
pub(crate) struct CallbackState {
    pub(crate) uuid: Uuid,
    pub(crate) cache: Cache,
    pub(crate) observer: Option<CallbackObserver>,
}

impl Line {
    pub(crate) fn open() -> io::Result<Line> {
        let clients: Arc<Clients> = Arc::default();
        let settings = Settings {
            listen: (Ipv4Addr::UNSPECIFIED, 0).into(),
            workers: WORKERS,
            ..Settings::default()
        };
        let of = Arc::clone(&clients);
        let service = Service {
            id: cb::SERVICE,
            handler: Arc::new(move |call: &mut Call| serve(&of, call)),
        };
        let port = Port::open(&settings, vec![service])?;
        Ok(Line { port, clients })
    }

    /// Assigns the address to a client if it is free and the port has room; returns whether it did.
    pub(crate) fn take(&self, address: IpAddr, heard: &Arc<CallbackState>) -> bool {
        let mut clients = lock(&self.clients);
        clients.retain(|_, client| client.strong_count() > 0);
        let any = IpAddr::from(Ipv4Addr::UNSPECIFIED);
        let full = clients.len() >= CLIENTS_MAX || clients.contains_key(&any);
        let free =
            !full && !clients.contains_key(&address) && (address != any || clients.is_empty());
        if free {
            clients.insert(address, Arc::downgrade(heard));
        }
        free
    }

    pub(crate) fn connect(
        &self,
        local: Ipv4Addr,
        server: SocketAddr,
        service: u16,
        timeouts: Timeouts,
    ) -> Connection {
        if local.is_unspecified() {
            self.port.connect(server, service, timeouts)
        } else {
            self.port
                .connect_from(local.into(), server, service, timeouts)
        }
    }

    pub(crate) fn stats(&self) -> rx::PortStats {
        self.port.stats()
    }

    pub(crate) fn port(&self) -> u16 {
        self.port.address().port()
    }
}

fn lock(clients: &Clients) -> MutexGuard<'_, HashMap<IpAddr, Weak<CallbackState>>> {
    clients.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Answers a server's call.
fn serve(clients: &Clients, call: &mut Call) -> Result<(), rx::Abort> {
    let bytes = call.read_to_end(CALL_BYTES_MAX)?;
    let (request, _) =
        prefix::<cb::Request>(&bytes).map_err(|error| rx::Abort(error.server_abort().0))?;
    let called = call.local().and_then(|address| {
        let clients = lock(clients);
        let any = clients.get(&IpAddr::from(Ipv4Addr::UNSPECIFIED));
        clients.get(&address).or(any)?.upgrade()
    });
    // The client no longer exists, so its promises are no longer tracked.
    let heard = called.ok_or(rx::Abort(Abort::RX_INVALID_OPERATION.0))?;
    if let Some(ear) = &heard.observer {
        ear(&request);
    }
    let reply = heard.answer(&request)?;
    let mut bytes = Vec::new();
    reply.write(&mut bytes);
    Ok(call.write(bytes)?)
}

impl CallbackState {
    fn answer(&self, request: &cb::Request) -> Result<cb::Reply, rx::Abort> {
        let none = |_| rx::Abort(Abort::RXGEN_SS_MARSHAL.0);
        let address = InterfaceAddr {
            uuid: self.uuid,
            interfaces: List::new(Vec::new()).map_err(none)?,
        };
        Ok(match request {
            cb::Request::CallBack { fids, .. } => {
                self.cache.broken(fids);
                cb::Reply::CallBack {}
            }
            cb::Request::InitCallBackState {} => {
                self.cache.all_broken();
                cb::Reply::InitCallBackState {}
            }
            cb::Request::InitCallBackState2 {} => {
                self.cache.all_broken();
                cb::Reply::InitCallBackState2 { address }
            }
            cb::Request::InitCallBackState3 { .. } => {
                self.cache.all_broken();
                cb::Reply::InitCallBackState3 {}
            }
            cb::Request::Probe {} => cb::Reply::Probe {},
            cb::Request::ProbeUuid { client } if *client == self.uuid => cb::Reply::ProbeUuid {},
            // Code that OpenAFS returns for a UUID that is not its own.
            cb::Request::ProbeUuid { .. } => return Err(rx::Abort(1)),
            cb::Request::WhoAreYou {} => cb::Reply::WhoAreYou { address },
            cb::Request::TellMeAboutYourself {} => cb::Reply::TellMeAboutYourself {
                address,
                capabilities: List::new(vec![capability::ERRORTRANS]).map_err(none)?,
            },
        })
    }
}
