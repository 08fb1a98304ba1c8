//! The registry of LUNs: persistent names (`diskN`), known paths and saved attributes. It is a JSON
//! file that is replaced as a whole under a lock, so names survive restarts.

use crate::{Error, Result, state_file};
use lunpath::Identity;
use multipath::identity::is_generic;
use multipath::{ATTRIBUTES, Attributes};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// Version of the file format.
const VERSION: u32 = 1;

/// Values by attribute name.
pub type Values = BTreeMap<String, String>;

/// A path in the registry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownPath {
    /// Address as written by the user: a URI or a file name.
    pub address: String,
    /// Legacy name, `cXtYdZ`.
    pub legacy: String,
    /// Whether the path is used for I/O.
    pub enabled: bool,
}

/// A LUN in the registry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownLun {
    /// Persistent name, `diskN`.
    pub name: String,
    /// World-wide ID, if the target reports one.
    pub wwid: Option<String>,
    /// Serial number, if the target reports one.
    pub serial: Option<String>,
    /// Vendor name, from the target.
    pub vendor: String,
    /// Product name, from the target.
    pub product: String,
    /// Size, in bytes.
    pub size: u64,
    /// Size of a logical block, in bytes.
    pub block_size: u32,
    /// Paths in order of discovery.
    pub paths: Vec<KnownPath>,
    /// Attributes saved for this LUN.
    #[serde(default)]
    pub attributes: Values,
}

/// Contents of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Registry {
    version: u32,
    /// Number of the next `diskN`; a number is never reused.
    next_disk: u32,
    /// Target ports; the index is the controller number in legacy names.
    #[serde(default)]
    ports: Vec<String>,
    /// All known LUNs.
    pub luns: Vec<KnownLun>,
    /// Attributes saved for scopes: `global`, `transport:NAME`, `device:VENDOR/PRODUCT`.
    #[serde(default)]
    pub scopes: BTreeMap<String, Values>,
}

impl Default for Registry {
    fn default() -> Registry {
        Registry {
            version: VERSION,
            next_disk: 1,
            ports: Vec::new(),
            luns: Vec::new(),
            scopes: BTreeMap::new(),
        }
    }
}

