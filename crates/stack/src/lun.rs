//! What an administrator does with LUNs: those that are open somewhere are asked through the control
//! socket of the process that has them; of the others the registry knows.

use crate::device::{
    CONNECT_WITHIN, full_address, is_lun_name, is_uri, iscsi_options, lock_of_lun, lunpath, take,
};
use crate::place::{Places, place_of_lun};
use crate::registry::{KnownLun, Registry, Values, unknown};
use crate::{Error, Result, Settings, control};
use block::{Identity, Lunpath};
use multipath::identity::is_generic;
use multipath::{ATTRIBUTES, Lun, PathSpec};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::os::unix::fs::FileTypeExt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What can be asked of a LUN that is open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ask {
    /// Everything that can be seen.
    Show,
    /// Counters to zero.
    Clear,
    /// All attributes as they are in force.
    Get,
    /// Change an attribute until the LUN is opened again.
    Set {
        /// Name.
        name: String,
        /// Value.
        value: String,
    },
    /// I/Os that wait, and for what.
    Waiting,
    /// The recorded I/O under every policy.
    Advise,
    /// Add a path.
    Add {
        /// Address.
        address: String,
        /// Legacy name.
        legacy: String,
    },
    /// Take a path out of the LUN.
    Remove {
        /// Address or legacy name.
        path: String,
        /// Even the last that works.
        force: bool,
    },
    /// Take a path into use.
    Enable {
        /// Address or legacy name.
        path: String,
    },
    /// Take a path out of use.
    Disable {
        /// Address or legacy name.
        path: String,
        /// Even the last that works.
        force: bool,
    },
    /// Accept who answers on a refused path.
    ReplaceWwid {
        /// Address or legacy name.
        path: String,
    },
}

/// Answers, in the process that has the LUN open.
pub(crate) fn answer(
    of: &str,
    lun: Option<&crate::device::OpenLun>,
    ask: &Ask,
    settings: &Settings,
) -> Result<Value> {
    let none = || Error::NotFound(format!("{of} is not on a LUN"));
    let lun = lun.ok_or_else(none)?.lun();
    match ask {
        Ask::Show => return Ok(json_of(&lun.status())),
        Ask::Clear => lun.clear_stat(),
        Ask::Get => {
            let attributes = lun.attributes();
            let values: Values = ATTRIBUTES
                .iter()
                .filter_map(|a| Some((a.name.to_owned(), attributes.get(a.name)?)))
                .collect();
            return Ok(json_of(&values));
        }
        Ask::Set { name, value } => lun.set(name, value)?,
        Ask::Waiting => return Ok(json_of(&lun.waiting())),
        Ask::Advise => {
            let advice = lun.advise().map_err(Error::Failed)?;
            return Ok(
                json!({ "text": advice.to_string(), "recommended": advice.recommended().name() }),
            );
        }
        Ask::Add { address, legacy } => lun.add(PathSpec {
            path: lunpath(address, settings, lun_read_only(lun))?,
            legacy: legacy.clone(),
            enabled: true,
        })?,
        Ask::Remove { path, force } => lun.remove(path, *force)?,
        Ask::Enable { path } => lun.enable(path)?,
        Ask::Disable { path, force } => lun.disable(path, *force)?,
        Ask::ReplaceWwid { path } => lun.replace_wwid(path)?,
    }
    Ok(Value::Null)
}

fn lun_read_only(lun: &Lun) -> bool {
    use block::BlockDevice;
    lun.info().read_only
}

fn json_of<T: Serialize>(value: &T) -> Value {
    serde_json::to_value(value).expect("names and numbers become JSON")
}

/// The attached volume that has a LUN open, if any has.
fn holder(settings: &Settings, lun: &str) -> Option<String> {
    control::find(&settings.run_dir(), |status| status["lun"] == lun)
}

/// Asks the process that has the LUN open; `None` when none has.
fn ask(settings: &Settings, lun: &str, ask: Ask) -> Result<Option<Value>> {
    let Some(name) = holder(settings, lun) else {
        return Ok(None);
    };
    control::ask(&settings.run_dir(), &name, &control::Ask::Lun(ask)).map(Some)
}

