//! Packages of the program: their contents, and their life in a small Debian system that never had
//! EVFS: installation, upgrade, removal.
//!
//! The tests pack the program under test. The commands of an administrator are those of
//! `docs/guide/install.md`, in the blocks that are marked with the name of the package.

use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tests::packages::{dist, file, older, packages};
use tests::{Ran, Sandbox, installed, peer, program, root};

fn version() -> String {
    let ran = Ran::of(Command::new(program()).arg("--version")).ok();
    ran.stdout.trim().rsplit(' ').next().unwrap().to_owned()
}

/// Returns the paths that a package must contain, relative to its prefix. `zsh` is the directory of
/// completions, which differs.
fn wanted(s: &Sandbox, zsh: &str) -> BTreeSet<String> {
    let mut wanted: BTreeSet<String> = [
        "bin/evfs",
        "sbin/mount.evfs",
        "sbin/mount.fuse.evfs",
        "sbin/mount.fuseblk.evfs",
        "sbin/umount.evfs",
        "sbin/umount.fuse.evfs",
        "sbin/umount.fuseblk.evfs",
        "lib/ocf/resource.d/evfs/evfs",
        "lib/systemd/system/evfs-cluster.service",
        "lib/systemd/system/evfs.service",
        "lib/systemd/system/evfs@.service",
        "share/bash-completion/completions/evfs",
        "share/fish/vendor_completions.d/evfs.fish",
        "share/evfs/grafana/evfs.json",
        "share/evfs/prometheus/evfs.rules.yml",
        "share/doc/evfs/README.md",
        "share/doc/evfs/changelog.gz",
        "share/doc/evfs/evfs.cdx.json",
        "share/doc/evfs/docs/guide/install.md",
        "share/doc/evfs/docs/errors/README.md",
    ]
    .map(str::to_owned)
    .into();
    wanted.insert(format!("share/zsh/{zsh}/_evfs"));
    let pages = s.json(&["man", "--dir", "man"]);
    for page in pages["written"].as_array().unwrap() {
        let page = page.as_str().unwrap();
        wanted.insert(format!("share/{page}.gz"));
    }
    assert!(wanted.len() > 60, "{wanted:?}");
    wanted
}

/// Fails unless a list of paths, one in each line, has all paths that a package must contain.
fn check_contents(s: &Sandbox, list: &str, prefix: &str, zsh: &str, licenses: &str) {
    let listed: BTreeSet<&str> = list
        .lines()
        .filter_map(|l| l.strip_prefix(prefix))
        .collect();
    let mut wanted = wanted(s, zsh);
    for name in ["LICENSE-APACHE", "LICENSE-MIT", "THIRD-PARTY-LICENSES.gz"] {
        wanted.insert(format!("{licenses}/{name}"));
    }
    let missing = wanted.iter().filter(|path| !listed.contains(path.as_str()));
    assert_eq!(missing.collect::<Vec<_>>(), [""; 0], "in {list}");
}

mod needs_peer {
    use super::*;

    /// Names the programs that pack, so that a missing one is named before anything fails.
    fn needs_tools() {
        for tool in ["dpkg-deb", "rpmbuild", "objcopy"] {
            installed(tool);
        }
    }

