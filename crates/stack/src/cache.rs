//! The page cache of this process, shared by all its services, and control requests about it.
//!
//! It is created with the first cached service; a process with direct volumes only has none.

mod shown;

use crate::control::CacheRequest;
use crate::text::{did_you_mean, json_of};
pub use crate::tunables::{changed_sizes, parse_change, parse_changes};
use crate::tunables::{parse, with};
use crate::{Error, Result, Settings};
use block::BlockDevice;
pub use cache::ATTRIBUTES as ADVICE;
pub use cache::tunables::TUNABLES;
use cache::tunables::{self, Tunables};
use cache::{
    Attributes, Cache, CacheStats, CachedDevice, Config, DirtyData, FileStats, PressureWatch,
    Vnode, Volume,
};
use numa::Topology;
use serde_json::Value;
pub use shown::{
    Dropped, Flushed, ShownCache, ShownCounts, ShownEvictions, ShownFile, ShownSetting, ShownStats,
};
use shown::{backing_in_words, shown_attributes};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use survival::Pages;

/// The cache of the process, created on demand.
pub struct ProcessCache {
    /// Text of the initial settings, and its parsed form.
    given: Mutex<(String, Tunables)>,
    memory: u64,
    topology: Topology,
    running: Mutex<Option<Arc<Running>>>,
    /// Whether the dirty pages are listed for a successor of the process.
    is_surviving: bool,
}

/// A created cache.
struct Running {
    cache: Arc<Cache>,
    /// The thread that reacts to memory pressure; it starts with the first service.
    watch: OnceLock<std::result::Result<PressureWatch, String>>,
}

impl Running {
    fn watch(&self) -> &std::result::Result<PressureWatch, String> {
        self.watch.get_or_init(|| {
            let watch = PressureWatch::start(&self.cache).map_err(|e| e.to_string());
            if let Err(why) = &watch {
                tracing::warn!(
                    name: "EVFS-0107",
                    "the cache does not shrink under memory pressure: {why}"
                );
            }
            watch
        })
    }
}

impl ProcessCache {
    /// Prepares a cache with the settings of `cache.tunables`.
    ///
    /// # Errors
    /// [`Error::Config`] if they exceed the memory of this machine.
    pub fn new(settings: &Settings) -> Result<Arc<ProcessCache>> {
        ProcessCache::with(settings, settings.cache_tunables())
    }

    /// Prepares a cache with the settings `given`, for benchmarks.
    ///
    /// # Errors
    /// Those of [`ProcessCache::new`].
    pub fn with(settings: &Settings, given: &str) -> Result<Arc<ProcessCache>> {
        let memory = cache::memory_bytes();
        let tunables = parse(given, memory)?;
        let changes = parse_changes(given).unwrap_or_default();
        if let Some(notice) = changed_sizes(&changes) {
            tracing::warn!(name: "EVFS-0108", "cache.tunables: {notice}");
        }
        Ok(Arc::new(ProcessCache {
            given: Mutex::new((given.to_owned(), tunables)),
            memory,
            // Without a topology, memory is treated as uniform.
            topology: Topology::read(&settings.sysfs_root()).unwrap_or_default(),
            running: Mutex::default(),
            is_surviving: settings.succession().is_some(),
        }))
    }

    /// Applies `cache.tunables` if it has changed since it was last read. Otherwise changes by
    /// `evfs cache set` stay in force.
    ///
    /// # Errors
    /// The settings exceed the memory of this machine, or cannot be changed while the cache runs.
    pub fn reload(&self, settings: &Settings) -> Result<()> {
        let text = settings.cache_tunables();
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        if given.0 == text {
            return Ok(());
        }
        let tunables = parse(text, self.memory)?;
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = &*running {
            let set = running.cache.set(&tunables);
            set.map_err(|e| Error::Usage(format!("cache.tunables: {e}")))?;
        }
        *given = (text.to_owned(), tunables);
        Ok(())
    }

    /// Wraps `device` in one that accesses it through the cache.
    ///
    /// # Errors
    /// The system has no memory for a cache, or the device cannot open a queue.
    pub fn device(&self, device: Arc<dyn BlockDevice>) -> Result<CachedDevice> {
        Ok(CachedDevice::new(&self.running()?.cache, device)?)
    }