impl Registry {
    /// Reads the file; a missing file is an empty registry.
    ///
    /// # Errors
    /// The file is unreadable, damaged, or of an unknown version.
    pub fn load(path: &Path) -> Result<Registry> {
        let text = match crate::state_file::read_text(path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Registry::default()),
            Err(e) => return Err(Error::io("cannot read the registry of LUNs", path, e)),
        };
        let registry: Registry = serde_json::from_str(&text).map_err(|e| {
            let detail = format!(
                "the registry of LUNs is damaged: {e}; restore it, or move it away and scan again"
            );
            Error::config(path, detail)
        })?;
        match registry.version {
            VERSION => Ok(registry),
            later => Err(Error::config(
                path,
                format!(
                    "the registry of LUNs has version {later}; this program supports version \
                     {VERSION}"
                ),
            )),
        }
    }

    /// Changes the file under a lock. After a crash it has either the old or the new content.
    ///
    /// # Errors
    /// Those of `change` and of the files; the registry is unchanged then.
    pub fn update<T>(path: &Path, change: impl FnOnce(&mut Registry) -> Result<T>) -> Result<T> {
        state_file::update(
            path,
            ("cannot write the registry of LUNs", "EVFS_LUN_REGISTRY"),
            Registry::load,
            change,
        )
    }

    /// Finds the LUN with this persistent name, legacy name, or address of one of its paths.
    pub fn find(&self, name: &str) -> Option<&KnownLun> {
        let own = |l: &&KnownLun| l.name == name;
        let path = |l: &&KnownLun| {
            l.paths
                .iter()
                .any(|p| p.address == name || p.legacy == name)
        };
        self.luns
            .iter()
            .find(own)
            .or_else(|| self.luns.iter().find(path))
    }

    /// Same as [`Registry::find`], for changes.
    pub fn find_mut(&mut self, name: &str) -> Option<&mut KnownLun> {
        let found = self.find(name)?.name.clone();
        self.luns.iter_mut().find(|l| l.name == found)
    }

    /// Finds or adds the LUN with this identity, and makes all addresses paths of it. A LUN is
    /// recognized by a known path, else by an ID that is not generic; otherwise it is new and gets
    /// a new name.
    pub fn enrol(&mut self, identity: &Identity, paths: &[(String, String)]) -> KnownLun {
        let known = paths.iter().find_map(|(address, _)| self.find(address));
        let same = |l: &&KnownLun| l.wwid == identity.wwid && l.serial == identity.serial;
        let known = known.or_else(|| {
            if is_generic(identity.wwid.as_deref()) {
                None
            } else {
                self.luns.iter().find(same)
            }
        });
        let at = match known.map(|l| l.name.clone()) {
            Some(name) => self.luns.iter().position(|l| l.name == name).unwrap_or(0),
            None => {
                self.luns.push(KnownLun {
                    name: format!("disk{}", self.next_disk),
                    wwid: identity.wwid.clone(),
                    serial: identity.serial.clone(),
                    vendor: identity.vendor.clone(),
                    product: identity.product.clone(),
                    size: identity.size,
                    block_size: identity.logical_block_size,
                    paths: Vec::new(),
                    attributes: Values::new(),
                });
                self.next_disk += 1;
                self.luns.len() - 1
            }
        };
        for (address, port) in paths {
            self.add_path(at, address, port);
        }
        let lun = &mut self.luns[at];
        lun.size = lun.size.max(identity.size);
        lun.clone()
    }

    /// Adds the path `address` to a LUN. Its legacy name is `c` and the number of its port, `t0`
    /// (or the next free number), `d` and the number of the LUN.
    fn add_path(&mut self, at: usize, address: &str, port: &str) {
        if self.luns[at].paths.iter().any(|p| p.address == address) {
            return;
        }
        let at_port = |wanted: &str| self.ports.iter().position(|p| p == wanted);
        let number = match at_port(port).or_else(|| at_port("")) {
            Some(number) => {
                self.ports[number] = port.to_owned();
                number
            }
            None => {
                self.ports.push(port.to_owned());
                self.ports.len() - 1
            }
        };
        let disk = self.luns[at].name.trim_start_matches("disk").to_owned();
        let taken = |t: usize| {
            let legacy = format!("c{number}t{t}d{disk}");
            self.luns
                .iter()
                .flat_map(|l| &l.paths)
                .any(|p| p.legacy == legacy)
        };
        let target = (0..).find(|t| !taken(*t)).unwrap_or(0);
        self.luns[at].paths.push(KnownPath {
            address: address.to_owned(),
            legacy: format!("c{number}t{target}d{disk}"),
            enabled: true,
        });
    }

    /// Adds a path to a known LUN.
    ///
    /// # Errors
    /// The LUN is unknown, or the path belongs to another LUN.
    pub fn add(&mut self, lun: &str, address: &str, port: &str) -> Result<KnownPath> {
        let owner = self.find(address).map(|l| l.name.clone());
        let at = self.luns.iter().position(|l| l.name == lun);
        let at = at.ok_or_else(|| unknown(lun))?;
        match owner {
            Some(owner) if owner != self.luns[at].name => {
                return Err(Error::Busy(format!(
                    "{address} is a path of {owner}; run `evfs path remove {owner} {address}` first"
                )));
            }
            _ => self.add_path(at, address, port),
        }
        let path = self.luns[at].paths.iter().find(|p| p.address == address);
        Ok(path.expect("it was added").clone())
    }

    /// Removes a LUN, and target ports that no other LUN uses. Its number is not reused.
    ///
    /// # Errors
    /// The LUN is unknown.
    pub fn forget(&mut self, lun: &str) -> Result<KnownLun> {
        let at = self.luns.iter().position(|l| l.name == lun);
        let forgotten = self.luns.remove(at.ok_or_else(|| unknown(lun))?);
        let used = |number: usize| {
            let prefix = format!("c{number}t");
            let mut paths = self.luns.iter().flat_map(|l| &l.paths);
            paths.any(|p| p.legacy.starts_with(&prefix))
        };
        // The other ports keep their numbers.
        let unused: Vec<usize> = (0..self.ports.len()).filter(|n| !used(*n)).collect();
        unused.into_iter().for_each(|n| self.ports[n].clear());
        while self.ports.last().is_some_and(String::is_empty) {
            self.ports.pop();
        }
        Ok(forgotten)
    }

    /// Resolves the attributes of a LUN and the scope of each; the most specific scope wins.
    ///
    /// # Errors
    /// A saved value is invalid.
    pub fn attributes(&self, lun: &KnownLun, transport: &str) -> Result<(Attributes, Values)> {
        let mut attributes = Attributes::default();
        let mut origins = Values::new();
        let device = format!("device:{}/{}", lun.vendor, lun.product);
        let scopes = [
            "global".to_owned(),
            format!("transport:{transport}"),
            device,
        ];
        let saved = scopes
            .iter()
            .filter_map(|s| Some((s.as_str(), self.scopes.get(s)?)));
        for (scope, values) in saved.chain([("lun", &lun.attributes)]) {
            for (name, value) in values {
                attributes.set(name, value).map_err(|why| {
                    Error::Usage(format!(
                        "attribute saved for {scope} of {}: {why}",
                        lun.name
                    ))
                })?;
                origins.insert(name.clone(), scope.to_owned());
            }
        }
        for attribute in ATTRIBUTES {
            origins
                .entry(attribute.name.into())
                .or_insert("default".into());
        }
        Ok((attributes, origins))
    }
}

