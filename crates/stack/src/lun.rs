//! Administration of LUNs. Requests about an open LUN go to the control socket of the process that
//! has it open; the registry answers for the others.

mod shown;

use crate::control::LunRequest;
use crate::device::{
    CONNECT_WITHIN, Sharing, full_address, is_lun_name, is_uri, iscsi_options, lock_of_lun,
    lunpath, take,
};
use crate::place::{Places, place_of_lun};
use crate::registry::{KnownLun, Registry, Values, unknown};
use crate::text::json_of;
use crate::trust::TrustStore;
use crate::{Error, Result, Settings, control};
use block::Access;
use lunpath::{Identity, Lunpath};
use multipath::identity::is_generic;
use multipath::trace::Recording;
pub use multipath::{ATTRIBUTES, WaitingIo};
use multipath::{LastPath, Lun, PathSpec, PathState};
use serde_json::Value;
pub use shown::{
    Advice, AttributeRow, Changed, LunHealth, PathHealth, ScanResult, ShownLun, ShownPath,
};
use std::fs::File;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Estimates from the recorded I/O of a LUN how each policy would have performed. Returns the answer
/// of `evfs lun advise`, or the reason why there is none.
pub type Advisor = fn(&Recording) -> std::result::Result<Advice, String>;

/// Set by a program that has an [`Advisor`].
static ADVISOR: OnceLock<Advisor> = OnceLock::new();

/// Sets the function that answers `evfs lun advise`.
pub fn set_advisor(advisor: Advisor) {
    let _ = ADVISOR.set(advisor);
}

/// Answers a request, in the process that has the LUN open.
pub(crate) fn answer(
    of: &str,
    lun: Option<&crate::device::OpenLun>,
    ask: &LunRequest,
    settings: &Settings,
) -> Result<Value> {
    let none = || {
        Error::NotFound(format!(
            "{of} is not on a LUN; `evfs lun list` shows the known LUNs"
        ))
    };
    let lun = lun.ok_or_else(none)?.lun();
    match ask {
        LunRequest::Show => return Ok(json_of(&lun.status())),
        LunRequest::Clear => lun.clear_stat(),
        LunRequest::Get => {
            let attributes = lun.attributes();
            let values: Values = ATTRIBUTES
                .iter()
                .filter_map(|a| Some((a.name.to_owned(), attributes.get(a.name)?)))
                .collect();
            return Ok(json_of(&values));
        }
        LunRequest::Set { name, value } => lun.set(name, value)?,
        LunRequest::Waiting => return Ok(json_of(&lun.waiting())),
        LunRequest::Advise => {
            let advisor = ADVISOR.get().ok_or_else(|| {
                Error::Usage("this program was built without the benchmarks".into())
            })?;
            let advice = advisor(&lun.recording()).map_err(Error::Failed)?;
            return Ok(json_of(&advice));
        }
        LunRequest::Add { address, legacy } => lun.add(PathSpec {
            path: lunpath(address, settings, access_of(lun))?,
            legacy: legacy.clone(),
            enabled: true,
        })?,
        LunRequest::Remove { path, force } => lun.remove(path, last_path(*force))?,
        LunRequest::Enable { path } => lun.enable(path)?,
        LunRequest::Disable { path, force } => lun.disable(path, last_path(*force))?,
        LunRequest::ReplaceWwid { path } => lun.replace_wwid(path)?,
    }
    Ok(Value::Null)
}

/// `--force` takes even the last working path out of service.
fn last_path(force: bool) -> LastPath {
    if force {
        LastPath::Retire
    } else {
        LastPath::Keep
    }
}

fn access_of(lun: &Lun) -> Access {
    use block::BlockDevice;
    Access::read_only_if(lun.info().read_only)
}

/// Finds the attached volume that has the LUN open.
fn holder(settings: &Settings, lun: &str) -> Option<String> {
    control::find(&settings.run_dir(), |status| status["lun"] == lun)
}

/// Sends a request to the process that has the LUN open; returns `None` if none has.
fn ask(settings: &Settings, lun: &str, ask: LunRequest) -> Result<Option<Value>> {
    let Some(name) = holder(settings, lun) else {
        return Ok(None);
    };
    control::send_request(
        &settings.run_dir(),
        &name,
        &control::ControlRequest::Lun(ask),
    )
    .map(Some)
}