    /// Returns the cache itself, for files.
    ///
    /// # Errors
    /// The system has no memory for a cache.
    pub fn cache(&self) -> Result<Arc<Cache>> {
        Ok(Arc::clone(&self.running()?.cache))
    }

    /// Returns the statistics of the cache, if it was created.
    pub(crate) fn stats(&self) -> Option<CacheStats> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let cache = running.as_ref().map(|running| Arc::clone(&running.cache));
        drop(running);
        cache.map(|cache| cache.stats())
    }

    /// Gets the cache; creates it and starts its pressure thread if necessary.
    fn running(&self) -> Result<Arc<Running>> {
        let running = self.made()?;
        running.watch();
        Ok(running)
    }

    /// Creates the cache without starting a thread, before the process drops the privilege to use
    /// the best kind of memory for it.
    ///
    /// # Errors
    /// The system has no memory for a cache.
    pub(crate) fn prepare(&self) -> Result<()> {
        self.made().map(drop)
    }

    fn made(&self) -> Result<Arc<Running>> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = &*running {
            return Ok(Arc::clone(running));
        }
        let given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        let config = Config::of(&given.1, self.memory);
        drop(given);
        let config = config.expect("the settings were resolved against this memory before");
        let surviving = self.is_surviving.then(|| {
            let failed =
                |e| Error::Failed(format!("cannot create the memory for a successor: {e}"));
            Pages::unclaimed(config.frames()).map_err(failed)
        });
        let cache = Cache::new(Config {
            topology: self.topology.clone(),
            surviving: surviving.transpose()?,
            ..config
        })?;
        let watch = OnceLock::new();
        let made = Arc::new(Running { cache, watch });
        *running = Some(Arc::clone(&made));
        Ok(made)
    }

    /// Answers a request about the cache, or about `volumes` in it. `vnode` looks up the file that
    /// an advice names.
    ///
    /// # Errors
    /// The request cannot be fulfilled.
    pub fn answer(
        &self,
        volumes: &[&Volume],
        vnode: &dyn Fn(Option<&str>) -> Result<Arc<Vnode>>,
        ask: &CacheRequest,
    ) -> Result<Value> {
        let running = self.running()?;
        match ask {
            CacheRequest::Show { files } => Ok(json_of(&self.show(&running, volumes, *files))),
            CacheRequest::Set { changes } => {
                let cache = &running.cache;
                let _alone = self.running.lock().unwrap_or_else(PoisonError::into_inner);
                let changed = with(&cache.tunables(), changes, self.memory);
                let set = cache.set(&changed.map_err(Error::Usage)?);
                set.map_err(|e| Error::Usage(e.to_string()))?;
                Ok(json_of(&settings(cache)))
            }
            CacheRequest::Flush => {
                volumes.iter().try_for_each(|volume| volume.flush())?;
                Ok(json_of(&Flushed {
                    dirty_bytes: sum(volumes, |file| file.dirty_bytes),
                }))
            }
            CacheRequest::Drop => {
                let before = sum(volumes, |file| file.resident_bytes);
                volumes.iter().try_for_each(|volume| volume.drop_pages())?;
                let after = sum(volumes, |file| file.resident_bytes);
                Ok(json_of(&Dropped {
                    dropped_bytes: before.saturating_sub(after),
                }))
            }
            CacheRequest::Advise { path, changes } => {
                let vnode = vnode(path.as_deref())?;
                let mut attributes = vnode.attributes();
                for (name, value) in changes {
                    advise(&mut attributes, name, value).map_err(Error::Usage)?;
                }
                if let Some(node) = attributes.numa_node {
                    self.has_node(node)?;
                }
                vnode.set_attributes(attributes);
                Ok(shown_attributes(&attributes))
            }
        }
    }

    fn has_node(&self, node: u32) -> Result<()> {
        let nodes: Vec<u32> = self.topology.nodes().collect();
        if nodes.contains(&node) {
            return Ok(());
        }
        Err(Error::Usage(match nodes.as_slice() {
            [] => "numa_node: this machine has uniform memory; leave it at none".into(),
            nodes => format!("numa_node={node}: no such NUMA node; this machine has {nodes:?}"),
        }))
    }

    fn show(&self, running: &Running, volumes: &[&Volume], files: bool) -> ShownCache {
        let stats = running.cache.stats();
        let shortage = match running.watch() {
            Ok(_) => "watched".to_owned(),
            Err(why) => format!("not watched: {why}"),
        };
        let all = || volumes.iter().flat_map(|volume| volume.files());
        ShownCache {
            pid: std::process::id(),
            memory_bytes: self.memory,
            frames: backing_in_words(stats.backing),
            nodes: nodes(&running.cache),
            swap: if stats.swappable {
                "frames may be swapped out: neither noswap nor mlock is allowed"
            } else {
                "kept out"
            },
            shortage,
            stats: ShownStats::of(&stats),
            settings: settings(&running.cache),
            files: files.then(|| all().map(|file| ShownFile::of(&file)).collect()),
        }
    }
}