pub(crate) fn unknown(name: &str) -> Error {
    Error::NotFound(format!(
        "unknown LUN `{name}`; `evfs lun list` shows the known LUNs, `evfs lun scan` discovers \
         others"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunpath::Access;

    fn identity(wwid: Option<&str>) -> Identity {
        Identity {
            wwid: wwid.map(str::to_owned),
            serial: None,
            vendor: "IET".into(),
            product: "VIRTUAL-DISK".into(),
            size: 1 << 20,
            logical_block_size: 512,
            read_only: false,
            access: Access::Optimized,
        }
    }

    fn path(address: &str, port: &str) -> (String, String) {
        (address.into(), port.into())
    }

    #[test]
    fn names_are_given_once_and_kept() {
        let mut registry = Registry::default();
        let own = identity(Some("naa.5000c500a1b2c3d4"));
        let one = registry.enrol(&own, &[path("nbd://a/", "a:1")]);
        let same = registry.enrol(&own, &[path("nbd://b/", "b:1")]);
        assert_eq!((one.name.as_str(), same.name.as_str()), ("disk1", "disk1"));
        let legacy: Vec<_> = same.paths.iter().map(|p| p.legacy.as_str()).collect();
        assert_eq!(legacy, ["c0t0d1", "c1t0d1"]);
        // A generic ID does not identify a LUN.
        let generic = identity(Some("naa.60000000000000000e00000000010001"));
        assert_eq!(
            registry.enrol(&generic, &[path("iscsi://x", "x:1")]).name,
            "disk2"
        );
        assert_eq!(
            registry.enrol(&generic, &[path("iscsi://y", "y:1")]).name,
            "disk3"
        );
        assert_eq!(registry.find("c1t0d1").unwrap().name, "disk1");
        assert!(registry.add("disk1", "iscsi://x", "x:1").is_err());
    }

    #[test]
    fn a_lun_that_is_forgotten_leaves_nothing_and_changes_no_other_name() {
        let mut registry = Registry::default();
        for (n, wwid) in ["naa.5000c500a1b2c301", "naa.5000c500a1b2c302"]
            .iter()
            .enumerate()
        {
            let paths = [0, 1].map(|p| path(&format!("nbd://{n}{p}/"), &format!("host{n}{p}")));
            registry.enrol(&identity(Some(wwid)), &paths);
        }
        let kept = registry.find("disk2").unwrap().clone();
        assert_eq!(registry.forget("disk1").unwrap().name, "disk1");
        assert!(registry.forget("disk1").is_err() && registry.find("nbd://00/").is_none());
        assert_eq!(registry.find("disk2"), Some(&kept));
        let text = serde_json::to_string(&registry).unwrap();
        for word in ["disk1", "host0", "nbd://0", "a1b2c301"] {
            assert!(!text.contains(word), "{word} in {text}");
        }
        // The port number is reused, the name is not.
        let third = identity(Some("naa.5000c500a1b2c303"));
        let third = registry.enrol(&third, &[path("nbd://x/", "x"), path("nbd://y/", "host10")]);
        assert_eq!(third.name, "disk3");
        let legacy: Vec<_> = third.paths.iter().map(|p| p.legacy.as_str()).collect();
        assert_eq!(legacy, ["c0t0d3", "c2t0d3"]);
    }

    #[test]
    fn the_most_specific_scope_counts() {
        let mut registry = Registry::default();
        let mut lun = registry.enrol(&identity(None), &[path("nbd://a/", "a:1")]);
        let value = |n: &str| Values::from([("max_q_depth".to_owned(), n.to_owned())]);
        registry.scopes.insert("global".into(), value("4"));
        let depth = |r: &Registry, l: &KnownLun| {
            let (attributes, origins) = r.attributes(l, "nbd").unwrap();
            (attributes.max_q_depth, origins["max_q_depth"].clone())
        };
        assert_eq!(depth(&registry, &lun), (4, "global".into()));
        registry.scopes.insert("transport:nbd".into(), value("5"));
        registry
            .scopes
            .insert("device:IET/VIRTUAL-DISK".into(), value("6"));
        assert_eq!(depth(&registry, &lun).0, 6);
        lun.attributes = value("7");
        assert_eq!(depth(&registry, &lun), (7, "lun".into()));
    }

    #[test]
    fn the_file_is_whole_or_refused() {
        let dir = std::env::temp_dir().join(format!("evfs-registry-{}", std::process::id()));
        let file = dir.join("luns.json");
        let _ = std::fs::remove_dir_all(&dir);
        let add = |r: &mut Registry| Ok(r.enrol(&identity(None), &[path("a", "p")]).name);
        assert_eq!(Registry::update(&file, add).unwrap(), "disk1");
        assert_eq!(Registry::load(&file).unwrap().luns.len(), 1);
        std::fs::write(&file, "{\"version\":1").unwrap();
        assert!(
            Registry::load(&file)
                .unwrap_err()
                .to_string()
                .contains("damaged")
        );
        let later = "{\"version\":9,\"next_disk\":1,\"luns\":[]}";
        std::fs::write(&file, later).unwrap();
        assert!(
            Registry::load(&file)
                .unwrap_err()
                .to_string()
                .contains("version 9")
        );
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