/// The same, where only an open LUN will do.
fn ask_open(settings: &Settings, lun: &str, what: Ask) -> Result<Value> {
    ask(settings, lun, what)?
        .ok_or_else(|| Error::NotFound(format!("{lun} is not open; `evfs attach {lun}` opens it")))
}

fn known(settings: &Settings, name: &str) -> Result<KnownLun> {
    let registry = Registry::load(&settings.lun_registry())?;
    registry.find(name).cloned().ok_or_else(|| unknown(name))
}

/// All LUNs, those that are open with their state.
///
/// # Errors
/// The registry cannot be read.
pub fn list(settings: &Settings) -> Result<Vec<Value>> {
    let registry = Registry::load(&settings.lun_registry())?;
    registry
        .luns
        .iter()
        .map(|lun| show_one(settings, lun))
        .collect()
}

/// One LUN, as it is, or as it was when it was last seen.
///
/// # Errors
/// There is none of this name.
pub fn show(settings: &Settings, name: &str) -> Result<Value> {
    show_one(settings, &known(settings, name)?)
}

fn show_one(settings: &Settings, lun: &KnownLun) -> Result<Value> {
    if let Some(mut open) = ask(settings, &lun.name, Ask::Show)? {
        open["open"] = true.into();
        return Ok(open);
    }
    let path = |p: &crate::registry::KnownPath| {
        let path = lunpath(&p.address, settings, true);
        json!({
            "name": p.address,
            "legacy": p.legacy,
            "transport": path.as_ref().map_or("none", |p| p.transport().name()),
            "port": path.map_or(String::new(), |p| p.target_port()),
            "state": if p.enabled { "unopen" } else { "disabled" },
        })
    };
    let paths: Vec<_> = lun.paths.iter().map(path).collect();
    Ok(json!({
        "name": lun.name, "wwid": lun.wwid, "serial": lun.serial, "vendor": lun.vendor,
        "product": lun.product, "size": lun.size, "block_size": lun.block_size,
        "health": "unopen", "open": false, "paths": paths,
    }))
}

/// What is in the way of I/O, of an open LUN.
///
/// # Errors
/// It is not open.
pub fn waiting(settings: &Settings, name: &str) -> Result<Value> {
    ask_open(settings, &known(settings, name)?.name, Ask::Waiting)
}

/// What each policy would have made of the recorded I/O of an open LUN.
///
/// # Errors
/// It is not open, or has done too little.
pub fn advise(settings: &Settings, name: &str) -> Result<Value> {
    ask_open(settings, &known(settings, name)?.name, Ask::Advise)
}

/// Sets the counters of an open LUN to zero.
///
/// # Errors
/// It is not open.
pub fn clear(settings: &Settings, name: &str) -> Result<()> {
    ask_open(settings, &known(settings, name)?.name, Ask::Clear).map(drop)
}

/// An attribute, as `evfs lun get` shows it.
#[derive(Debug, Clone, Serialize)]
pub struct AttributeRow {
    /// Name.
    pub name: &'static str,
    /// In force, where the LUN is open.
    pub current: Option<String>,
    /// In force after the next open.
    pub saved: String,
    /// Built in.
    pub default: String,
    /// Scope that the saved value comes from.
    pub origin: String,
    /// Meaning, unit and range.
    pub help: &'static str,
}

/// The attributes of a LUN, or the one that is named.
///
/// # Errors
/// There is no such LUN or attribute.
pub fn get(settings: &Settings, name: &str, attribute: Option<&str>) -> Result<Vec<AttributeRow>> {
    let lun = known(settings, name)?;
    let registry = Registry::load(&settings.lun_registry())?;
    let (saved, origins) = registry.attributes(&lun, transport(settings, &lun))?;
    let current = ask(settings, &lun.name, Ask::Get)?;
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
        .map(|p| lunpath(&p.address, settings, true));
    match first {
        Some(Ok(path)) => path.transport().name(),
        _ => "file",
    }
}