/// Same as [`ask`], but a LUN that is not open is an error.
fn ask_open(settings: &Settings, lun: &str, what: LunRequest) -> Result<Value> {
    ask(settings, lun, what)?
        .ok_or_else(|| Error::NotFound(format!("{lun} is not open; `evfs attach {lun}` opens it")))
}

fn known(settings: &Settings, name: &str) -> Result<KnownLun> {
    let registry = Registry::load(&settings.lun_registry())?;
    registry.find(name).cloned().ok_or_else(|| unknown(name))
}

/// Lists all LUNs, open ones with their state.
///
/// # Errors
/// The registry is unreadable.
pub fn list(settings: &Settings) -> Result<Vec<Value>> {
    let registry = Registry::load(&settings.lun_registry())?;
    registry
        .luns
        .iter()
        .map(|lun| show_one(settings, lun))
        .collect()
}

/// Shows the current state of a LUN, or the last known one if it is not open.
///
/// # Errors
/// The LUN is unknown.
pub fn show(settings: &Settings, name: &str) -> Result<Value> {
    show_one(settings, &known(settings, name)?)
}

fn show_one(settings: &Settings, lun: &KnownLun) -> Result<Value> {
    if let Some(mut open) = ask(settings, &lun.name, LunRequest::Show)? {
        open["open"] = true.into();
        return Ok(open);
    }
    let path = |p: &crate::registry::KnownPath| {
        let path = lunpath(&p.address, settings, Access::ReadOnly);
        let transport = path.as_ref().map_or("none", |p| p.transport().name());
        ShownPath {
            status: None,
            name: p.address.clone(),
            legacy: p.legacy.clone(),
            transport: transport.to_owned(),
            port: path.map_or(String::new(), |p| p.target_port()),
            state: if p.enabled {
                PathState::Unopen
            } else {
                PathState::Disabled
            },
        }
    };
    Ok(json_of(&ShownLun {
        status: None,
        name: lun.name.clone(),
        wwid: lun.wwid.clone(),
        serial: lun.serial.clone(),
        vendor: lun.vendor.clone(),
        product: lun.product.clone(),
        size: lun.size,
        block_size: lun.block_size,
        health: "unopen".to_owned(),
        open: false,
        paths: lun.paths.iter().map(path).collect(),
    }))
}

/// Lists the waiting I/Os of an open LUN, each with the reason.
///
/// # Errors
/// The LUN is not open.
pub fn waiting(settings: &Settings, name: &str) -> Result<Value> {
    ask_open(settings, &known(settings, name)?.name, LunRequest::Waiting)
}

/// Evaluates the recorded I/O of an open LUN under each policy.
///
/// # Errors
/// The LUN is not open, or has recorded too little I/O.
pub fn advise(settings: &Settings, name: &str) -> Result<Value> {
    ask_open(settings, &known(settings, name)?.name, LunRequest::Advise)
}

/// Resets the counters of an open LUN.
///
/// # Errors
/// The LUN is not open.
pub fn clear(settings: &Settings, name: &str) -> Result<()> {
    ask_open(settings, &known(settings, name)?.name, LunRequest::Clear).map(drop)
}

/// Lists all attributes of a LUN, or only `attribute`.
///
/// # Errors
/// The LUN or the attribute is unknown.
pub fn get(settings: &Settings, name: &str, attribute: Option<&str>) -> Result<Vec<AttributeRow>> {
    let lun = known(settings, name)?;
    let registry = Registry::load(&settings.lun_registry())?;
    let (saved, origins) = registry.attributes(&lun, transport(settings, &lun))?;
    let current = ask(settings, &lun.name, LunRequest::Get)?;
    let default = multipath::Attributes::default();
    let rows: Vec<_> = ATTRIBUTES
        .iter()
        .filter(|a| attribute.is_none_or(|wanted| wanted == a.name))
        .map(|a| AttributeRow {
            name: a.name,
            current: current
                .as_ref()
                .and_then(|c| Some(c[a.name].as_str()?.to_owned())),
            saved: saved.get(a.name).unwrap_or_default(),
            default: default.get(a.name).unwrap_or_default(),
            origin: origins.get(a.name).cloned().unwrap_or_default(),
            help: a.help,
        })
        .collect();
    match (rows.is_empty(), attribute) {
        (true, Some(wanted)) => Err(Error::NotFound(
            default.clone().set(wanted, "").err().unwrap_or_default(),
        )),
        _ => Ok(rows),
    }
}