/// Counts the bytes in `volumes` that are not yet written out.
pub(crate) fn dirty_bytes(volumes: &[&Volume]) -> u64 {
    sum(volumes, |file| file.dirty_bytes)
}

/// Sums the data in `volumes` that is in memory only, and finds its greatest age.
pub(crate) fn dirty(volumes: &[&Volume]) -> DirtyData {
    let mut all = DirtyData::default();
    for volume in volumes {
        let dirty = volume.dirty();
        all.bytes += dirty.bytes;
        all.oldest_ms = all.oldest_ms.max(dirty.oldest_ms);
    }
    all
}

fn sum(volumes: &[&Volume], of: impl Fn(&FileStats) -> u64) -> u64 {
    let all = volumes.iter().flat_map(|volume| volume.files());
    all.map(|file| of(&file)).sum()
}

fn settings(cache: &Cache) -> Vec<ShownSetting> {
    cache.tunables().iter().map(ShownSetting::of).collect()
}

/// Describes the NUMA placement of frames, in words.
fn nodes(cache: &Cache) -> String {
    match cache.nodes().as_slice() {
        [] | [_] => "one: memory is uniform, pages are not placed".into(),
        several => several
            .iter()
            .map(|(node, bytes)| format!("node {node}: {} MiB", bytes >> 20))
            .collect::<Vec<_>>()
            .join(", "),
    }
}

/// Changes one attribute.
fn advise(attributes: &mut Attributes, name: &str, value: &str) -> std::result::Result<(), String> {
    *attributes = attributes.with([(name, value)]).map_err(|e| {
        let names = || ADVICE.iter().map(|(name, ..)| *name);
        let hint = match e.kind {
            tunables::ErrorKind::UnknownName => did_you_mean(name, names()),
            _ => String::new(),
        };
        format!("{e}{hint}")
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_shown_as_they_are_given() {
        let mut attributes = Attributes::default();
        let given = [
            ("sync_interval", "250"),
            ("large_page", "yes"),
            ("numa_node", "1"),
            ("read_ahead", "no"),
            ("no_cache", "yes"),
            ("flush_behind", "2"),
        ];
        assert_eq!(given.len(), ADVICE.len());
        for (name, value) in given {
            advise(&mut attributes, name, value).unwrap();
        }
        let shown = shown_attributes(&attributes);
        for (name, value) in given {
            assert_eq!(shown[name], value, "{name}");
        }
        let back = [
            ("sync_interval", "default"),
            ("numa_node", "none"),
            ("flush_behind", "default"),
        ];
        for (name, value) in back {
            advise(&mut attributes, name, value).unwrap();
            assert_eq!(shown_attributes(&attributes)[name], value);
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_what_to_do() {
        let mut attributes = Attributes::default();
        let said = advise(&mut attributes, "readahead", "yes").unwrap_err();
        assert!(said.contains("did you mean `read_ahead`?"), "{said}");
        let said = advise(&mut attributes, "no_cache", "1").unwrap_err();
        assert!(said.contains("expected yes|no"), "{said}");
    }
}
