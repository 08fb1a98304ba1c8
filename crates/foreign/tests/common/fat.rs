//! Images of FAT file systems.

use super::{
    Arc, BTreeMap, BlockDevice, Blocking, Cache, Command, Files, Lane, Mem, Path, ROOT, run,
};
use block::Access;

pub fn make(dir: &Path, options: &[&str], kib: u64) -> Vec<u8> {
    let image = dir.join("image");
    let file = std::fs::File::create(&image).expect("created");
    file.set_len(kib << 10).expect("longer");
    let mut args: Vec<&Path> = options.iter().map(Path::new).collect();
    args.push(&image);
    run("mkfs.vfat", &args);
    std::fs::read(&image).expect("read")
}

pub fn disk_of(bytes: &[u8]) -> Mem {
    let device = Mem::new(bytes.len() as u64, 512);
    let mut queue = Blocking::open(&device).expect("a queue");
    queue.write_at(0, bytes).expect("written");
    device
}

pub fn bytes_of(device: &dyn BlockDevice) -> Vec<u8> {
    let mut bytes = vec![0; device.info().size as usize];
    let mut queue = Blocking::open(device).expect("a queue");
    queue.read_at(0, &mut bytes).expect("read");
    bytes
}

/// Runs `fsck.vfat -n`, and returns its success and its text.
pub fn fsck(dir: &Path, bytes: &[u8]) -> (bool, String) {
    let image = dir.join("checked");
    std::fs::write(&image, bytes).expect("written");
    let program = test_support::installed("fsck.vfat");
    let ran = Command::new(program).arg("-n").arg(&image).output();
    let ran = ran.expect("it runs");
    let text = String::from_utf8_lossy(&ran.stdout).into_owned();
    (ran.status.success(), text)
}

pub fn open(device: &Arc<dyn BlockDevice>, cache: &Cache) -> Arc<Files> {
    let files = Files::open_with(Arc::clone(device), cache, Access::ReadWrite);
    files.expect("it opens")
}

/// Content of the tree by the lower-case path: the path, and the bytes of a file.
pub type Paths = BTreeMap<String, (String, Option<Vec<u8>>)>;

/// One file of [`Paths`].
pub type Entry = (String, (String, Option<Vec<u8>>));

/// Reads all files of a tree in which each name exists once.
pub fn paths_of(files: &Arc<Files>) -> Paths {
    let entries = entries_of(files);
    let count = entries.len();
    let paths: Paths = entries.into_iter().collect();
    assert_eq!(paths.len(), count, "a name exists twice");
    paths
}

/// Reads all files of a tree, as the entries of [`Paths`].
pub fn entries_of(files: &Arc<Files>) -> Vec<Entry> {
    let mut lane = files.lane().expect("a lane");
    let (mut paths, mut todo) = (Vec::new(), vec![(String::new(), ROOT)]);
    while let Some((dir, node)) = todo.pop() {
        let mut from = 0;
        loop {
            let entries = lane.read_dir(node, from, 10).expect("entries");
            let Some(last) = entries.last() else { break };
            from = last.next;
            for entry in entries.iter().filter(|entry| entry.node != 0) {
                let name = String::from_utf8(entry.name.clone()).expect("a text");
                let path = format!("{dir}/{name}");
                let attr = lane.attr(entry.node).expect("attributes");
                let bytes = attr.is_file().then(|| content(&mut lane, entry.node));
                if attr.is_dir() {
                    todo.push((path.clone(), entry.node));
                }
                paths.push((path.to_lowercase(), (path, bytes)));
            }
        }
    }
    paths
}

pub fn content(lane: &mut Lane, node: u64) -> Vec<u8> {
    let size = lane.attr(node).expect("attributes").size;
    let mut bytes = vec![0; size as usize];
    assert_eq!(lane.read(node, 0, &mut bytes).expect("read"), bytes.len());
    bytes
}

/// Lets fsck.vfat repair an image, in a second run also the directories that the first has emptied.
pub fn repaired(dir: &Path, bytes: &[u8]) -> Vec<u8> {
    let image = dir.join("checked");
    std::fs::write(&image, bytes).expect("written");
    for _ in 0..2 {
        let program = test_support::installed("fsck.vfat");
        let ran = Command::new(program).arg("-a").arg(&image).output();
        ran.expect("it runs");
    }
    std::fs::read(&image).expect("read")
}