    #[test]
    fn two_runs_in_different_surroundings_make_the_same_bytes() {
        needs_tools();
        let s = Sandbox::new();
        let first = packages(&s);
        let elsewhere = s.path("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        // Another time zone, umask, language, home, directory and time.
        let mut other = Command::new("sh");
        other.args(["-c", "umask 077; exec \"$0\" \"$@\""]);
        let again = dist(&s, "elsewhere/out");
        other.arg(again.get_program()).args(again.get_args());
        other
            .envs(
                again
                    .get_envs()
                    .filter_map(|(name, value)| Some((name, value?))),
            )
            .env("TZ", "Asia/Kathmandu")
            .env("LC_ALL", "C")
            .env("COLUMNS", "60")
            .env("EVFS_THREADS", "3")
            .current_dir(&elsewhere);
        Ran::of(&mut other).ok();
        let sums = |dir: &Path| fs::read_to_string(dir.join("SHA256SUMS")).unwrap();
        let (first, second) = (sums(&first), sums(&elsewhere.join("out")));
        assert_eq!(first, second);
        assert_eq!(first.lines().count(), 5, "{first}");
    }

    #[test]
    fn the_checksums_are_those_of_all_files_and_change_with_a_byte() {
        needs_tools();
        let s = Sandbox::new();
        let dir = packages(&s);
        let check = || {
            let mut check = Command::new("sha256sum");
            Ran::of(check.args(["--check", "SHA256SUMS"]).current_dir(&dir))
        };
        let listed = check().ok().stdout.lines().count();
        assert_eq!(
            listed + 1,
            fs::read_dir(&dir).unwrap().count(),
            "a file is not listed"
        );
        let package = file(&dir, ".deb");
        let mut bytes = fs::read(&package).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(package, bytes).unwrap();
        check().code(1);
    }

    #[test]
    fn every_package_has_every_file_and_needs_fuse3() {
        needs_tools();
        let s = Sandbox::new();
        let dir = packages(&s);
        let package = file(&dir, ".deb");
        let tar = Ran::of(
            Command::new("sh")
                .args(["-c", "dpkg-deb --fsys-tarfile \"$0\" | tar -t"])
                .arg(&package),
        )
        .ok();
        for name in [
            "doc/evfs/copyright",
            "doc/evfs/changelog.Debian.gz",
            "lintian/overrides/evfs",
        ] {
            let path = format!("./usr/share/{name}");
            assert!(tar.stdout.lines().any(|line| line == path), "{path}");
        }
        check_contents(
            &s,
            &tar.stdout,
            "./usr/",
            "vendor-completions",
            "share/doc/evfs",
        );
        let field = |name: &str| {
            peer(
                "dpkg-deb",
                &["-f".as_ref(), package.as_os_str(), name.as_ref()],
            )
        };
        let depends = field("Depends");
        let depends: Vec<&str> = depends.trim().split(", ").collect();
        assert!(depends.contains(&"fuse3"), "{depends:?}");
        assert!(depends[0].starts_with("libc6 (>= 2."), "{depends:?}");
        assert!(field("Suggests").contains("cryptsetup-bin"));
        assert_eq!(field("Version").trim(), format!("{}-1", version()));

        let package = file(&dir, ".rpm");
        let query = |what: &str| peer("rpm", &[what.as_ref(), package.as_os_str()]);
        check_contents(
            &s,
            &query("-qlp"),
            "/usr/",
            "site-functions",
            "share/licenses/evfs",
        );
        let requires = query("-qRp");
        let requires: Vec<&str> = requires.lines().collect();
        assert!(requires.contains(&"fuse3"), "{requires:?}");
        assert!(
            requires.iter().any(|r| r.starts_with("libc.so.6(GLIBC_2.")),
            "{requires:?}"
        );

        let archive = file(&dir, "-linux-gnu.tar.gz");
        let list = peer("tar", &["-tf".as_ref(), archive.as_os_str()]);
        let top = list.lines().next().unwrap().to_owned();
        check_contents(&s, &list, &top, "vendor-completions", "share/doc/evfs");
        let readme = peer(
            "tar",
            &[
                "-xOf".as_ref(),
                archive.as_os_str(),
                format!("{top}README").as_ref(),
            ],
        );
        let glibc = depends[0]
            .trim_start_matches("libc6 (>= ")
            .trim_end_matches(')');
        assert!(
            readme.contains(&format!("glibc {glibc} or later")),
            "{readme}"
        );
    }

    /// Warnings that stay are overridden in the package, with their reasons.
    #[test]
    fn lintian_finds_no_error_and_no_warning_in_the_package() {
        needs_tools();
        let s = Sandbox::new();
        let package = file(&packages(&s), ".deb");
        let judge = |package: &Path| {
            let mut lintian = Command::new(installed("lintian"));
            lintian.args(["--allow-root", "--no-cfg", "--fail-on", "error,warning"]);
            Ran::of(lintian.env("LC_ALL", "C.UTF-8").arg(package))
        };
        let found = judge(&package).ok();
        assert_eq!(found.stdout, "");
        // It does find one in a package with a file that has no checksum.
        let older = judge(&older(&s, &package)).code(2);
        assert!(older.stdout.contains("W: evfs: "), "{older:?}");
    }

    #[test]
    fn the_program_is_stripped_and_a_debugger_finds_its_symbols() {
        needs_tools();
        let gdb = installed("gdb");
        let s = Sandbox::new();
        let dir = packages(&s);
        for (end, to) in [("-debug.tar.xz", "debug"), ("-linux-gnu.tar.gz", "evfs")] {
            fs::create_dir(s.path(to)).unwrap();
            let archive = file(&dir, end);
            let mut tar = Command::new("tar");
            tar.arg("-C")
                .arg(s.path(to))
                .args(["--strip-components=1", "-xf"]);
            Ran::of(tar.arg(archive)).ok();
        }
        let packed = s.path("evfs/bin/evfs");
        let sections = peer("readelf", &["-SW".as_ref(), packed.as_os_str()]);
        assert!(
            !sections.contains(".symtab") && !sections.contains(".debug_"),
            "{sections}"
        );
        let symbol = |symbols: &str| {
            let mut debugger = Command::new(&gdb);
            debugger.args(["-batch", "-nx", "-iex"]);
            debugger.arg(format!(
                "set debug-file-directory {}",
                s.path(symbols).display()
            ));
            Ran::of(debugger.args(["-ex", "info address main"]).arg(&packed))
        };
        let found = symbol("debug/usr/lib/debug");
        assert!(found.stdout.contains("Symbol \"main\" is"), "{found:?}");
        let none = symbol("nowhere");
        assert!(!none.stdout.contains("Symbol \"main\" is"), "{none:?}");
    }

    #[test]
    fn the_bill_of_materials_names_each_crate_with_the_checksum_of_the_lock_file() {
        needs_tools();
        let s = Sandbox::new();
        let text = fs::read_to_string(file(&packages(&s), ".cdx.json")).unwrap();
        assert!(
            !text.contains(root().to_str().unwrap()),
            "a path of this machine"
        );
        let bill: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&bill["bomFormat"], &bill["specVersion"]),
            (&"CycloneDX".into(), &"1.5".into())
        );
        assert_eq!(bill["metadata"]["timestamp"], "2025-06-15T15:06:40Z");
        let program = &bill["metadata"]["component"];
        assert_eq!(
            (&program["name"], &program["version"]),
            (&"evfs".into(), &version().into())
        );
        let components = bill["components"].as_array().unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut known = BTreeSet::from([text(&program["bom-ref"])]);
        let lock = fs::read_to_string(root().join("Cargo.lock")).unwrap();
        for component in components {
            for field in ["type", "name", "version", "bom-ref", "scope"] {
                assert!(!text(&component[field]).is_empty(), "{field}: {component}");
            }
            assert!(
                known.insert(text(&component["bom-ref"])),
                "twice: {component}"
            );
            let (name, version) = (text(&component["name"]), text(&component["version"]));
            if name == "rust-std" {
                continue;
            }
            let entry = format!("[[package]]\nname = \"{name}\"\nversion = \"{version}\"\n");
            let entry = lock.split(&entry).nth(1).expect(&name);
            let entry = entry.split("\n\n").next().unwrap();
            let checksum = entry
                .lines()
                .find_map(|line| line.strip_prefix("checksum = "));
            let checksum = checksum.map(|sum| sum.trim_matches('"'));
            assert_eq!(
                component["hashes"][0]["content"].as_str(),
                checksum,
                "{name}"
            );
            assert_eq!(component["purl"].is_null(), checksum.is_none(), "{name}");
            assert!(component["licenses"][0]["expression"].is_string(), "{name}");
        }
        for name in ["ring", "evfs-stack", "age", "rust-std"] {
            let found = components.iter().find(|c| c["name"] == name).expect(name);
            assert_eq!(found["scope"], "required", "{name}");
        }
        let clap = components
            .iter()
            .find(|c| c["name"] == "clap_derive")
            .unwrap();
        assert_eq!(clap["scope"], "excluded");
        let mut described = BTreeSet::new();
        for entry in bill["dependencies"].as_array().unwrap() {
            assert!(described.insert(text(&entry["ref"])), "twice: {entry}");
            for used in entry["dependsOn"].as_array().unwrap() {
                assert!(known.contains(&text(used)), "{used} of {entry}");
            }
        }
        assert_eq!(described, known);
    }
}