/// Changes an attribute of an open LUN until it is opened again.
///
/// # Errors
/// It is not open, or the value makes no sense.
pub fn set(settings: &Settings, name: &str, attribute: &str, value: &str) -> Result<()> {
    let mut trial = multipath::Attributes::default();
    trial.set(attribute, value).map_err(Error::Usage)?;
    let (attribute, value) = (attribute.to_owned(), value.to_owned());
    let lun = known(settings, name)?.name;
    let set = Ask::Set {
        name: attribute,
        value,
    };
    match ask(settings, &lun, set)? {
        Some(_) => Ok(()),
        None => Err(Error::NotFound(format!(
            "{lun} is not open, so nothing can be changed until it is opened again; `evfs lun save` \
             keeps the value for every time"
        ))),
    }
}

/// Saves an attribute: for a LUN, or for a scope (`global`, `transport:NAME`,
/// `device:VENDOR/PRODUCT`). An empty value forgets it. In force from the next open on.
///
/// # Errors
/// There is no such LUN, or the value makes no sense.
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
                        .is_some_and(|t| matches!(t, "file" | "nbd" | "iscsi"))
                    || scope
                        .strip_prefix("device:")
                        .is_some_and(|d| d.contains('/'));
                if !good {
                    return Err(Error::Usage(format!(
                        "`{scope}` is no scope; there are global, transport:file|nbd|iscsi and \
                         device:VENDOR/PRODUCT"
                    )));
                }
                registry.scopes.entry(scope.to_owned()).or_default()
            }
        };
        match value.is_empty() {
            true => values.remove(attribute),
            false => values.insert(attribute.to_owned(), value.to_owned()),
        };
        Ok(())
    })
}

/// Forgets a LUN: its name, its paths, the attributes that were saved for it, and that a volume is
/// expected there. The disk is left as it is. Gives what is forgotten; with `only_look` nothing is,
/// yet.
///
/// # Errors
/// There is none of this name, or it is open.
pub fn forget(settings: &Settings, name: &str, only_look: bool) -> Result<KnownLun> {
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
            "{name} is open: `{holder}` uses it; `evfs detach {holder}` first"
        )));
    }
    let lock = lock_of_lun(settings, name)?;
    let _open = take(&lock, "open", true)?;
    let _header = take(&lock, "header", true)?;
    if only_look {
        return Ok(lun);
    }
    let registry = settings.lun_registry();
    let forgotten = Registry::update(&registry, |r| r.forget(name))?;
    // Last: while the LUN is known, what lies on it is not to be exchanged.
    let store = settings.trust_store();
    store.clear_places(&Places::of_lun(place_of_lun(&registry, name)))?;
    for what in ["open", "header"] {
        let _ = std::fs::remove_file(lock.with_extension(what));
    }
    Ok(forgotten)
}

/// State of an open LUN, for `evfs status`: its health, and each path with its state and what is wrong.
pub(crate) fn health(lun: &crate::device::OpenLun) -> Value {
    let status = json_of(&lun.lun().status());
    let keys = ["name", "legacy", "state", "why"];
    let paths = status["paths"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|path| {
            let part = |key: &str| (key.to_owned(), path[key].clone());
            Value::from_iter(keys.map(part))
        });
    json!({ "health": status["health"], "paths": paths.collect::<Vec<_>>() })
}

/// What is done to a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathVerb {
    /// Make it one of the LUN.
    Add,
    /// Forget it.
    Remove,
    /// Use it.
    Enable,
    /// Do not use it.
    Disable,
    /// Accept who answers on it.
    ReplaceWwid,
}

/// A path after something was done to it.
#[derive(Debug, Clone, Serialize)]
pub struct Changed {
    /// Name of the LUN.
    pub lun: String,
    /// Address of the path.
    pub path: String,
    /// Its legacy name.
    pub legacy: String,
    /// Which of the paths of the LUN it is, from 1; nothing where it is none any more.
    pub number: Option<usize>,
    /// What has become of it: a state of `lun show`, or `removed`.
    pub state: String,
    /// Why it carries nothing.
    pub why: Option<String>,
}

/// How long a path that comes into use is waited for, to tell how it is.
const SETTLES_WITHIN: Duration = Duration::from_secs(3);