fn transport(settings: &Settings, lun: &KnownLun) -> &'static str {
    let first = lun
        .paths
        .first()
        .map(|p| lunpath(&p.address, settings, Access::ReadOnly));
    match first {
        Some(Ok(path)) => path.transport().name(),
        _ => "file",
    }
}

/// Changes an attribute of an open LUN until it is reopened.
///
/// # Errors
/// The LUN is not open, or the value is invalid.
pub fn set(settings: &Settings, name: &str, attribute: &str, value: &str) -> Result<()> {
    let mut trial = multipath::Attributes::default();
    trial.set(attribute, value).map_err(Error::Usage)?;
    let (attribute, value) = (attribute.to_owned(), value.to_owned());
    let lun = known(settings, name)?.name;
    let set = LunRequest::Set {
        name: attribute,
        value,
    };
    match ask(settings, &lun, set)? {
        Some(_) => Ok(()),
        None => Err(Error::NotFound(format!(
            "{lun} is not open, and `evfs lun set` changes only an open LUN; `evfs lun save` makes \
             the value persistent"
        ))),
    }
}

/// Saves an attribute for a LUN, or for a scope (`global`, `transport:NAME`,
/// `device:VENDOR/PRODUCT`). An empty value removes it. It takes effect at the next open.
///
/// # Errors
/// The LUN is unknown, or the value is invalid.
pub fn save(
    settings: &Settings,
    lun: &str,
    scope: Option<&str>,
    attribute: &str,
    value: &str,
) -> Result<()> {
    let mut trial = multipath::Attributes::default();
    if !value.is_empty() {
        trial.set(attribute, value).map_err(Error::Usage)?;
    }
    Registry::update(&settings.lun_registry(), |registry| {
        let values = match scope {
            None => {
                &mut registry
                    .find_mut(lun)
                    .ok_or_else(|| unknown(lun))?
                    .attributes
            }
            Some(scope) => {
                let good = scope == "global"
                    || scope
                        .strip_prefix("transport:")
                        .is_some_and(|t| matches!(t, "file" | "nbd" | "iscsi" | "rbd"))
                    || scope
                        .strip_prefix("device:")
                        .is_some_and(|d| d.contains('/'));
                if !good {
                    return Err(Error::Usage(format!(
                        "invalid scope `{scope}`: expected global, transport:file|nbd|iscsi|rbd or \
                         device:VENDOR/PRODUCT"
                    )));
                }
                registry.scopes.entry(scope.to_owned()).or_default()
            }
        };
        if value.is_empty() {
            values.remove(attribute)
        } else {
            values.insert(attribute.to_owned(), value.to_owned())
        };
        Ok(())
    })
}

/// A LUN that is not open. It cannot be opened while this value exists.
struct ClosedLun {
    lun: KnownLun,
    /// Base name of its locks.
    lock: PathBuf,
    _locks: [File; 2],
}

/// Excludes users of a LUN that is to be forgotten.
fn closed(settings: &Settings, name: &str) -> Result<ClosedLun> {
    let lun = known(settings, name)?;
    if lun.name != name {
        return Err(Error::Usage(format!(
            "`{name}` is a path of {0}: `evfs lun forget {0}` forgets the LUN, `evfs path remove {0} \
             {name}` only the path",
            lun.name
        )));
    }
    if let Some(holder) = holder(settings, name) {
        return Err(Error::Busy(format!(
            "{name} is open: `{holder}` uses it; run `evfs detach {holder}` first"
        )));
    }
    let lock = lock_of_lun(settings, name)?;
    let locks = [
        take(&lock, "open", Sharing::Exclusive)?,
        take(&lock, "header", Sharing::Exclusive)?,
    ];
    Ok(ClosedLun {
        lun,
        lock,
        _locks: locks,
    })
}

/// Returns the registry entry of a LUN that [`forget`] would forget.
///
/// # Errors
/// The LUN is unknown or open.
pub fn forgettable(settings: &Settings, name: &str) -> Result<KnownLun> {
    closed(settings, name).map(|closed| closed.lun)
}