mod needs_root {
    use super::*;
    use test_support::needs_file;
    use tests::needs_root;

    /// Files that belong to the administrator. No package may change them.
    const OWN: &str = "find /etc/evfs /var/lib/evfs -type f -exec sha256sum {} + | sort";

    /// Files with the name of EVFS, except those of the administrator, of this test, and the pages
    /// that man(1) has formatted, which it removes itself.
    const LEFT: &str = "find / -xdev \\( -path /dist -o -path /srv -o -path /proc -o -path /dev \
                        -o -path /run -o -path /var/cache/man -o -path /etc/evfs -o -path /var/lib/evfs \\) -prune \
                        -o -iname '*evfs*' -print";

    /// A copy of the small Debian system.
    struct Debian {
        root: PathBuf,
    }

    impl Debian {
        fn new(s: &Sandbox) -> Debian {
            needs_root("a system in a directory");
            let target = program();
            let target = target.ancestors().nth(2).expect("target/PROFILE/evfs");
            let clean = target.join("roots/debian");
            needs_file(&clean);
            let root = s.path("root");
            Ran::of(Command::new("cp").arg("--archive").arg(clean).arg(&root)).ok();
            // The guide's commands are those for a terminal.
            let settings = root.join("etc/apt/apt.conf.d/99test");
            fs::write(settings, "APT::Get::Assume-Yes \"true\";\n").unwrap();
            Debian { root }
        }