/// Changes a path of a LUN: at once where it is open, and in the registry.
///
/// # Errors
/// There is no such LUN or path, it cannot be one of this LUN, or no other path works and `force` is not given.
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
    let port = lunpath(&path, settings, false)?.target_port();
    let registry = settings.lun_registry();
    let added = Registry::update(&registry, |r| r.add(name, &path, &port))?;
    let (address, legacy) = (added.address, added.legacy);
    let changed = changed(name, &address, &legacy);
    ask(settings, name, Ask::Add { address, legacy })?;
    Ok(changed)
}

/// Refuses what can be no path of this LUN, whatever becomes of the servers that lead to it.
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
             (nbd://, nbd+unix://, iscsi://), a file or a block device"
        )));
    }
    // What looks like an address says so better.
    let device = lunpath(path, settings, true)?;
    let there = there.map_err(|e| Error::io("cannot add", path.as_ref(), e))?;
    if !there.is_file() && !there.file_type().is_block_device() {
        let why = format!("{path} is no file and no block device, and cannot be a path of {name}");
        return Err(Error::Usage(why));
    }
    // Who may not read it now learns from its state why it fails.
    match device.identify(CONNECT_WITHIN) {
        Ok(found) if found.size < known.size => Err(Error::Usage(format!(
            "{path} has {} bytes, and {name} has {}: it cannot be a path of it",
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

/// The same with the state of the path, once there is one to tell.
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
            // Nobody has it open who could say.
            let device = lunpath(&changed.path, settings, true).map_err(|e| e.chain());
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
            "{name} has no path `{path}`; it has {}",
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
            PathVerb::Remove => Ask::Remove { path: owned, force },
            PathVerb::Enable => Ask::Enable { path: owned },
            PathVerb::Disable => Ask::Disable { path: owned, force },
            PathVerb::Add | PathVerb::ReplaceWwid => Ask::ReplaceWwid { path: owned },
        },
    )?;
    let others = known
        .paths
        .iter()
        .any(|p| p.address != address && p.enabled);
    if open.is_none() && !others && !force && matches!(verb, PathVerb::Remove | PathVerb::Disable) {
        return Err(Error::Busy(format!(
            "{address} is the only path of {name} that is in use; --force takes it all the same"
        )));
    }
    let found = match verb {
        PathVerb::ReplaceWwid => Some(lunpath(&address, settings, true)?.identify(CONNECT_WITHIN)?),
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

/// What a scan found at one place.
#[derive(Debug, Clone, Serialize)]
pub struct Found {
    /// What was asked.
    pub address: String,
    /// The LUN that it is a path of.
    pub lun: Option<String>,
    /// Its world-wide ID.
    pub wwid: Option<String>,
    /// Others may have the same ID: it is a LUN of its own until it is joined to another by `+`.
    pub generic: bool,
    /// Bytes.
    pub size: u64,
    /// Why nothing was found.
    pub error: Option<String>,
}

/// Places that are asked at once.
const SCAN_AT_ONCE: usize = 64;

/// Asks all places at once who they are, and gives names to what answers. A place is an address, or
/// an iSCSI portal (`HOST:PORT`), of which all targets and units are asked. `tell` hears how many
/// are done, of how many.
///
/// # Errors
/// A place is no address, or the registry cannot be written. What does not answer is in the result.
pub fn scan(
    settings: &Settings,
    places: &[String],
    tell: &(dyn Fn(usize, usize) + Sync),
) -> Result<Vec<Found>> {
    let mut addresses = Vec::new();
    for place in places {
        match portal(place) {
            true => addresses.extend(units(settings, place)?),
            false => addresses.push(full_address(place)),
        }
    }
    let mut paths: Vec<Arc<dyn Lunpath>> = Vec::new();
    for address in &addresses {
        paths.push(lunpath(address, settings, true)?);
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

fn enter(registry: &mut Registry, address: &str, path: &dyn Lunpath, answer: Answer) -> Found {
    let mut found = Found {
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
        None => found.error = Some("was not asked".into()),
    }
    found
}

fn portal(place: &str) -> bool {
    let port = place.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
    !place.contains('/') && matches!(port, Some(Ok(_)))
}

/// The addresses of all units of all targets that a portal names.
fn units(settings: &Settings, portal: &str) -> Result<Vec<String>> {
    let options = iscsi_options(settings, true);
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