/// Forgets a LUN: its name, paths and saved attributes, and the volume expected on it. The disk is
/// unchanged. Returns the former registry entry.
///
/// # Errors
/// The LUN is unknown or open.
pub fn forget(settings: &Settings, name: &str) -> Result<KnownLun> {
    let closed = closed(settings, name)?;
    let registry = settings.lun_registry();
    let forgotten = Registry::update(&registry, |r| r.forget(name))?;
    // Last: while the LUN is known, an exchange of its content must be detected.
    let store = TrustStore::of(settings);
    store.clear_places(&Places::of_lun(place_of_lun(&registry, name)))?;
    for what in ["open", "header"] {
        let _ = std::fs::remove_file(closed.lock.with_extension(what));
    }
    Ok(forgotten)
}

/// Summarizes the state of an open LUN for `evfs status`, as a [`LunHealth`].
pub(crate) fn health(lun: &crate::device::OpenLun) -> Value {
    let status = lun.lun().status();
    let paths = status.paths.into_iter().map(|path| PathHealth {
        name: path.name,
        legacy: path.legacy,
        state: path.state,
        why: path.why,
    });
    json_of(&LunHealth {
        health: status.health,
        paths: paths.collect(),
    })
}

/// Operation on a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathVerb {
    /// Add it to the LUN.
    Add,
    Remove,
    Enable,
    Disable,
    /// Accept the identity that it reports.
    ReplaceWwid,
}

/// Time limit for a newly enabled path to reach a stable state, for the report.
const SETTLES_WITHIN: Duration = Duration::from_secs(3);

/// Changes a path of a LUN: in the registry, and at once if the LUN is open.
///
/// # Errors
/// The LUN or the path is unknown, the address cannot be a path of this LUN, or no other path works
/// and `force` is not set.
pub fn path(
    settings: &Settings,
    lun: &str,
    verb: PathVerb,
    path: &str,
    force: bool,
) -> Result<Changed> {
    let known = known(settings, lun)?;
    let changed = match verb {
        PathVerb::Add => add_path(settings, &known, path)?,
        _ => change_path(settings, &known, verb, path, force)?,
    };
    Ok(match verb {
        PathVerb::Remove => changed,
        _ => with_state(settings, changed),
    })
}

fn add_path(settings: &Settings, known: &KnownLun, path: &str) -> Result<Changed> {
    let name = &known.name;
    check_new_path(settings, known, path)?;
    let path = full_address(path);
    let port = lunpath(&path, settings, Access::ReadWrite)?.target_port();
    Registry::update(&settings.lun_registry(), |registry| {
        let added = registry.add(name, &path, &port)?;
        let (address, legacy) = (added.address, added.legacy);
        let changed = changed(name, &address, &legacy);
        // If the process that has the LUN open refuses the path, the registry stays unchanged.
        ask(settings, name, LunRequest::Add { address, legacy })?;
        Ok(changed)
    })
}

/// Refuses an address that can never be a path of this LUN, whatever the state of its server.
fn check_new_path(settings: &Settings, known: &KnownLun, path: &str) -> Result<()> {
    let name = &known.name;
    if is_uri(path) {
        return Ok(());
    }
    let there = std::fs::metadata(path);
    let own = known.paths.iter().any(|p| p.legacy == path);
    if there.is_err() && (is_lun_name(path) || own) {
        return Err(Error::Usage(format!(
            "`{path}` is the name of a LUN, and cannot be a path of {name}: a path is an address \
             (nbd://, nbd+unix://, iscsi://, rbd:), a file or a block device"
        )));
    }
    // For a malformed address, the parser has the better message.
    let device = lunpath(path, settings, Access::ReadOnly)?;
    let there = there.map_err(|e| Error::io("cannot add", path.as_ref(), e))?;
    if !there.is_file() && !there.file_type().is_block_device() {
        let why = format!("cannot add {path} to {name}: it is neither a file nor a block device");
        return Err(Error::Usage(why));
    }
    // An unreadable path is accepted: its state will report why it fails.
    match device.identify(CONNECT_WITHIN) {
        Ok(found) if found.size < known.size => Err(Error::Usage(format!(
            "{path} is too small for a path of {name}: it has {} bytes, and the LUN has {}",
            found.size, known.size
        ))),
        _ => Ok(()),
    }
}

fn changed(lun: &str, path: &str, legacy: &str) -> Changed {
    Changed {
        lun: lun.to_owned(),
        path: path.to_owned(),
        legacy: legacy.to_owned(),
        number: None,
        state: "removed".into(),
        why: None,
    }
}

