//! The file cache from an administrator's point of view: volumes in memory, settings that change at
//! run time, and no lost data.

use serde_json::Value;
use std::fs;
use tests::{Random, Sandbox, peer};

const MIB: u64 = 1 << 20;

/// Returns the status of the only cache.
fn cache(s: &Sandbox) -> Value {
    let shown = s.json(&["cache", "show", "--files"]);
    let caches = shown["caches"].as_array().unwrap();
    assert_eq!(caches.len(), 1, "{shown}");
    caches[0].clone()
}

fn stat(cache: &Value, name: &str) -> u64 {
    cache["stats"][name]
        .as_u64()
        .unwrap_or_else(|| panic!("{name} in {cache}"))
}

fn uri(status: &Value) -> String {
    status["exports"][0]["at"].as_str().unwrap().to_owned()
}

fn copy(from: &str, to: &str) {
    peer("nbdcopy", &[from, to]);
}

#[test]
fn settings_come_from_the_configuration_and_what_is_wrong_is_said() {
    let s = Sandbox::new();
    s.volume("a.img", "32M", &[]);
    let mut attach = s.evfs();
    attach
        .env(
            "EVFS_CACHE_TUNABLES",
            "filecache_min=2MB filecache_max=24MB",
        )
        .args(["attach", "a.img", "--background"]);
    tests::Ran::of(&mut attach).ok();
    assert_eq!(stat(&cache(&s), "max_bytes"), 24 * MIB);
    let wrong: [&[&str]; 6] = [
        &["cache", "set", "filecache_max=1MB"],
        &["cache", "set", "filecache_mx=4MB"],
        &["cache", "set", "filecache_max"],
        &["cache", "set", "filecache_max=101%"],
        &["cache", "advise", "a", "readahead=no"],
        &["cache", "advise", "a", "numa_node=77"],
    ];
    for args in wrong {
        s.run(args).code(2);
    }
    assert_eq!(
        stat(&cache(&s), "max_bytes"),
        24 * MIB,
        "nothing has changed"
    );
    s.run(&["cache", "advise", "missing", "read_ahead=no"])
        .code(10);
    s.run(&["cache", "advise", "a", "read_ahead=no", "sync_interval=50"])
        .ok();
    let shown = cache(&s);
    assert_eq!(
        shown["files"][0]["attributes"]["read_ahead"], "no",
        "{shown}"
    );
    assert_eq!(shown["files"][0]["attributes"]["sync_interval"], "50");
    s.detach("a");
    let mut attach = s.evfs();
    attach
        .env("EVFS_CACHE_TUNABLES", "filecache_max=200%")
        .args(["attach", "a.img", "--background"]);
    tests::Ran::of(&mut attach).code(2);
}

mod needs_peer {
    use super::*;

    #[test]
    fn what_was_read_is_read_from_memory_and_what_was_written_is_there_after_a_detach() {
        let s = Sandbox::new();
        s.volume("a.img", "48M", &[]);
        let at = uri(&s.attach(&["a.img"]));
        let data = Random::from_environment().bytes(24 * MIB as usize);
        let (file, back) = (s.path("data"), s.path("back"));
        fs::write(&file, &data).unwrap();
        fs::write(&back, []).unwrap();
        copy(file.to_str().unwrap(), &at);
        let before = cache(&s);
        assert!(stat(&before, "used_bytes") >= 24 * MIB, "{before}");
        copy(&at, back.to_str().unwrap());
        assert!(fs::read(&back).unwrap()[..data.len()] == data[..]);
        let after = cache(&s);
        let hits = stat(&after, "hits") - stat(&before, "hits");
        assert!(hits >= 24 * MIB / 4096, "{hits} hits in {after}");
        let files = after["files"].as_array().unwrap();
        assert_eq!((files.len(), &files[0]["volume"]), (1, &Value::from("a")));
        s.run(&["cache", "flush", "a"]).ok();
        assert_eq!(stat(&cache(&s), "dirty_bytes"), 0);
        s.run(&["cache", "drop"]).ok();
        assert_eq!(stat(&cache(&s), "used_bytes"), 0);
        copy(&at, back.to_str().unwrap());
        assert!(
            fs::read(&back).unwrap()[..data.len()] == data[..],
            "from the disk"
        );
        s.detach("a");
        let at = uri(&s.attach(&["a.img", "--direct"]));
        fs::write(&back, []).unwrap();
        copy(&at, back.to_str().unwrap());
        assert!(
            fs::read(&back).unwrap()[..data.len()] == data[..],
            "after all"
        );
        s.run(&["cache", "show"]).code(10);
        s.run(&["cache", "drop", "a"]).code(10);
        s.detach("a");
    }

    #[test]
    fn the_limit_holds_while_it_changes_under_load() {
        let s = Sandbox::new();
        s.volume("a.img", "160M", &[]);
        let at = uri(&s.attach(&["a.img"]));
        s.run(&["cache", "set", "filecache_min=1MB", "filecache_max=32MB"])
            .ok();
        let fio = |rw: &str| {
            let uri = format!("--uri={at}");
            let rw = format!("--rw={rw}");
            let args = [
                "--name=load",
                "--ioengine=nbd",
                &uri,
                &rw,
                "--bs=64k",
                "--iodepth=16",
                "--size=128M",
                "--time_based",
                "--runtime=4",
            ];
            peer("fio", &args);
        };
        for (max, rw) in [(32, "randrw"), (8, "write"), (64, "read")] {
            let setting = format!("filecache_max={max}MB");
            std::thread::scope(|scope| {
                let load = scope.spawn(|| fio(rw));
                s.run(&["cache", "set", &setting]).ok();
                while !load.is_finished() {
                    let used = stat(&cache(&s), "used_bytes");
                    // Dirty pages from before the limit was lowered are evicted only once they are
                    // written back.
                    if stat(&cache(&s), "max_bytes") == max * MIB && rw != "write" {
                        assert!(used <= max * MIB + max * MIB / 100, "{used} of {max} MiB");
                    }
                }
                load.join().unwrap();
            });
            s.run(&["cache", "flush"]).ok();
            let used = stat(&cache(&s), "used_bytes");
            assert!(used <= max * MIB + max * MIB / 100, "{used} of {max} MiB");
        }
        s.detach("a");
    }

    #[test]
    fn volumes_of_one_process_share_a_cache_and_what_is_direct_has_none() {
        let s = Sandbox::new();
        for image in ["a.img", "b.img", "c.img"] {
            s.volume(image, "32M", &[]);
        }
        let table = |name: &str, more: &str| {
            let image = s.path(&format!("{name}.img"));
            format!("[volume.{name}]\ndevice = {image:?}\nkey = \"owner\"\n{more}")
        };
        let text = [
            table("a", ""),
            table("b", ""),
            table("c", "direct = true\n"),
        ]
        .concat();
        fs::write(s.path("up.toml"), text).unwrap();
        s.run(&["up", "up.toml", "--background"]).ok();
        let one = cache(&s);
        assert_eq!(one["volumes"], serde_json::json!(["a", "b"]));
        for name in ["a", "b"] {
            let socket = s.path(&format!("run/{name}.nbd"));
            let uri = format!("nbd+unix:///{name}?socket={}", socket.display());
            fs::write(s.path("out"), []).unwrap();
            copy(&uri, s.path("out").to_str().unwrap());
        }
        let both = cache(&s);
        assert_eq!(stat(&both, "used_bytes"), 32 * MIB, "{both}");
        assert_eq!(both["files"].as_array().unwrap().len(), 2);
        s.run(&["cache", "drop", "c"]).code(10);
        s.run(&["down"]).ok();
    }
}
