//! Identifiers of all checks. They are part of the interface: scripts select findings by them.

/// Areas in the order of the report: the first parts of all identifiers.
pub(super) const AREAS: &[&str] = &[
    "machine", "config", "volume", "lun", "space", "service", "cluster",
];

macro_rules! ids {
    ($($name:ident = $id:literal;)*) => {
        $(#[doc = concat!("`", $id, "`")] pub const $name: &str = $id;)*
        /// Identifiers of all checks.
        pub const ALL: &[&str] = &[$($id),*];
    };
}

ids! {
    KERNEL = "machine.kernel";
    IO_URING = "machine.io-uring";
    FUSE_DEVICE = "machine.fuse-device";
    FUSE_HELPER = "machine.fuse-helper";
    LOOP = "machine.loop-devices";
    MEMLOCK = "machine.locked-memory";
    OPEN_FILES = "machine.open-files";
    CIPHER = "machine.cipher";
    ENTROPY = "machine.entropy";
    CLOCK = "machine.clock";
    CLOCK_SYNC = "machine.clock-sync";
    SWAP = "machine.swap";
    CORE = "machine.core-dumps";
    CACHE = "machine.cache-memory";
    FILE = "config.file";
    KEY = "config.unknown-key";
    VALUE = "config.value";
    OVERRIDDEN = "config.overridden";
    VARIABLE = "config.variable";
    CONFLICT = "config.conflict";
    TABLES = "config.tables";
    DIRECTORY = "config.directory";
    STATE_FILE = "config.state-file";
    SECRET = "config.secret-file";
    STORE = "config.trust-store";
    READABLE = "volume.readable";
    MISSING = "volume.missing";
    HEADER = "volume.header";
    TRUST = "volume.trust";
    SEAL = "volume.seal";
    BACKUP = "volume.backup";
    KEYS = "volume.keys";
    RECOVERY = "volume.recovery";
    KDF = "volume.kdf";
    REGISTRY = "lun.registry";
    PATHS = "lun.paths";
    REDUNDANCY = "lun.redundancy";
    BACKING = "space.backing";
    INSIDE = "space.inside";
    STATE = "space.state";
    ANSWER = "service.answer";
    LEFTOVER = "service.leftover";
    WARNING = "service.warning";
    VERSION = "service.version";
    CLUSTER_CERTIFICATE = "cluster.certificate";
    CLUSTER_MEMBER = "cluster.member";
    CLUSTER_MAJORITY = "cluster.majority";
    CLUSTER_NAME = "cluster.name";
    CLUSTER_INTERFACE = "cluster.interface";
    CLUSTER_UNIT = "cluster.unit";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guide_lists_exactly_these_checks() {
        let page = include_str!("../../../../docs/guide/doctor.md");
        let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
        let listed: Vec<&str> = rows.filter_map(|row| row.split('`').next()).collect();
        assert_eq!(listed, ALL);
        let area = |id: &&str| id.split('.').next().unwrap_or_default().to_owned();
        assert!(ALL.iter().all(|id| AREAS.contains(&area(id).as_str())));
    }
}