/// Adds the state of the path to `changed`, once it is stable.
fn with_state(settings: &Settings, mut changed: Changed) -> Changed {
    let until = Instant::now() + SETTLES_WITHIN;
    loop {
        let Ok(shown) = show(settings, &changed.lun) else {
            return changed;
        };
        let mut paths = shown["paths"].as_array().into_iter().flatten();
        let at = paths.position(|p| p["name"] == changed.path.as_str());
        let Some(at) = at else {
            return changed;
        };
        let path = &shown["paths"][at];
        changed.number = Some(at + 1);
        changed.state = path["state"].as_str().unwrap_or_default().to_owned();
        changed.why = path["why"].as_str().map(str::to_owned);
        let settled = match changed.state.as_str() {
            "failed" | "recovering" | "suspect" => changed.why.is_some(),
            _ => true,
        };
        if changed.state == "unopen" {
            // No process has the LUN open and could report the state.
            let device = lunpath(&changed.path, settings, Access::ReadOnly).map_err(|e| e.chain());
            let found = device.and_then(|d| d.identify(CONNECT_WITHIN).map_err(|e| e.to_string()));
            if let Err(why) = found {
                changed.state = "failed".into();
                changed.why = Some(why);
            }
        }
        if settled || Instant::now() > until {
            return changed;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn change_path(
    settings: &Settings,
    known: &KnownLun,
    verb: PathVerb,
    path: &str,
    force: bool,
) -> Result<Changed> {
    let file = settings.lun_registry();
    let name = known.name.clone();
    let full = full_address(path);
    let is_it = |p: &&crate::registry::KnownPath| {
        p.address == path || p.address == full || p.legacy == path
    };
    let entry = known.paths.iter().find(is_it);
    let entry = entry.ok_or_else(|| {
        let paths: Vec<_> = known.paths.iter().map(|p| p.address.as_str()).collect();
        Error::NotFound(format!(
            "{name} has no path `{path}`; its paths are {}",
            paths.join(", ")
        ))
    })?;
    let address = entry.address.clone();
    let changed = changed(&name, &address, &entry.legacy);
    let owned = address.clone();
    let open = ask(
        settings,
        &name,
        match verb {
            PathVerb::Remove => LunRequest::Remove { path: owned, force },
            PathVerb::Enable => LunRequest::Enable { path: owned },
            PathVerb::Disable => LunRequest::Disable { path: owned, force },
            PathVerb::Add | PathVerb::ReplaceWwid => LunRequest::ReplaceWwid { path: owned },
        },
    )?;
    let others = known
        .paths
        .iter()
        .any(|p| p.address != address && p.enabled);
    if open.is_none() && !others && !force && matches!(verb, PathVerb::Remove | PathVerb::Disable) {
        return Err(Error::Busy(format!(
            "{address} is the only enabled path of {name}; --force overrides this"
        )));
    }
    let found = match verb {
        PathVerb::ReplaceWwid => {
            let path = lunpath(&address, settings, Access::ReadOnly)?;
            Some(path.identify(CONNECT_WITHIN)?)
        }
        _ => None,
    };
    Registry::update(&file, |registry| {
        let lun = registry.find_mut(&name).ok_or_else(|| unknown(&name))?;
        match verb {
            PathVerb::Remove => lun.paths.retain(|p| p.address != address),
            _ => {
                let on = verb != PathVerb::Disable;
                let mut paths = lun.paths.iter_mut();
                if let Some(path) = paths.find(|p| p.address == address) {
                    path.enabled = on;
                }
            }
        }
        if let Some(found) = found {
            lun.wwid = found.wwid;
            lun.serial = found.serial;
        }
        Ok(())
    })?;
    Ok(changed)
}

/// Addresses scanned concurrently.
const SCAN_AT_ONCE: usize = 64;

/// Scans all places concurrently and assigns names to the LUNs found. A place is an address, or an
/// iSCSI portal (`HOST:PORT`), whose targets and units are all scanned. `tell` is called with the
/// number of addresses done and the total.
///
/// # Errors
/// A place is not an address, or the registry cannot be written. An address that does not answer is
/// reported in the result.
pub fn scan(
    settings: &Settings,
    places: &[String],
    tell: &(dyn Fn(usize, usize) + Sync),
) -> Result<Vec<ScanResult>> {
    let mut addresses = Vec::new();
    for place in places {
        if portal(place) {
            addresses.extend(units(settings, place)?)
        } else {
            addresses.push(full_address(place))
        }
    }
    let mut paths: Vec<Arc<dyn Lunpath>> = Vec::new();
    for address in &addresses {
        paths.push(lunpath(address, settings, Access::ReadOnly)?);
    }
    let answers = Mutex::new(vec![None; paths.len()]);
    let next = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..SCAN_AT_ONCE.min(paths.len()) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    let Some(path) = paths.get(at) else { return };
                    let answer = path.identify(CONNECT_WITHIN).map_err(|e| e.to_string());
                    let mut answers = answers.lock().expect("no panic under this lock");
                    answers[at] = Some(answer);
                    tell(answers.iter().flatten().count(), paths.len());
                }
            });
        }
    });
    let answers = answers.into_inner().expect("no panic under this lock");
    Registry::update(&settings.lun_registry(), |registry| {
        let each = addresses.iter().zip(&paths).zip(answers);
        Ok(each
            .map(|((address, path), answer)| enter(registry, address, &**path, answer))
            .collect())
    })
}