        /// Copies a file into a directory of the system.
        fn put(&self, file: &Path, dir: &str) {
            let dir = self.root.join(dir.trim_start_matches('/'));
            fs::create_dir_all(&dir).unwrap();
            fs::copy(file, dir.join(file.file_name().unwrap())).unwrap();
        }

        /// Runs a script in the system. Its processes end with it.
        fn run(&self, script: &str) -> Ran {
            let enter = "mount -t proc proc \"$0/proc\"\n\
                         mount --rbind /dev \"$0/dev\"; mount --rbind /sys \"$0/sys\"\n\
                         exec chroot \"$0\" bash -euo pipefail -c \"$1\"";
            let mut inside = Command::new("unshare");
            inside
                .args(["--mount", "--pid", "--fork", "--", "sh", "-euc", enter])
                .arg(&self.root)
                .arg(script)
                .env_clear()
                .env(
                    "PATH",
                    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                )
                .envs([("HOME", "/root"), ("LC_ALL", "C.UTF-8"), ("TERM", "dumb")])
                .env("DEBIAN_FRONTEND", "noninteractive")
                .env("EVFS_KDF_MEMORY_KIB", "1024")
                .env("EVFS_KDF_TIME_MS", "1");
            Ran::of(&mut inside)
        }

        /// Runs a script, which must succeed, and returns what it prints.
        #[track_caller]
        fn ok(&self, script: &str) -> String {
            self.run(script).ok().stdout
        }

        /// Creates what an administrator has: a key pair, a configuration, a volume with a file
        /// system that a line in fstab names, and a header backup.
        fn use_evfs(&self) {
            self.ok("\
                evfs key generate admin --no-passphrase\n\
                printf 'threads = 2\\n' > /etc/evfs/evfs.toml\n\
                evfs volume create /srv/a.img --size 64M --owner admin\n\
                evfs format /srv/a.img\n\
                mkdir -p /srv/a /var/lib/evfs/backup\n\
                echo header > /var/lib/evfs/backup/a.luks2\n\
                echo '/srv/a.img /srv/a evfs noauto,key=admin,x-evfs.wait 0 0' > /etc/fstab\n\
                mount /srv/a\n\
                echo kept > /srv/a/file\n\
                umount /srv/a");
            let own = self.ok(OWN);
            for path in [
                "/etc/evfs/keys/",
                "/etc/evfs/evfs.toml",
                "/var/lib/evfs/backup/",
            ] {
                assert!(own.contains(path), "{own}");
            }
        }

        /// Checks everything that is used after an installation.
        fn check_installed(&self, units: &str) {
            let printed = self.ok("evfs --version; man -w evfs; man -w 5 evfs.toml; man -w 7 evfs");
            assert!(
                printed.starts_with(&format!("evfs {}\n", version())),
                "{printed}"
            );
            // The script works without the package bash-completion.
            let complete = "for dir in /usr/share /usr/local/share; do\n\
                            file=$dir/bash-completion/completions/evfs\n\
                            if [ -f $file ]; then . $file; fi\n\
                            done\n\
                            complete -p evfs";
            self.ok(complete);
            // Verification starts the manual pages that the units name, and knows a wrong option.
            let verify = format!(
                "mkdir /tmp/units; cd /tmp/units\n\
                 cp {units}/evfs-cluster.service {units}/evfs.service {units}/evfs@.service .\n\
                 ln -s evfs@.service evfs@data.service\n\
                 verify() {{ systemd-analyze verify $PWD/evfs.service $PWD/evfs@data.service \
                 $PWD/evfs-cluster.service 2>&1 || :; }}\n\
                 verify | grep evfs || :\n\
                 sed -i s/KillMode=/KillModes=/ evfs.service\n\
                 verify | grep KillModes > /dev/null\n\
                 rm -r /tmp/units"
            );
            assert_eq!(self.ok(&verify), "", "systemd refuses the units");
            assert_eq!(
                self.ok("mount /srv/a; cat /srv/a/file; umount /srv/a"),
                "kept\n"
            );
        }
    }

    /// Enables the units, and an instance of the one that has instances.
    const ENABLE: &str =
        "systemctl enable evfs.service evfs-cluster.service evfs@data.service 2>/dev/null";

    /// The links by which units are enabled, in the order of their names.
    const ENABLED: &str =
        "cd /etc/systemd/system/multi-user.target.wants || exit 0; ls -d *evfs* || :";

    /// The links after [`ENABLE`].
    const ALL_ENABLED: &str = "evfs-cluster.service\nevfs.service\nevfs@data.service\n";

    /// Returns the commands of the guide's only block with this mark.
    fn guide(mark: &str) -> String {
        let page = fs::read_to_string(root().join("docs/guide/install.md")).unwrap();
        let fence = format!("```bash {mark}\n");
        let blocks: Vec<&str> = page.split(&fence).skip(1).collect();
        assert_eq!(
            blocks.len(),
            1,
            "blocks of the guide with the mark `{mark}`"
        );
        blocks[0].split("```").next().unwrap().to_owned()
    }

    /// A mount survives the upgrade, and removal and purge leave keys and configuration.
    #[test]
    fn debian_installs_upgrades_removes_and_purges_the_package() {
        let s = Sandbox::new();
        let debian = Debian::new(&s);
        let new = file(&packages(&s), ".deb");
        debian.put(&older(&s, &new), "/dist/old");
        debian.put(&new, "/dist/new");
        debian.put(&s.path("dist/SHA256SUMS"), "/dist/new");
        let install = guide("deb");
        let before = debian.ok(LEFT);
        assert_eq!(before, "", "the clean system has files of EVFS");
        debian.ok(&format!("cd /dist/old\n{install}"));
        let of = |what: &str| debian.ok(&format!("dpkg-query -W -f '${{{what}}}' evfs"));
        assert_eq!(of("Version"), "0.0.1-1");
        debian.use_evfs();
        debian.check_installed("/usr/lib/systemd/system");
        assert_eq!(debian.ok(ENABLED), "", "an installation enables nothing");

        // An upgrade while a file system is mounted, and a service is enabled.
        let sums = guide("sums");
        let upgraded = debian.ok(&format!(
            "{ENABLE}\n\
             mount /srv/a\n\
             cd /dist/new\n{sums}\n{install}\n\
             echo more > /srv/a/more\n\
             evfs --json status > /tmp/status\n\
             umount /srv/a; cat /tmp/status"
        ));
        assert!(upgraded.contains("/srv/a"), "{upgraded}");
        assert_eq!(of("Version"), format!("{}-1", version()));
        assert_eq!(
            debian.ok("mount /srv/a; cat /srv/a/more; umount /srv/a"),
            "more\n"
        );
        debian.run("test ! -e /usr/share/evfs/of-the-past").ok();
        assert_eq!(debian.ok("dpkg --verify evfs"), "");
        debian.check_installed("/usr/lib/systemd/system");
        assert_eq!(
            debian.ok(ENABLED),
            ALL_ENABLED,
            "an upgrade disables nothing"
        );

        let own = debian.ok(OWN);
        debian.ok(&guide("deb-remove"));
        assert_eq!(
            debian.ok(OWN),
            own,
            "removal changed files of the administrator"
        );
        debian.ok(
            "test ! -e /usr/bin/evfs; test ! -L /usr/sbin/mount.evfs; test ! -e /usr/share/evfs",
        );
        // As packages of Debian do: a new installation enables the units again, until a purge.
        assert_eq!(debian.ok(ENABLED), "evfs-cluster.service\nevfs.service\n");
        debian.ok(&guide("deb-purge"));
        assert_eq!(
            debian.ok(OWN),
            own,
            "purge changed files of the administrator"
        );
        assert_eq!(debian.ok(LEFT), "", "left by purge");

        // The keys still open the volume.
        debian.ok(&format!("cd /dist/new\n{install}"));
        debian.check_installed("/usr/lib/systemd/system");
        debian.ok(&guide("deb-purge"));
        debian.ok(&guide("remove-all"));
        let rest = debian.ok("ls -d /etc/evfs /var/lib/evfs 2>/dev/null || :");
        assert_eq!(rest, "");
    }