type Answer = Option<std::result::Result<Identity, String>>;

fn enter(registry: &mut Registry, address: &str, path: &dyn Lunpath, answer: Answer) -> ScanResult {
    let mut found = ScanResult {
        address: address.to_owned(),
        lun: None,
        wwid: None,
        generic: false,
        size: 0,
        error: None,
    };
    match answer {
        Some(Ok(identity)) => {
            let entry = (address.to_owned(), path.target_port());
            found.lun = Some(registry.enrol(&identity, &[entry]).name);
            found.generic = is_generic(identity.wwid.as_deref());
            found.wwid = identity.wwid;
            found.size = identity.size;
        }
        Some(Err(why)) => found.error = Some(why),
        None => found.error = Some("not queried".into()),
    }
    found
}

fn portal(place: &str) -> bool {
    let port = place.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
    !place.contains('/') && matches!(port, Some(Ok(_)))
}

/// Discovers all units of all targets at a portal, and returns their addresses.
fn units(settings: &Settings, portal: &str) -> Result<Vec<String>> {
    let options = iscsi_options(settings, Access::ReadOnly);
    let mut addresses = Vec::new();
    for target in path_iscsi::discover(portal, &options, CONNECT_WITHIN)? {
        for at in &target.portals {
            let units = path_iscsi::luns(at, &target.iqn, &options, CONNECT_WITHIN)?;
            let address = |unit: &u16| format!("iscsi://{at}/{}/{unit}", target.iqn);
            addresses.extend(units.iter().map(address));
        }
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{ControlRequest, Listener, PendingReply};
    use serde_json::json;

    /// Answers `count` requests as the holder of `disk1`, which refuses new paths.
    fn refuse_paths(listener: &Listener, count: usize) {
        let mut answered = 0;
        while answered < count {
            let Ok(Some(stream)) = listener.accept() else {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            };
            let (request, reply) = PendingReply::to(stream).expect("a request");
            reply.send(match request {
                ControlRequest::Status => Ok(json!({ "lun": "disk1" })),
                _ => Err(Error::Failed("another disk answers there".into())),
            });
            answered += 1;
        }
    }

    #[test]
    fn a_path_that_the_holder_refuses_is_not_recorded() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).display().to_string();
        let settings = Settings::of_env(&|name| match name {
            "EVFS_RUN_DIR" => Some(at("run")),
            "EVFS_LUN_REGISTRY" => Some(at("luns.json")),
            _ => None,
        });
        let lun = json!({
            "name": "disk1", "wwid": null, "serial": null, "vendor": "IET",
            "product": "VIRTUAL-DISK", "size": 1 << 20, "block_size": 512, "paths": [],
        });
        let registry = json!({ "version": 1, "next_disk": 2, "luns": [lun] });
        std::fs::write(settings.lun_registry(), registry.to_string()).unwrap();
        let known = known(&settings, "disk1").unwrap();
        let run_dir = crate::run_dir(&settings.run_dir()).unwrap();
        let listener = Listener::bind(&run_dir, "x").unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| refuse_paths(&listener, 2));
            let refused = add_path(&settings, &known, "nbd://b/x").unwrap_err();
            assert!(refused.to_string().contains("another disk"), "{refused}");
        });
        let registry = Registry::load(&settings.lun_registry()).unwrap();
        assert_eq!(registry.find("disk1"), Some(&known));
    }
}