    /// RPM itself installs the package into the system of another distribution.
    #[test]
    fn rpm_installs_and_removes_the_package() {
        let s = Sandbox::new();
        let debian = Debian::new(&s);
        let package = file(&packages(&s), ".rpm");
        let rpm = |args: &[&str]| {
            let mut rpm = Command::new(installed("rpm"));
            // The database of this system does not know the packages of Debian.
            rpm.arg("--root")
                .arg(&debian.root)
                .args(["--dbpath", "/var/lib/rpm", "--nodeps"]);
            Ran::of(rpm.args(args)).ok().stdout
        };
        let path = package.to_str().unwrap();
        rpm(&["-i", path]);
        debian.use_evfs();
        debian.check_installed("/usr/lib/systemd/system");
        assert_eq!(rpm(&["-V", "evfs"]), "");
        debian.ok(ENABLE);
        rpm(&["-U", "--replacepkgs", path]);
        debian.check_installed("/usr/lib/systemd/system");
        assert_eq!(
            debian.ok(ENABLED),
            ALL_ENABLED,
            "an upgrade disables nothing"
        );
        let own = debian.ok(OWN);
        rpm(&["-e", "evfs"]);
        assert_eq!(debian.ok(OWN), own);
        assert_eq!(debian.ok(LEFT), "", "left by removal");
    }

    #[test]
    fn the_archive_installs_and_removes_itself() {
        let s = Sandbox::new();
        let debian = Debian::new(&s);
        debian.put(&file(&packages(&s), "-linux-gnu.tar.gz"), "/dist");
        let install = guide("tarball");
        let files = "find / -xdev \\( -path /dist -o -path /srv -o -path /etc/evfs -o -path /etc/fstab \
                     -o -path /var/lib/evfs -o -path /var/cache -o -path /run -o -path /tmp \\) -prune \
                     -o -not -type d -print | sort";
        let before = debian.ok(files);
        debian.ok(&format!("cd /dist\n{install}"));
        debian.use_evfs();
        debian.check_installed("/usr/local/lib/systemd/system");
        let own = debian.ok(OWN);
        debian.ok(ENABLE);
        let installed = debian.ok(files);
        assert!(installed.contains("/multi-user.target.wants/evfs@data.service"));
        debian.ok(&format!("cd /dist\n{install}"));
        assert_eq!(debian.ok(files), installed, "a second installation differs");
        let remove = guide("tarball-remove");
        debian.ok(&format!("cd /dist/evfs-*-linux-gnu\n{remove}"));
        assert_eq!(debian.ok(files), before, "left by removal");
        assert_eq!(debian.ok(OWN), own);
    }
}
